package dlqcmd

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/amqpretry/watermill-retry/amqpretry/dlq"
	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/cli"
	"github.com/amqpretry/watermill-retry/internal/httpapi"
	"github.com/amqpretry/watermill-retry/internal/units"
)

// watcher looks at dead-letter queues again and again.
type watcher struct {
	*tool
	interval, readEvery time.Duration
	readMost            int
	once                bool
	replayed            string // an undo file
	management          *httpapi.Client
	queues              []*watched
}

// watched is a dead-letter queue, and what is known of it.
type watched struct {
	watchLine
	queue     queue
	counted   bool      // Messages was counted while nobody else held messages
	dipped    bool      // the last look has counted fewer
	readDepth int       // Messages when it was read last
	tried     time.Time // to read it
	shown     time.Time // ReadAt of the last line
	printed   int       // Messages of the last line
	key       string
	err       error
}

// watchLine is what is told of a queue.
type watchLine struct {
	At        time.Time    `json:"at"`
	Queue     string       `json:"queue"`
	MainQueue string       `json:"main_queue"`
	Messages  int          `json:"messages"`
	Change    int          `json:"change"`
	Arrived   int          `json:"arrived"`
	Hidden    int          `json:"hidden,omitempty"`
	Consumers int          `json:"consumers"`
	Problem   string       `json:"problem,omitempty"`
	Since     time.Time    `json:"since,omitzero"`
	ReadAt    time.Time    `json:"read_at,omitzero"`
	Read      int          `json:"read,omitempty"`
	Parked    int          `json:"parked,omitempty"`
	Unread    string       `json:"unread,omitempty"`
	Causes    []watchCause `json:"causes,omitempty"`
	Replay    *watchReplay `json:"replay,omitempty"`
}

type watchCause struct {
	Fingerprint string `json:"fingerprint"`
	Messages    int    `json:"messages"`
	ErrorType   string `json:"error_type"`
	Handler     string `json:"handler"`
	Error       string `json:"error"`
}

// watchReplay is what has become of the messages of a replay; Pending and Handled are nil where
// nobody tells.
type watchReplay struct {
	Run         string `json:"run"`
	Sent        int    `json:"sent"`
	FailedAgain int    `json:"failed_again"`
	Pending     *int64 `json:"pending,omitempty"`
	Handled     *int   `json:"handled,omitempty"`
}

// watchCauses are how many causes are told.
const watchCauses = 10

func (t *tool) watching() *cobra.Command {
	w := &watcher{tool: t}
	cmd := &cobra.Command{
		Use:   "watch QUEUE...",
		Short: "Watch dead-letter queues: depth, arrivals, causes, and the fate of a replay",
		Long: `Watch dead-letter queues until ^C. On a terminal the command draws the numbers anew at each
--interval. Elsewhere it prints a line for each queue when something has changed.

Counting does not touch the messages. To tell the causes, the command reads a queue, as "dlq stat"
does, when its depth has changed, at most once each --read-every, and only while it has no more than
--read-most messages. Others cannot see the messages meanwhile. It does not read while somebody else
does, and so several can watch.

ARRIVED counts at least the messages that came since the command began: not those that came and left
between two looks, or while the queue had a consumer. The count is too low while a consumer, such as a
browse or a run, holds messages.

If a queue or the broker is gone, the command says since when, and goes on when it is back.

--replayed FILE takes the undo file of a replay, and shows what became of its messages: how many have
failed again; with the management API also how many are handled at least, and how many may still be in
the main queue or wait for a retry.

^C ends it with exit code 130. With --once: one look, which fails if a queue cannot be counted.

With --json: JSON Lines, {"at", "queue", "main_queue", "messages", "change", "arrived", "hidden",
"consumers", "problem", "since", "read_at", "read", "parked", "unread", "causes": [{"fingerprint",
"messages", "error_type", "handler", "error"}], "replay": {"run", "sent", "failed_again", "pending",
"handled"}}. "problem" is why the numbers are old, with "since"; "unread" is why the causes are.`,
		Example: `  amqpretry dlq watch orders billing
  amqpretry dlq watch orders --replayed orders.dlq-replay-20261122T051200Z.jsonl
  amqpretry dlq watch orders --interval 1m --json >> dead-letters.jsonl`,
		Args: cobra.MinimumNArgs(1),
	}
	cmd.Flags().DurationVar(&w.interval, "interval", 5*time.Second, "time between two looks")
	cmd.Flags().BoolVar(&w.once, "once", false, "look once, and end")
	cmd.Flags().DurationVar(&w.readEvery, "read-every", 30*time.Second, "least time between two readings of a queue")
	cmd.Flags().IntVar(&w.readMost, "read-most", 10_000, "do not read queues with more messages; 0 reads none")
	cmd.Flags().Var(cli.Text(&w.replayed), "replayed", "undo `file` of a replay whose messages to follow")
	_ = cmd.MarkFlagFilename("replayed", "jsonl")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		switch {
		case w.interval < time.Second:
			return cli.Usage("--interval: must be 1s or more, got %s", w.interval)
		case w.readEvery <= 0 || w.readMost < 0:
			return cli.Usage("--read-every must be more than 0, and --read-most 0 or more")
		case len(args) > 1 && (t.deadLetterQueue != "" || w.replayed != ""):
			return cli.Usage("--dead-letter-queue and --replayed are for one QUEUE, got %d", len(args))
		}
		return w.open(cmd.Context(), args, w.watch)
	}

	return cmd
}

