package delayscmd

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/cli"
	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/inspect"
	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/internal/httpapi"
)

// patience is how long the broker may take for one answer.
const patience = 2 * time.Minute

func statCommand(s *cli.Session, l *ladders) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "stat [QUEUE...]",
		Short: "Count the messages that wait for an exact delay, by level, and how long they wait at most",
		Long: `Count the messages with exact delays: those that wait, by level of their ladder, with the longest time
that they still wait; those that no target takes; and those that are due and wait in the landing queue
of their target.

The longest time counts from now: RabbitMQ does not show when a message came into its queue. So it is
the time for a message that came just now, with one more wait at each lower level. It is the same as
long as the queue has messages. It holds if nothing is down or full.

QUEUE is a main queue, such as orders, whose landing queue is printed even if it is empty. AMQP does not
tell what a landing queue holds. Without the management API its number is unknown, and other landing
queues are not listed. The numbers of the management API are some seconds old.

With --json: {"ladders": [{"name", "exists", "messages", "max_wait_ms", "levels": [{"level", "messages",
"max_wait_ms", "undelivered", "queues": [{"queue", "delay", "messages", "max_wait_ms", "undelivered"}]}],
"unroutable": {"queue", "messages"}, "missing": [queue]}], "landing": [{"queue", "target": {"exchange",
"key"}, "exists", "messages"}], "management_api"}. "max_wait_ms" counts from now, and is absent for an
empty queue. "undelivered" counts messages that a queue has not handed over although they are due; it
and the "messages" of landing queues are null without the management API.`,
		Example: `  amqpretry delays stat
  amqpretry delays stat --policies retry.yaml orders payments
  amqpretry delays stat --json | jq '.ladders[].unroutable'`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error { return (&stat{s, l}).run(cmd.Context(), args) },
	}
	s.CompleteQueues(cmd, true, cli.MainQueues)

	return cmd
}

// stat is one run.
type stat struct {
	*cli.Session
	ladders *ladders
}

// report is what is printed.
type report struct {
	Ladders []*ladderReport  `json:"ladders"`
	Landing []*landingReport `json:"landing"`
	API     bool             `json:"management_api"`
}

type ladderReport struct {
	Name     string         `json:"name"`
	Exists   bool           `json:"exists"`
	Messages int64          `json:"messages"`
	MaxWait  milliseconds   `json:"max_wait_ms,omitempty"`
	Levels   []*levelReport `json:"levels"`
	// Unroutable are those that no target takes.
	Unroutable struct {
		Queue    string `json:"queue"`
		Messages int64  `json:"messages"`
	} `json:"unroutable"`
	// Missing are queues that are not there, of a ladder that is.
	Missing []string `json:"missing"`

	declare string // what declares it
}

type levelReport struct {
	Level int `json:"level"`
	waiting
	Queues []queueReport `json:"queues"`
}

type queueReport struct {
	Queue string `json:"queue"`
	Delay string `json:"delay"`
	waiting

	delay time.Duration
}

// waiting is how many messages wait, and how long at most from now.
type waiting struct {
	Messages int64        `json:"messages"`
	MaxWait  milliseconds `json:"max_wait_ms,omitempty"`
	// Undelivered are those that are due and were not handed over; nil if nobody has told.
	Undelivered *int64 `json:"undelivered"`
}

type milliseconds int64

func (m milliseconds) String() string { return cli.ShortDuration(time.Duration(m) * time.Millisecond) }

func (w *waiting) add(o waiting) {
	w.Messages += o.Messages
	w.MaxWait = max(w.MaxWait, o.MaxWait)
	if o.Undelivered != nil {
		sum := *o.Undelivered
		if w.Undelivered != nil {
			sum += *w.Undelivered
		}
		w.Undelivered = &sum
	}
}

type landingReport struct {
	Queue  string          `json:"queue"`
	Target topology.Target `json:"target"`
	Exists bool            `json:"exists"`
	// Messages is nil if nobody has told.
	Messages *int64 `json:"messages"`
}

func (s *stat) run(ctx context.Context, queues []string) error {
	if i := slices.Index(queues, ""); i >= 0 {
		return cli.Usage("QUEUE is empty: wanted the name of a main queue, such as orders")
	}
	if slices.ContainsFunc(queues, func(queue string) bool { return strings.Contains(queue, "://") }) {
		return cli.Usage("found an address instead of a queue: set %s, or --uri", cli.EnvURI)
	}
	candidates, err := s.ladders.candidates()
	if err != nil {
		return err
	}
	api, err := s.ManagementClient("")
	if err != nil {
		return err
	}
	b, err := inspect.Connect(ctx, s.Dial, patience)
	if err != nil {
		return err
	}
	defer b.Close()

	r, err := s.look(ctx, b, api, candidates, queues)
	if err != nil {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return err
	}
	if s.JSON {
		return s.PrintJSON(r)
	}

	return s.print(r)
}

