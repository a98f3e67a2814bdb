package dlqcmd

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rabbitmq/amqp091-go"
	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/amqpretry/dlq"
	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/cli"
	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/retry"
)

var now = time.Date(2026, 11, 22, 5, 12, 0, 0, time.UTC)

// fake is a dead-letter queue in memory, with the promises of package dlq: it stands for that
// package, never for RabbitMQ.
type fake struct {
	name, mainQueue string
	deadLetters     []dlq.DeadLetter

	// failAfter ends runs after so many messages, with an error.
	failAfter int
	failWith  error
	// browseWith ends every browse at once.
	browseWith error
	// unsettled is what such a run has sent and not taken out.
	unsettled int
	// undoRoom is how many of these the undo file has; 0: all.
	undoRoom int
	// refused is what its target has not taken.
	refused int
	// after is called when so many messages are done.
	after func(done int)
	// onReplay is called when one that is not dry begins.
	onReplay func()
	// hidden are those that the broker holds back; missed those that others have taken meanwhile.
	hidden, missed int
	// missing is a queue that is not there.
	missing string
	// deadAgain are those of a canary; silent is true when nothing is heard of it.
	deadAgain int
	silent    bool

	replayed  dlq.Plan
	published []amqp091.Publishing
	imported  []string // the lines
	runs      int      // those that were not dry
	opened    int
}

func deadLetters(n int) []dlq.DeadLetter {
	all := make([]dlq.DeadLetter, n)
	for i := range all {
		all[i] = deadLetter(i + 1)
	}
	return all
}

// deadLetter died so many minutes ago.
func deadLetter(n int) dlq.DeadLetter {
	return dlq.DeadLetter{
		Position: n, UUID: fmt.Sprintf("uuid-%d", n),
		DeadLetter: retry.DeadLetter{
			Reason: "exhausted", Error: fmt.Sprintf("card %d declined", n), ErrorType: "*cards.DeclinedError",
			Queue: "orders", Topic: "orders", Handler: "charge", Host: "host-1", Calls: 4, Exchange: "events",
			RoutingKey:   "order.created",
			FirstFailure: now.Add(-2 * time.Hour), LastFailure: now.Add(-time.Duration(n) * time.Minute),
			History: []retry.FailedCall{{Number: 1, At: now.Add(-2 * time.Hour), Error: "timeout", Type: "*url.Error"},
				{Number: 4, At: now, Error: "declined"}},
		},
		Message: amqp091.Publishing{
			ContentType: "application/json", DeliveryMode: amqp091.Persistent, Body: []byte(fmt.Sprintf(`{"n":%d}`, n)),
			Headers: amqp091.Table{"tenant": "acme", "amqpretry-count": "-1"},
		},
		CameBy: dlq.Route{Exchange: "orders.retry"},
	}
}

func orders(deadLetters ...dlq.DeadLetter) *fake {
	return &fake{name: "orders.dlq", mainQueue: "orders", deadLetters: deadLetters}
}

func (f *fake) Name() string      { return f.name }
func (f *fake) MainQueue() string { return f.mainQueue }

func (f *fake) Ready(context.Context) (ready, hidden int, err error) {
	if f.missing == f.name {
		return 0, 0, &dlq.NoQueueError{Queue: f.name, What: "dead-letter queue"}
	}
	return len(f.deadLetters), f.hidden, nil
}

func (f *fake) Consumers(context.Context) (int, error) { return 0, nil }

func (f *fake) Browse(ctx context.Context, filter dlq.Filter) iter.Seq2[dlq.DeadLetter, error] {
	return func(yield func(dlq.DeadLetter, error) bool) {
		if _, _, err := f.Ready(ctx); err != nil {
			yield(dlq.DeadLetter{}, err)
			return
		}
		if f.browseWith != nil {
			yield(dlq.DeadLetter{}, f.browseWith)
			return
		}
		for i := range f.deadLetters {
			if filter.Matches(&f.deadLetters[i], now) && !yield(f.deadLetters[i], nil) {
				return
			}
		}
		if f.missed > 0 {
			yield(dlq.DeadLetter{}, &dlq.IncompleteError{Queue: f.name, Total: len(f.deadLetters) + f.missed,
				Missing: f.missed})
		}
	}
}

func (f *fake) Get(ctx context.Context, uuid string) (dlq.DeadLetter, error) {
	for l, err := range f.Browse(ctx, dlq.Filter{UUIDs: []string{uuid}}) {
		return l, err
	}
	return dlq.DeadLetter{}, &dlq.NotFoundError{Queue: f.name, UUID: uuid, Seen: len(f.deadLetters)}
}