// open connects for each queue.
func (w *watcher) open(ctx context.Context, mainQueues []string, do func(context.Context) error) (err error) {
	if len(mainQueues) == 0 {
		if w.replayed != "" {
			if w.queues[0].Replay, err = sentBy(w.replayed, w.queues[0].queue.MainQueue()); err != nil {
				return err
			}
			if w.management, err = w.ManagementClient(""); err != nil {
				return err
			}
		}
		return do(ctx)
	}

	return w.with(ctx, mainQueues[0], func(q queue) error {
		w.queues = append(w.queues, &watched{queue: q, readDepth: -1,
			watchLine: watchLine{Queue: q.Name(), MainQueue: q.MainQueue()}})
		return w.open(ctx, mainQueues[1:], do)
	})
}

func (w *watcher) watch(ctx context.Context) error {
	for {
		for _, d := range w.queues {
			w.look(ctx, d)
		}
		if ctx.Err() != nil {
			return &cli.ExitError{Code: cli.ExitInterrupted}
		}
		if err := w.print(); err != nil || w.once {
			var errs []error
			for _, d := range w.queues {
				errs = append(errs, d.err)
			}
			return errors.Join(append(errs, err)...)
		}
		select {
		case <-ctx.Done():
			return &cli.ExitError{Code: cli.ExitInterrupted}
		case <-time.After(w.interval):
		}
	}
}

// lookTime bounds the questions of one look.
const lookTime = 15 * time.Second

// look counts a queue, and reads it if that is worth it.
func (w *watcher) look(ctx context.Context, d *watched) {
	bounded, cancel := context.WithTimeout(ctx, lookTime)
	defer cancel()
	d.At = w.Now().UTC()
	before, err := d.queue.Consumers(bounded)
	ready, hidden, err2 := d.queue.Ready(bounded)
	after, err3 := d.queue.Consumers(bounded)
	if d.err = cmp.Or(err, err2, err3); d.err != nil {
		if d.Problem == "" {
			d.Since = d.At
		}
		d.Problem = d.err.Error()
		if errors.As(d.err, new(*dlq.NoQueueError)) {
			d.Problem = "the queue does not exist"
		}
		return
	}
	d.Problem, d.Since, d.Hidden, d.Consumers = "", time.Time{}, hidden, max(before, after)
	d.count(ready)
	w.read(ctx, d)
	w.follow(bounded, d)
}

// count takes a new depth. What others hold is not in it, and comes back: that is no arrival. After
// a browse, the broker may count for a moment what it had before: so it takes two looks to believe
// that messages have gone.
func (d *watched) count(ready int) {
	undisturbed := d.Consumers == 0
	if undisturbed && d.counted && ready < d.Messages && !d.dipped {
		d.dipped = true
		return
	}
	if undisturbed && d.counted && !d.dipped {
		d.Arrived += max(0, ready-d.Messages)
	}
	d.Messages, d.counted, d.dipped = ready, undisturbed, false
}

