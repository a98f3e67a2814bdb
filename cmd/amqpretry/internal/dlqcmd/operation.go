package dlqcmd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/amqpretry/watermill-retry/amqpretry/dlq"
	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/cli"
	"github.com/amqpretry/watermill-retry/internal/units"
)

// operation takes messages out of a dead-letter queue: a replay, a move, a purge. First it is done
// dry, to show what it would do.
type operation struct {
	verb, past string // replay, replayed
	to         string // where to; empty for nowhere
	do         func(context.Context, step) (outcome, error)
	remarks    func(outcome) []string // further things to say of what was done; nil for none
	messages   []dlq.DeadLetter       // those that the command line names; none if it names none
	byPosition bool                   // it names one by its position
}

// step is what differs between the dry run and the real one.
type step struct {
	dryRun   bool
	limit    int
	undo     io.Writer
	progress func(dlq.Progress)
	// settled is called with the outcome before the rest goes back in order, which can take long;
	// nil for a dry run.
	settled func(outcome, error)
}

// reported is what package dlq calls for a run that has nothing to say but its report.
func (s step) reported(r dlq.Report, err error) {
	if s.settled != nil {
		s.settled(outcome{Report: r}, err)
	}
}

type outcome struct {
	dlq.Report
	run     string
	canary  *dlq.CanaryReport // nil without one
	editing error
	// whole is true when the queue was seen to its end, so that it is known how many match.
	whole   bool
	limited bool // ended by --limit
	// undone is how many messages the undo file has, of a run that has failed.
	undone int
}

// seen is an outcome with how far it has come, of a run that could take so many; 0 is all.
func (o outcome) seen(limit int, err error) outcome {
	o.limited = err == nil && limit > 0 && o.Done >= limit
	o.whole = err == nil && !o.stopped() && !o.limited
	return o
}

// stopped tells whether the canary has stopped it.
func (o outcome) stopped() bool { return o.canary != nil && o.canary.Stopped != "" }

// asPlanned is an outcome that has ended when all was done that was shown and asked for: what lies
// behind that is known from then.
func (o outcome) asPlanned(planned outcome) outcome {
	o.whole, o.limited, o.Matched = true, false, max(o.Matched, planned.Matched)
	if planned.left() > o.left() {
		o.Left, o.editing = planned.Left, planned.editing
	}
	return o
}

func (o outcome) left() int {
	left := 0
	for _, n := range o.Left {
		left += n
	}
	return left
}

// operationFlags are what all operations have.
type operationFlags struct {
	undoFlags
	yes, dryRun bool
	limit       int
}

func (f *operationFlags) add(cmd *cobra.Command) { f.addFor(cmd, "QUEUE"+suffix) }

// addFor adds them to a command about a queue whose name is written like that in the help.
func (f *operationFlags) addFor(cmd *cobra.Command, queue string) {
	cmd.Flags().BoolVar(&f.yes, "yes", false, "run without asking for confirmation")
	cmd.Flags().BoolVar(&f.dryRun, "dry-run", false, "print what the command would do, and stop")
	cmd.Flags().IntVar(&f.limit, "limit", 0, "maximum number of messages, oldest first; 0 means all matches")
	cmd.MarkFlagsMutuallyExclusive("yes", "dry-run")
	f.undoFlags.add(cmd, queue)
}

const operationJSON = `

With --json: one object, {"queue", "main_queue", "to", "dry_run", "total", "seen", "matched",
"done", "unsettled", "refused", "hidden", "consumers", "left": [{"why", "messages"}], "undo",
"messages": [{"position", "uuid"}]}. Without --yes it is a dry run. Absent or special values:
  matched    absent when --limit or an interrupt ended the run before the end of the queue
  messages   the messages that MESSAGE names; absent without MESSAGE
  unsettled  messages that were sent or written to the undo file, and whose removal from the queue is
             not confirmed
  refused    messages that a full queue rejected; they are still in the dead-letter queue
  hidden     messages that the broker holds until their x-opt-delivery-time (RabbitMQ 4.4 and
             later); -1 if only the management API could tell
  target     what is known of the queue "to": {"queue", "type", "ready", "consumers", "max_length",
             "max_length_bytes", "overflow", "message_ttl", "dead_letters", "unknown"}
  would_drop messages that would not stay in the target; "warnings" has it and more in words
  dropped    sent messages that are not in the target, although it had no consumer
  consumers  other consumers of the queue; the messages that they hold are not visible`