func (f *fake) Stat(ctx context.Context, filter dlq.Filter) (dlq.Stat, error) {
	s := dlq.Stat{Ready: len(f.deadLetters), Seen: len(f.deadLetters), Fingerprints: map[string]dlq.Fingerprint{}}
	counts := func(c *dlq.Counts, name string) {
		if c.ByName == nil {
			c.ByName = map[string]int{}
		}
		c.ByName[name]++
	}
	for l, err := range f.Browse(ctx, filter) {
		if err != nil {
			return s, err
		}
		s.Matched++
		s.Bytes += int64(len(l.Message.Body))
		s.Oldest, s.Newest = l.LastFailure, now
		counts(&s.ByReason, string(l.Reason))
		counts(&s.ByTopic, l.Topic)
		counts(&s.ByHandler, l.Handler)
		counts(&s.ByErrorType, l.ErrorType)
		fingerprint := l.Fingerprint()
		counts(&s.ByFingerprint, fingerprint.ID)
		s.Fingerprints[fingerprint.ID] = fingerprint
	}
	return s, nil
}

func (f *fake) Plan(ctx context.Context, p dlq.Plan) (dlq.Plan, error) {
	limit := p.Limit
	p.Limit = 0
	report, err := f.drain(ctx, p, true)
	p.Limit, p.Counted = limit, &report

	return p, err
}

func (f *fake) Run(ctx context.Context, p dlq.Plan) (dlq.Report, error) {
	f.replayed = p
	if p.Counted != nil {
		p.Limit = p.Most()
	}
	r, err := f.drain(ctx, p, false)
	if p.Counted != nil && err == nil && r.Done == p.Counted.Can() {
		r.Matched, r.Left = p.Counted.Matched, p.Counted.Left
	}

	return r, err
}

// canary tells what becomes of the canary of a plan, and how many go then.
func (f *fake) canary(p dlq.Plan) (canary dlq.CanaryReport, limit int) {
	if p.Messages == 0 {
		return canary, p.Limit
	}
	canary = dlq.CanaryReport{Watched: len(f.deadLetters) > p.Messages, Sent: p.Messages, DeadLettered: f.deadAgain,
		Handled: p.Messages - f.deadAgain}
	if f.silent {
		canary.Handled, canary.Unresolved = 0, p.Messages-f.deadAgain
	}
	if limit = p.Limit; f.deadAgain+canary.Unresolved > p.Tolerate {
		canary.Stopped = canary.String()
		limit = p.Messages
	}
	if p.OnChange != nil {
		p.OnChange(canary)
	}

	return canary, limit
}

// send publishes a message, or tells why not.
func (f *fake) send(p dlq.Plan, l dlq.DeadLetter, dryRun bool) dlq.LeftReason {
	switch {
	case p.Kind == dlq.Replay && l.Unreadable != "":
		return dlq.LeftUnreadable
	case p.Kind == dlq.Replay && l.Queue != f.mainQueue && !p.Foreign:
		return dlq.LeftForeign
	case dryRun || p.Kind == dlq.Purge:
		return ""
	}
	m := l.Message
	if p.Edit != nil {
		if err := p.Edit(&m); err != nil {
			return dlq.LeftEdit
		}
	}
	if c := p.Change; c != nil {
		if c.Body != nil {
			m.Body = []byte(*c.Body)
		}
		headers := amqp091.Table{}
		for name, value := range m.Headers {
			if !slices.Contains(c.Remove, name) {
				headers[name] = value
			}
		}
		for name, value := range c.Set {
			headers[name] = value.Value
		}
		m.Headers = headers
	}
	f.published = append(f.published, m)

	return ""
}

// drain takes out what matches, and sends it before.
func (f *fake) drain(ctx context.Context, p dlq.Plan, dryRun bool) (dlq.Report, error) {
	r := dlq.Report{Progress: dlq.Progress{Total: len(f.deadLetters)}, Left: []dlq.Left{}}
	if _, _, err := f.Ready(ctx); err != nil {
		return r, err
	}
	if target := cmp.Or(p.To, f.mainQueue); p.Kind == dlq.Replay && f.missing == target {
		return r, &dlq.NoQueueError{Queue: target, What: "target"}
	}
	if p.To == f.name {
		return r, &config.FieldError{Path: "Plan.To", Wanted: "another queue", Found: p.To}
	}
	if p.Kind == dlq.Replay {
		r.Run = "RUN"
	}
	limit := p.Limit
	if !dryRun {
		f.runs++
		if f.onReplay != nil {
			f.onReplay()
		}
		r.Canary, limit = f.canary(p)
	}
	left := map[dlq.LeftReason]int{}
	var kept []dlq.DeadLetter
	defer func() { f.deadLetters = kept }()
	err := f.each(ctx, p, limit, dryRun, &r, left, &kept)
	for why, n := range left {
		r.Left = append(r.Left, dlq.Left{Why: why, Messages: n})
	}
	slices.SortFunc(r.Left, func(a, b dlq.Left) int { return b.Messages - a.Messages })

	return r, err
}