// read tells the causes.
func (w *watcher) read(ctx context.Context, d *watched) {
	switch {
	case d.Consumers > 0:
		return
	case d.Messages == d.readDepth:
		d.Unread = ""
		return
	case d.Messages > w.readMost:
		d.Unread = fmt.Sprintf("%s, more than --read-most %s", units.Many(d.Messages, "message"),
			units.Thousands(w.readMost))
		return
	case w.Now().Sub(d.tried) < w.readEvery:
		return
	}
	d.tried = w.Now()
	stat, err := d.queue.Stat(ctx, dlq.Filter{})
	if err != nil && !isIncomplete(err) {
		if d.Unread = err.Error(); errors.As(err, new(*dlq.BusyError)) {
			d.Unread = "somebody else reads the queue"
		}
		return
	}
	d.Unread, d.ReadAt, d.Read, d.Parked, d.readDepth = "", w.Now().UTC(), stat.Seen, stat.Parked, d.Messages
	d.Causes = nil
	for _, count := range stat.ByFingerprint.Sorted() {
		if len(d.Causes) < watchCauses {
			cause := stat.Fingerprints[count.Name]
			d.Causes = append(d.Causes, watchCause{count.Name, count.N, cause.ErrorType, cause.Handler, cause.Pattern})
		}
	}
	if d.Replay != nil {
		d.Replay.FailedAgain = stat.ByReplay.ByName[d.Replay.Run]
	}
}

// follow tells how many messages of a replay may still be on their way.
func (w *watcher) follow(ctx context.Context, d *watched) {
	if d.Replay == nil || w.management == nil {
		return
	}
	queues, err := w.management.Counts(ctx)
	if err != nil {
		d.Replay.Pending, d.Replay.Handled = nil, nil
		return
	}
	pending := int64(0)
	for _, q := range queues {
		waits := strings.HasPrefix(q.Name, d.MainQueue+".retry.") || strings.HasPrefix(q.Name, "retry.") ||
			q.Name == d.MainQueue+".landing"
		if (waits || q.Name == d.MainQueue) && q.Messages != nil {
			pending += *q.Messages
		}
	}
	d.Replay.Pending, d.Replay.Handled = &pending, nil
	if !d.ReadAt.IsZero() {
		handled := dlq.Handled(d.Replay.Sent, d.Replay.FailedAgain, pending, int64(max(0, d.Messages-d.Read)))
		d.Replay.Handled = &handled
	}
}

// sentBy tells what the last replay in an undo file has sent to a queue.
func sentBy(path, queue string) (*watchReplay, error) {
	in, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("--replayed: %w", err)
	}
	defer func() { _ = in.Close() }()
	r := &watchReplay{}
	for lines := bufio.NewReader(in); ; {
		line, err := lines.ReadBytes('\n')
		var l struct{ Taken struct{ By, To, Run string } }
		if json.Unmarshal(line, &l) == nil && l.Taken.By == string(dlq.Replay) && l.Taken.To == queue {
			if l.Taken.Run != r.Run {
				r.Run, r.Sent = l.Taken.Run, 0
			}
			r.Sent++
		}
		switch {
		case errors.Is(err, io.EOF) && r.Sent == 0:
			return nil, cli.Usage("--replayed: %s is no undo file of a replay to %q", path, queue)
		case errors.Is(err, io.EOF):
			return r, nil
		case err != nil:
			return nil, fmt.Errorf("--replayed: %w", err)
		}
	}
}