// interrupted is what is said after ^C. The undo file of a run is not overwritten by the next one.
func interrupted(f *operationFlags, undo string, failed error) error {
	where, next := "still in the queue", "the same command"
	if errors.As(failed, new(*dlq.OrderError)) {
		where = "in the queue, in another order"
	}
	if f.path != "" && undo != "" {
		next += " with another --undo file"
	}

	return cli.Interrupted("interrupted: the remaining messages are %s; run %s to continue", where, next)
}

// run does an operation, or says what it would do.
func (t *tool) run(ctx context.Context, q queue, e operation, f *operationFlags) error {
	if f.limit < 0 {
		return cli.Usage("--limit: must be 0 or more, got %d", f.limit)
	}
	var planned outcome
	limit := f.limit
	if !f.yes {
		var err error
		planned, err = t.step(ctx, q, e, step{dryRun: true}) // all that match, whatever the limit
		if err != nil {
			return err
		}
		if err := t.printPlan(q, e, planned, limit); err != nil {
			return err
		}
		t.noteUnseen(q, planned.Consumers, planned.Hidden)
		switch {
		case planned.Can() == 0:
			return nil
		case f.dryRun || t.JSON || !t.InIsTerminal:
			t.Warn("This was a dry run: nothing was %s. %s", e.past, e.doIt())
			return nil
		}
		// Those that were shown, and none that has come meanwhile.
		limit = planned.Can()
		if f.limit > 0 {
			limit = min(limit, f.limit)
		}
		if err := t.Confirm(e.question(limit), false); err != nil {
			return err
		}
	}

	undo, err := f.create(e.verb, q, t.Now())
	if err != nil {
		return err
	}
	var (
		done    outcome
		path    string
		told    bool
		notTold error
	)
	tell := func(o outcome, failed error) { // at once: a second ^C ends the process
		told = true
		if done = o.seen(limit, failed); done.limited && limit != f.limit {
			done = done.asPlanned(planned)
		}
		path, notTold = undo.close()
		if (failed != nil || notTold != nil) && path != "" {
			done.undone = linesOf(path)
		}
		// What has failed before it began has no numbers.
		if failed == nil && notTold == nil || done.Seen > 0 || t.JSON {
			if err := t.printOutcome(q, e, done, path); !errors.Is(err, cli.ErrNobodyReads) {
				notTold = errors.Join(notTold, err)
			}
		}
	}
	o, failed := t.step(ctx, q, e, step{limit: limit, undo: undo.writer(), settled: tell})
	if !told {
		tell(o, failed)
	}
	if failed == nil && f.yes {
		defer t.noteUnseen(q, done.Consumers, done.Hidden)
	}
	failed = errors.Join(failed, notTold)

	switch {
	case failed != nil && ctx.Err() != nil:
		return interrupted(f, path, failed)
	case failed != nil:
		return failed
	case done.stopped() || done.left() > 0:
		return &cli.ExitError{Code: cli.ExitIncomplete}
	default:
		return nil
	}
}

// step runs once, with a progress bar.
func (t *tool) step(ctx context.Context, q queue, e operation, s step) (outcome, error) {
	title := e.verb
	if s.dryRun {
		title = "count"
	}
	bar := t.Progress(title+" "+q.Name(), 0)
	defer bar.Close()
	begun := t.tellOfWait(q)
	defer begun()
	if settled := s.settled; settled != nil {
		s.settled = func(o outcome, err error) {
			bar.Close()
			settled(o, err)
		}
	}
	s.progress = func(p dlq.Progress) {
		begun()
		if s.limit > 0 && !s.dryRun {
			bar.SetTotal(min(s.limit, p.Total))
			bar.Set(p.Done)
			return
		}
		bar.SetTotal(p.Total)
		bar.Set(p.Seen)
	}

	return e.do(ctx, s)
}

// startWait is how long a run may take to its first message before the user is told.
const startWait = time.Second

// tellOfWait tells that a run has not begun, unless begun is called soon: runs on a queue wait for
// each other.
func (t *tool) tellOfWait(q queue) (begun func()) {
	told := make(chan struct{})
	timer := time.AfterFunc(startWait, func() {
		defer close(told)
		t.Note("%s: waiting to begin: another command may be working on this queue", q.Name())
	})
	return sync.OnceFunc(func() {
		if !timer.Stop() {
			<-told
		}
	})
}