// counts are the numbers of the management API, by queue; nil without one.
type counts map[string]httpapi.Queue

func (s *stat) look(ctx context.Context, b *inspect.Broker, api *httpapi.Client, candidates []candidate,
	queues []string) (report, error) {
	r := report{Ladders: []*ladderReport{}, Landing: []*landingReport{}, API: api != nil}
	var told counts
	if api != nil {
		all, err := api.Counts(ctx)
		if err != nil {
			return r, err
		}
		told = counts{}
		for _, q := range all {
			told[q.Name] = q
		}
	}
	for _, c := range candidates {
		ladder, err := s.ladder(b, told, c.Ladder)
		if err != nil {
			return r, err
		}
		ladder.declare = c.declare()
		if ladder.Exists || c.wanted {
			r.Ladders = append(r.Ladders, ladder)
		}
		if api == nil || !ladder.Exists {
			continue
		}
		landing, err := bound(ctx, api, c.Ladder)
		if err != nil {
			return r, err
		}
		r.addLanding(landing...)
	}
	for _, queue := range queues {
		target := topology.Target{Key: queue}
		r.addLanding(&landingReport{Queue: topology.Names{}.WithDefaults().Landing(target), Target: target})
	}

	return r, r.count(b, told, queues)
}

// ladder counts the messages that wait in a ladder. A ladder without three of its queues is taken
// to be missing: asking for the fifty others would be fifty errors in the log of the broker.
func (s *stat) ladder(b *inspect.Broker, told counts, l topology.Ladder) (*ladderReport, error) {
	r := &ladderReport{Name: l.Name(), Levels: []*levelReport{}, Missing: []string{}}
	r.Unroutable.Queue = l.Unroutable()
	var failed error // nothing is asked after it
	count := func(queue string) (messages int64, there bool) {
		if failed != nil {
			return 0, false
		}
		var n int
		n, there, failed = ready(b, queue)
		return int64(n), there
	}
	for _, queue := range inspect.Signs(l) {
		_, there := count(queue)
		r.Exists = r.Exists || there
	}
	if failed != nil || !r.Exists {
		return r, failed
	}

	there := false
	if r.Unroutable.Messages, there = count(l.Unroutable()); !there {
		r.Missing = append(r.Missing, l.Unroutable())
	}
	all := l.Shared().Queues
	for level := range l.Config.Levels {
		of := &levelReport{Level: level}
		for digit := 1; digit < l.Config.Radix; digit++ {
			name := l.WaitQueue(level, digit)
			q := all[slices.IndexFunc(all, func(q topology.Queue) bool { return q.Name == name })]
			n, there := count(name)
			if !there {
				r.Missing = append(r.Missing, name)
				continue
			}
			w := waiting{Messages: n, Undelivered: told[name].Undeliverable}
			if w.Undelivered != nil {
				w.Messages += *w.Undelivered
			}
			if w.Messages > 0 {
				w.MaxWait = milliseconds(l.Remaining(q).Milliseconds())
			}
			of.add(w)
			of.Queues = append(of.Queues, queueReport{name, config.FormatDelay(q.Delay), w, q.Delay})
		}
		r.Levels = append(r.Levels, of)
		r.Messages += of.Messages
		r.MaxWait = max(r.MaxWait, of.MaxWait)
	}

	return r, failed
}

// bound are the landing queues of a ladder, by the bindings of its delivery exchange.
func bound(ctx context.Context, api *httpapi.Client, l topology.Ladder) ([]*landingReport, error) {
	bindings, err := api.BindingsFrom(ctx, l.Delivery())
	if err != nil {
		return nil, err
	}
	var all []*landingReport
	for _, b := range bindings {
		if target, ok := inspect.LandingTarget(l, b); ok {
			all = append(all, &landingReport{Queue: b.Queue, Target: target})
		}
	}

	return all, nil
}

func (r *report) addLanding(landing ...*landingReport) {
	for _, l := range landing {
		if !slices.ContainsFunc(r.Landing, func(o *landingReport) bool { return o.Queue == l.Queue }) {
			r.Landing = append(r.Landing, l)
		}
	}
}