// print draws all queues on a terminal; elsewhere it prints those that have changed.
func (w *watcher) print() error {
	if w.OutIsTerminal && !w.JSON && !w.once {
		return w.draw()
	}
	for _, d := range w.queues {
		line := d.watchLine
		line.At, line.ReadAt, line.Change = time.Time{}, time.Time{}, 0
		text, _ := json.Marshal(line) // texts, numbers and times
		if string(text) == d.key {
			continue
		}
		if d.key != "" {
			d.Change = d.Messages - d.printed
		}
		d.key, d.printed = string(text), d.Messages
		if w.JSON {
			if err := w.PrintJSONLine(d.watchLine); err != nil {
				return err
			}
			continue
		}
		if err := w.printSafe("%s  %s: %s", d.At.Format(time.RFC3339), d.Queue, d.summary()); err != nil {
			return err
		}
		if d.shown.Equal(d.ReadAt) {
			continue
		}
		d.shown = d.ReadAt
		if err := w.printCauses(d); err != nil {
			return err
		}
	}

	return nil
}

// draw begins at the top of the screen.
func (w *watcher) draw() error {
	if _, err := io.WriteString(w.Out, "\x1b[H\x1b[2J"); err != nil {
		return err
	}
	var rows [][]string
	for _, d := range w.queues {
		rows = append(rows, []string{d.Queue, units.Thousands(d.Messages), units.Thousands(d.Arrived),
			strconv.Itoa(d.Consumers), cmp.Or(d.trouble(), "-")})
	}
	err := w.Table([]string{"queue", "messages", "arrived", "consumers", "problem"}, rows)
	for _, d := range w.queues {
		if err == nil && (len(d.Causes) > 0 || d.Unread != "" || d.Replay != nil) {
			err = w.printSafe("\n%s: %s", d.Queue, d.reading(w.Now()))
		}
		if err == nil {
			err = w.printCauses(d)
		}
	}
	if err == nil {
		err = w.printSafe("\n%s, every %s; ^C ends", w.Now().UTC().Format(time.RFC3339), w.interval)
	}

	return err
}

func (w *watcher) printCauses(d *watched) error {
	if len(d.Causes) == 0 {
		return nil
	}
	var rows [][]string
	for _, c := range d.Causes {
		rows = append(rows, []string{units.Thousands(c.Messages), c.Fingerprint, cmp.Or(c.ErrorType, "-"),
			shorten(cmp.Or(c.Handler, "-"), maxNameCell), shorten(cmp.Or(c.Error, "-"), maxErrorCell)})
	}

	return w.Table([]string{"messages", "fingerprint", "error type", "handler", "error"}, rows)
}

// summary is a line about a queue.
func (d *watched) summary() string {
	if trouble := d.trouble(); trouble != "" {
		return trouble
	}
	text := units.Many(d.Messages, "message")
	if d.Change != 0 {
		text += fmt.Sprintf(" (%+d)", d.Change)
	}
	if d.Arrived > 0 {
		text += fmt.Sprintf(", %s arrived", units.Thousands(d.Arrived))
	}
	for _, part := range []string{d.parked(), d.unread(), d.Replay.String()} {
		if part != "" {
			text += "; " + part
		}
	}

	return text
}

// trouble is why the numbers are old; empty if they are not.
func (d *watched) trouble() string {
	if d.Problem == "" {
		return ""
	}

	return fmt.Sprintf("since %s: %s", d.Since.Format(time.RFC3339), d.Problem)
}

// reading says how old the causes are, and what became of a replay.
func (d *watched) reading(now time.Time) string {
	text := "not read"
	if !d.ReadAt.IsZero() {
		text = fmt.Sprintf("%s read %s ago", units.Many(d.Read, "message"), units.Elapsed(now.Sub(d.ReadAt)))
	}
	for _, part := range []string{d.parked(), d.unread(), d.Replay.String()} {
		if part != "" {
			text += "; " + part
		}
	}

	return text
}

func (d *watched) parked() string { return told(d.Parked > 0, units.Thousands(d.Parked)+" parked") }

func (d *watched) unread() string { return told(d.Unread != "", "causes not read: "+d.Unread) }

func (r *watchReplay) String() string {
	if r == nil {
		return ""
	}
	text := fmt.Sprintf("%s replayed: %s failed again", units.Thousands(r.Sent), units.Thousands(r.FailedAgain))
	if r.Pending != nil {
		text += fmt.Sprintf(", at most %s pending", units.Thousands(int(*r.Pending)))
	}
	if r.Handled != nil {
		text += fmt.Sprintf(", at least %s handled", units.Thousands(*r.Handled))
	}

	return text
}