// question is what is asked before it is done.
func (e operation) question(n int) string {
	verb := strings.ToUpper(e.verb[:1]) + e.verb[1:]
	if e.to == "" {
		return fmt.Sprintf("%s %s?", verb, units.Many(n, "message"))
	}
	return fmt.Sprintf("%s %s to %s?", verb, units.Many(n, "message"), e.to)
}

// doIt tells how to do what a dry run has shown.
func (e operation) doIt() string {
	if e.byPosition {
		return "To do it, pass UUIDs instead of positions, with --yes; or answer the question on a terminal."
	}
	return "--yes does it."
}

// where is " to orders".
func (e operation) where() string {
	if e.to == "" {
		return ""
	}
	return " to " + e.to
}

// printPlan says what would be done.
func (t *tool) printPlan(q queue, e operation, o outcome, limit int) error {
	if t.JSON {
		o.whole = true
		return t.PrintJSON(result(q, e, o, "", true))
	}
	if len(e.messages) > 0 {
		var rows [][]string
		for _, l := range e.messages {
			rows = append(rows, row(l, t.Now()))
		}
		if err := t.Table(listHeader, rows); err != nil {
			return err
		}
	}
	if o.Matched == 0 {
		return t.printSafe("%s: %s, and none matches", q.Name(), units.Many(o.Total, "message"))
	}
	text := fmt.Sprintf("%s: %s, of which %s; %s can be %s%s", q.Name(), units.Many(o.Total, "message"),
		matching(o.Matched), units.Thousands(o.Can()), e.past, e.where())
	if limit > 0 && o.Can() > limit {
		text += fmt.Sprintf(", %s by --limit", units.Thousands(limit))
	}
	if err := t.printSafe("%s", text); err != nil {
		return err
	}

	if err := t.printWarnings(o.Report, o.Can(), limit); err != nil {
		return err
	}

	return t.printLeft(o, "cannot")
}

// printOutcome says what was done.
func (t *tool) printOutcome(q queue, e operation, o outcome, undo string) error {
	err := t.printDone(q, e, o, undo)
	if e.remarks != nil {
		for _, remark := range e.remarks(o) {
			t.Note("%s", remark)
		}
	}
	if undo != "" && !t.JSON {
		t.Note("%s", e.undoNote(q, o, undo, t.Again()))
	}

	return err
}

func (t *tool) printDone(q queue, e operation, o outcome, undo string) error {
	if t.JSON {
		return t.PrintJSON(result(q, e, o, undo, false))
	}
	if o.Matched == 0 && o.whole {
		return t.printSafe("%s: no message matches, of %s", q.Name(), units.Thousands(o.Total))
	}
	of, why := "", ""
	if o.whole {
		of = " of " + units.Many(o.Matched, "matching message")
	}
	if o.limited {
		why = " (--limit)"
	}
	err := t.printSafe("%s: %s%s %s%s%s", q.Name(), units.Thousands(o.Done), of, e.past, e.where(), why)
	if err == nil && o.Unsettled > 0 {
		err = t.printSafe("%s", e.unsettled(q, o.Unsettled, undo))
	}
	if err == nil && o.Refused > 0 {
		err = t.printSafe("%s more were rejected by %s, which is full: they are still in %s",
			units.Thousands(o.Refused), e.to, q.Name())
	}
	if err == nil {
		err = t.printDropped(o.Report)
	}
	if err == nil && o.canary != nil {
		err = t.printSafe("%s", canaryLine(*o.canary))
	}
	if err == nil {
		err = t.printLeft(o, "left")
	}

	return err
}

// unsettled says where messages are that were on their way when a run has ended.
func (e operation) unsettled(q queue, n int, undo string) string {
	switch {
	case e.to == "" && undo == "":
		return fmt.Sprintf("%s more may be deleted: their removal from %s is not confirmed", units.Thousands(n),
			q.Name())
	case e.to == "":
		return fmt.Sprintf("%s more are in the undo file: their removal from %s is not confirmed", units.Thousands(n),
			q.Name())
	}
	return fmt.Sprintf("%s more may be in both queues: they were sent to %s, and their removal from %s is not "+
		"confirmed; the next run sends them again", units.Thousands(n), e.to, q.Name())
}