// count counts what lies in landing queues, and leaves out empty ones, unless their queue was
// named.
func (r *report) count(b *inspect.Broker, told counts, queues []string) error {
	kept := []*landingReport{}
	for _, l := range r.Landing {
		asked := l.Target.Exchange == "" && slices.Contains(queues, l.Target.Key)
		found, known := told[l.Queue]
		if l.Messages, l.Exists = found.Messages, known; told == nil || !known {
			var err error // it may be newer than the list
			if _, l.Exists, err = ready(b, l.Queue); err != nil {
				return err
			}
		}
		if asked || l.Messages != nil && *l.Messages > 0 {
			kept = append(kept, l)
		}
	}
	slices.SortFunc(kept, func(a, b *landingReport) int { return strings.Compare(a.Queue, b.Queue) })
	r.Landing = kept

	return nil
}

func (s *stat) print(r report) error {
	p := s.Printer()
	if len(r.Ladders) == 0 {
		s.Note("there is no ladder on this virtual host; pass the policy file that has it (--policies), or its name " +
			"(--ladder)")
	}
	for i, l := range r.Ladders {
		if i > 0 {
			p.Line("")
		}
		s.printLadder(p, l, r.API)
	}
	if len(r.Landing) > 0 {
		if len(r.Ladders) > 0 {
			p.Line("")
		}
		s.printLanding(p, r)
	}

	return p.Err()
}

func (s *stat) printLadder(p *cli.Printer, l *ladderReport, api bool) {
	if !l.Exists {
		p.Line("ladder %s: it does not exist; %s", cli.Safe(l.Name), l.declare)
		return
	}
	text := fmt.Sprintf("ladder %s: %s", l.Name, cli.Times(l.Messages, "message"))
	if l.Messages > 0 {
		text += fmt.Sprintf(", for at most %s from now", l.MaxWait)
	}
	p.Line("%s", cli.Safe(text))
	columns := 4
	if api {
		columns++
	}
	var rows [][]string
	for _, of := range l.Levels {
		if len(of.Queues) == 0 { // all are missing
			continue
		}
		last := of.Queues[len(of.Queues)-1]
		row := []string{fmt.Sprint(of.Level), cli.ShortDuration(of.Queues[0].delay) + " to " +
			cli.ShortDuration(last.delay),
			fmt.Sprint(of.Messages), wait(of.waiting), number(of.Undelivered)}
		rows = append(rows, row[:columns])
	}
	p.Table([]string{"level", "delays", "messages", "max. wait", "overdue"}[:columns], rows)
	if p.Err() != nil {
		return
	}
	if n := l.Unroutable.Messages; n > 0 {
		s.Warn("%s: %s that no target takes; `amqpretry delays unroutable list` lists them", l.Unroutable.Queue,
			cli.Times(n, "message"))
	}
	if n := len(l.Missing); n > 0 {
		s.Warn("%s: %s missing, such as %s; %s", l.Name, cli.Times(n, "queue"), l.Missing[0], l.declare)
	}
}

func wait(w waiting) string {
	if w.Messages == 0 {
		return "-"
	}

	return w.MaxWait.String()
}

func (s *stat) printLanding(p *cli.Printer, r report) {
	var rows [][]string
	var full, unknown []string
	for _, l := range r.Landing {
		messages := number(l.Messages)
		switch {
		case !l.Exists:
			messages = "does not exist"
		case l.Messages == nil:
			unknown = append(unknown, l.Queue)
		case *l.Messages > 0:
			full = append(full, l.Queue)
		}
		rows = append(rows, []string{l.Queue, l.Target.String(), messages})
	}
	p.Table([]string{"landing queue", "target", "messages"}, rows)
	if p.Err() != nil {
		return
	}
	if len(full) > 0 {
		s.Warn("%s: if these messages stay, their target is missing, full or down: declare it (start its service), "+
			"drain it, or start its nodes. The messages follow within 3 minutes. They cannot be consumed, and "+
			"deleting the landing queue discards them", strings.Join(full, ", "))
	}
	switch {
	case len(unknown) > 0 && !r.API:
		s.Note("AMQP does not tell what landing queues hold: set %s, or --management-url", cli.EnvManagement)
	case len(unknown) > 0:
		s.Note("%s: the management API has no statistics yet: run the command again in 10 seconds",
			strings.Join(unknown, ", "))
	}
}

func number(n *int64) string {
	if n == nil {
		return "?"
	}
	return fmt.Sprint(*n)
}