func (f *fake) each(ctx context.Context, p dlq.Plan, limit int, dryRun bool, r *dlq.Report,
	left map[dlq.LeftReason]int, kept *[]dlq.DeadLetter) error {
	undo := p.Undo
	for i, l := range f.deadLetters {
		sent := r.Done
		if dryRun {
			sent = r.Matched
		}
		if limit > 0 && sent >= limit || r.Done == f.failAfter && f.failWith != nil && !dryRun || ctx.Err() != nil {
			*kept = append(*kept, f.deadLetters[i:]...)
			if ctx.Err() != nil || f.failWith != nil {
				r.Unsettled, r.Refused = f.unsettled, f.refused
			}
			for _, l := range f.deadLetters[i : i+cmp.Or(f.undoRoom, r.Unsettled+r.Refused)] {
				if undo != nil {
					_ = json.NewEncoder(undo).Encode(l)
				}
			}
			if ctx.Err() != nil {
				return ctx.Err()
			}
			return f.failWith
		}
		r.Seen++
		if !p.Filter.Matches(&l, now) {
			*kept = append(*kept, l)
			continue
		}
		r.Matched++
		if why := f.send(p, l, dryRun); why != "" || dryRun {
			*kept = append(*kept, l)
			if why != "" {
				left[why]++
			}
			continue
		}
		if undo != nil {
			if err := json.NewEncoder(undo).Encode(l); err != nil {
				*kept = append(*kept, f.deadLetters[i:]...)
				return err
			}
		}
		r.Done++
		if p.Progress != nil {
			p.Progress(r.Progress)
		}
		if f.after != nil {
			f.after(r.Done)
		}
	}

	return nil
}

func (f *fake) Export(ctx context.Context, w io.Writer, o dlq.ExportOptions) (dlq.Report, error) {
	r := dlq.Report{Progress: dlq.Progress{Total: len(f.deadLetters)}}
	for l, err := range f.Browse(ctx, o.Filter) {
		if err != nil {
			return r, err
		}
		if f.failWith != nil && r.Done == f.failAfter {
			return r, f.failWith
		}
		if o.Limit > 0 && r.Done == o.Limit {
			break
		}
		if err := json.NewEncoder(w).Encode(l); err != nil {
			return r, err
		}
		r.Matched++
		r.Done++
	}
	return r, nil
}

func (f *fake) Import(ctx context.Context, in io.Reader, o dlq.ImportOptions) (dlq.Report, error) {
	var r dlq.Report
	text, err := io.ReadAll(in)
	if err != nil {
		return r, err
	}
	all := strings.SplitAfter(string(text), "\n")
	for i, line := range all[:len(all)-1] {
		if i < o.Skip {
			continue
		}
		if f.failWith != nil && r.Done == f.failAfter {
			return r, f.failWith
		}
		if err := ctx.Err(); err != nil {
			return r, err
		}
		r.Seen++
		r.Matched++
		if o.DryRun {
			continue
		}
		f.imported = append(f.imported, strings.TrimSpace(line))
		r.Done++
		if o.Imported != nil {
			if err := o.Imported(i + 1); err != nil {
				return r, err
			}
		}
		if f.after != nil {
			f.after(r.Done)
		}
	}
	r.Truncated = all[len(all)-1] != ""
	return r, nil
}

func (f *fake) Close() error { return nil }

// world is where a command runs.
type world struct {
	cli.Session
	ctx    context.Context
	broker string
}

// run runs a command line below "amqpretry dlq", in a folder of its own unless the test has chosen
// one.
func (f *fake) run(t *testing.T, set func(*world), args ...string) (code int, out, errs string) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	w := &world{ctx: t.Context(), broker: "rabbit@one"}
	w.Session = cli.Session{In: strings.NewReader(""), Out: &stdout, Err: &stderr, Getenv: func(name string) string {
		return map[string]string{"NO_COLOR": "1"}[name]
	}, Now: func() time.Time { return now }}
	if set != nil {
		set(w)
	}
	code = cli.Run(w.ctx, &w.Session, append([]string{"dlq"}, args...), func(s *cli.Session) *cobra.Command {
		return (&tool{
			Session: s,
			open: func(_ context.Context, name, mainQueue string) (queue, io.Closer, error) {
				f.opened++
				f.mainQueue, f.name = mainQueue, cmp.Or(name, mainQueue+suffix)
				return f, f, nil
			},
			broker: func(context.Context) (string, error) { return w.broker, nil },
		}).command()
	})

	return code, stdout.String(), stderr.String()
}

// terminal answers questions.
func terminal(answer string) func(*world) {
	return func(w *world) {
		w.InIsTerminal, w.OutIsTerminal, w.ErrIsTerminal = true, true, false // no bar
		w.In = strings.NewReader(answer)
	}
}

var errBroken = errors.New("the broker has gone away")

func write(t *testing.T, path, text string) {
	t.Helper()
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	return string(text)
}