// undoNote says what an undo file is good for.
func (e operation) undoNote(q queue, o outcome, path string, flags []string) string {
	if o.Done == 0 {
		return fmt.Sprintf("Undo file: %s. All its messages are still in %s: an import would duplicate them",
			path, q.Name())
	}
	if q.Name() != q.MainQueue()+suffix {
		flags = append(flags, "--dead-letter-queue", q.Name())
	}
	stay := ""
	if e.to != "" {
		stay = fmt.Sprintf(" (those in %s stay)", e.to)
	}
	note := fmt.Sprintf("Undo file: %s. To put copies back into %s%s: amqpretry dlq import %s", path, q.Name(),
		stay, typed(append(flags, "--yes"), cmp.Or(q.MainQueue(), q.Name()), path))
	if n := min(o.Unsettled+o.Refused, o.undone-o.Done); n > 0 {
		note += fmt.Sprintf("\nUp to %s of its last messages are still in %s: an import would duplicate them",
			units.Thousands(n), q.Name())
	}

	return note
}

// ways are what can be done about what cannot go.
var ways = map[dlq.LeftReason]string{
	dlq.LeftForeign:    "--foreign replays them too; check that this is the right queue",
	dlq.LeftUnreadable: "they can only be shown and counted",
	dlq.LeftEdit:       "another edit",
	dlq.LeftTooLarge:   "--remove-header makes room",
}

func (t *tool) printLeft(o outcome, what string) error {
	if o.left() == 0 {
		return nil
	}
	var rows [][]string
	for _, l := range leftBehind(o) {
		rows = append(rows, []string{units.Thousands(l.Messages), string(l.Why), ways[l.Why]})
	}

	if err := t.Table([]string{what, "why", "what to do"}, rows); err != nil || o.editing == nil {
		return err
	}

	return t.printSafe("The first message that could not be edited: %v", o.editing)
}

// left is how many could not go, and why.
type left struct {
	Why      dlq.LeftReason `json:"why"`
	Messages int            `json:"messages"`
}

func leftBehind(o outcome) []left {
	all := []left{}
	for why, n := range o.Left {
		if n > 0 {
			all = append(all, left{why, n})
		}
	}
	slices.SortFunc(all, func(a, b left) int {
		return cmp.Or(cmp.Compare(b.Messages, a.Messages), cmp.Compare(a.Why, b.Why))
	})

	return all
}

// report is an outcome for programs.
type report struct {
	Queue     string `json:"queue"`
	MainQueue string `json:"main_queue"`
	To        string `json:"to,omitempty"`
	DryRun    bool   `json:"dry_run"`
	Total     int    `json:"total"`
	Seen      int    `json:"seen"`
	Matched   *int   `json:"matched,omitempty"` // nil: not known
	Done      int    `json:"done"`
	Unsettled int    `json:"unsettled"`
	Refused   int    `json:"refused"`
	Hidden    int    `json:"hidden"`
	Consumers int    `json:"consumers"`
	Left      []left `json:"left"`
	Undo      string `json:"undo,omitempty"`
	Run       string `json:"run,omitempty"`
	targetReport

	Messages []namedMessage `json:"messages,omitempty"`
	Canary   *canaryReport  `json:"canary,omitempty"`
}

// namedMessage is a message that the command line names.
type namedMessage struct {
	Position int    `json:"position"`
	UUID     string `json:"uuid"`
}

func result(q queue, e operation, o outcome, undo string, dryRun bool) report {
	var named []namedMessage
	for _, l := range e.messages {
		named = append(named, namedMessage{l.Position, l.UUID})
	}
	var matched *int
	if o.whole {
		matched = &o.Matched
	}

	return report{
		Queue: q.Name(), MainQueue: q.MainQueue(), To: e.to, DryRun: dryRun, Total: o.Total, Seen: o.Seen,
		Matched: matched, Done: o.Done, Unsettled: o.Unsettled, Refused: o.Refused, Hidden: o.Hidden,
		Consumers: o.Consumers, Left: leftBehind(o), Undo: undo, Run: o.run, Messages: named,
		Canary:       canaryResult(o.canary),
		targetReport: targetResult(o.Report, o.Can()),
	}
}
