package dlqcmd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/amqpretry/watermill-retry/amqpretry/dlq"
	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/cli"
	"github.com/amqpretry/watermill-retry/internal/units"
)

// operation takes messages out of a dead-letter queue: a replay, a move, a purge. First it is
// counted, to show what it would do.
type operation struct {
	undoFlags
	filters     *filters
	plan        dlq.Plan
	yes, dryRun bool
	verb, past  string                    // replay, replayed
	remarks     func(dlq.Report) []string // further things to say of what was done; nil for none
	messages    []dlq.DeadLetter          // those that the command line names; none if it names none
	byPosition  bool                      // it names one by its position
	undo        func(path string) string  // what its undo file is good for; nil for an import
	to          string                    // where to; empty for nowhere
	filter      *bodyFilter               // nil for none
	allOrigins  bool
}

// outcome is what an operation has done.
type outcome struct {
	dlq.Report
	// whole is true when the queue was seen to its end, so that it is known how many match.
	whole   bool
	limited bool // ended by --limit
	// undone is how many messages the undo file has, of a run that has failed.
	undone int
}

// add adds the flags of all operations to a command about a queue whose name is written like that
// in the help.
func (e *operation) add(cmd *cobra.Command, queue string) {
	cmd.Flags().BoolVar(&e.yes, "yes", false, "run without asking for confirmation")
	cmd.Flags().BoolVar(&e.dryRun, "dry-run", false, "print what the command would do, and stop")
	cmd.Flags().IntVar(&e.plan.Limit, "limit", 0, "maximum number of messages, oldest first; 0 means all matches")
	cmd.MarkFlagsMutuallyExclusive("yes", "dry-run")
	if e.marks() {
		e.none = true
		return
	}
	e.undoFlags.add(cmd, queue)
}

// addRate adds the flags of those that send messages.
func (e *operation) addRate(cmd *cobra.Command) {
	cmd.Flags().Var((*rate)(&e.plan.Rate), "rate", "maximum rate: 100/s, 30/m, 5000/h (default: as fast as the broker "+
		"confirms)")
	cmd.Flags().BoolVar(&e.plan.AllowDrop, "allow-drop", false, allowDropHelp)
}

// take makes a command about the messages of a dead-letter queue do the operation. check looks at
// the arguments before a broker is asked, and prepare at the queue; nil for nothing.
func (t *tool) take(cmd *cobra.Command, e *operation, check func(m messages, args []string) error,
	prepare func(context.Context, queue) error) {
	filters := filterFlags(cmd)
	e.add(cmd, "QUEUE"+suffix)
	e.filters = filters
	cmd.Args = cobra.MinimumNArgs(1)
	cmd.RunE = func(cmd *cobra.Command, args []string) (err error) {
		ctx := cmd.Context()
		if e.plan.Filter, err = filters.build(); err != nil {
			return err
		}
		m, err := parseMessages(args[1:])
		if err != nil {
			return err
		}
		if err := errors.Join(check(m, args), checkQueue("--to", e.plan.To), e.check(), m.checkYes(e.yes)); err != nil {
			return err
		}
		if err := asUsage(e.plan.Validate()); err != nil {
			return err
		}

		return t.with(ctx, args[0], func(q queue) error {
			if e.messages, e.plan.Filter, err = t.choose(ctx, q, m, e.plan.Filter); err != nil {
				return err
			}
			e.byPosition = len(m.positions) > 0
			e.plan.IncludeParked = e.plan.IncludeParked || m.given()
			if prepare != nil {
				if err := prepare(ctx, q); err != nil {
					return err
				}
			}
			return t.run(ctx, q, e)
		})
	}
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
  consumers  other consumers of the queue; the messages that they hold are not visible
  gone       counted messages that no longer waited (delays); absent if there are none
  untimed_left_out  messages that tell no time of failure, where --older-than or --newer-than leave
             them out; absent if there are none`

// interrupted is what is said after ^C. The undo file of a run is not overwritten by the next one.
func interrupted(f *undoFlags, undo string, failed error) error {
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
func (t *tool) run(ctx context.Context, q runner, e *operation) error {
	switch e.to = e.plan.To; {
	case e.plan.ToOrigin:
		e.to = theirOrigins
	case e.plan.Kind == dlq.Replay || e.plan.Kind == dlq.SendNow:
		e.to = cmp.Or(e.to, q.MainQueue())
	}
	if !e.yes || e.allOrigins {
		var err error
		progress, end := t.watch(q, "count", 0)
		e.plan.Progress = progress
		e.plan, err = q.Plan(ctx, e.plan)
		end()
		if err != nil {
			return err
		}
		e.chooseOrigins()
		if e.yes && e.plan.Counted.Can() > 0 {
			return t.do(ctx, q, e)
		}
		if err := t.printPlan(q, e); err != nil {
			return err
		}
		t.noteUntimed(e.plan.Counted.UntimedLeftOut)
		t.noteUnseen(q, e.plan.Counted.Consumers, e.plan.Counted.Hidden)
		switch {
		case e.plan.Counted.Can() == 0 && e.yes && e.plan.Counted.LeftBehind() > 0:
			return &cli.ExitError{Code: cli.ExitIncomplete}
		case e.plan.Counted.Can() == 0:
			return nil
		case e.dryRun || t.JSON || !t.InIsTerminal:
			t.Warn("This was a dry run: nothing was %s. %s", e.past, e.doIt())
			return nil
		}
		if err := t.Confirm(e.question(e.plan.Most()), false); err != nil {
			return err
		}
	}

	return t.do(ctx, q, e)
}

// do runs a plan.
func (t *tool) do(ctx context.Context, q runner, e *operation) error {
	undo, err := e.create(e.verb, q, t.Now())
	if err != nil {
		return err
	}
	limit := e.plan.Limit
	if e.plan.Counted != nil {
		limit = e.plan.Most()
	}
	progress, end := t.watch(q, e.verb, limit)
	defer end()
	var (
		path    string
		told    bool
		notTold error
	)
	e.plan.Undo, e.plan.Progress = undo.writer(), progress
	e.plan.Settled = func(r dlq.Report, failed error) { // at once: a second ^C ends the process
		end()
		told = true
		done := outcome{Report: r}
		done.limited = failed == nil && e.plan.Limit > 0 && r.Done >= e.plan.Limit
		done.whole = failed == nil && r.Canary.Stopped == "" && !done.limited
		path, notTold = undo.close()
		if (failed != nil || notTold != nil) && path != "" {
			done.undone = linesOf(path)
		}
		// What has failed before it began has no numbers.
		if failed == nil && notTold == nil || r.Seen > 0 || t.JSON {
			if err := t.printOutcome(q, e, done, path); !errors.Is(err, cli.ErrNobodyReads) {
				notTold = errors.Join(notTold, err)
			}
		}
	}
	done, failed := q.Run(ctx, e.plan)
	if !told {
		e.plan.Settled(done, failed)
	}
	if failed == nil && e.yes {
		defer t.noteUnseen(q, done.Consumers, done.Hidden)
		defer t.noteUntimed(done.UntimedLeftOut)
	}
	failed = errors.Join(failed, notTold)

	switch {
	case failed != nil && ctx.Err() != nil:
		return interrupted(&e.undoFlags, path, failed)
	case failed != nil:
		return failed
	case done.Canary.Stopped != "" || slices.ContainsFunc(done.Left, func(l dlq.Left) bool {
		return l.Why != dlq.LeftLater // which is as it should be
	}):
		return &cli.ExitError{Code: cli.ExitIncomplete}
	default:
		return nil
	}
}

// watch shows how far a run is that takes so many at most, 0 being all, and tells of a wait for its
// begin.
func (t *tool) watch(q runner, title string, limit int) (progress func(dlq.Progress), end func()) {
	bar := t.Progress(title+" "+q.Name(), 0)
	begun := t.tellOfWait(q)

	return func(p dlq.Progress) {
		begun()
		if limit > 0 {
			bar.SetTotal(min(limit, p.Total))
			bar.Set(p.Done)
			return
		}
		bar.SetTotal(p.Total)
		bar.Set(p.Seen)
	}, func() { begun(); bar.Close() }
}

// startWait is how long a run may take to its first message before the user is told.
const startWait = time.Second

// tellOfWait tells that a run has not begun, unless begun is called soon: runs on a queue wait for
// each other.
func (t *tool) tellOfWait(q runner) (begun func()) {
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
func (e *operation) question(n int) string {
	verb := strings.ToUpper(e.verb[:1]) + e.verb[1:]
	if e.plan.ToOrigin {
		return e.originQuestion(n)
	}
	if e.to == "" {
		return fmt.Sprintf("%s %s?", verb, units.Many(n, "message"))
	}
	return fmt.Sprintf("%s %s to %s?", verb, units.Many(n, "message"), e.to)
}

// doIt tells how to do what a dry run has shown.
func (e *operation) doIt() string {
	if e.byPosition {
		return "To do it, pass UUIDs instead of positions, with --yes; or answer the question on a terminal."
	}
	return "--yes does it."
}

// where is " to orders".
func (e *operation) where() string {
	if e.to == "" {
		return ""
	}
	return " to " + e.to
}

// printPlan says what would be done.
func (t *tool) printPlan(q runner, e *operation) error {
	o, limit := outcome{Report: *e.plan.Counted, whole: true}, e.plan.Limit
	if t.JSON {
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
	if err := t.printWarnings(o.Report); err != nil {
		return err
	}
	if err := t.printOrigins(o.Report, "can go"); err != nil {
		return err
	}
	if err := cmp.Or(t.printFiltered(e, o.Report, o.Can()), t.printSamples(e.filter)); err != nil {
		return err
	}

	return t.printLeft(o.Report, "cannot")
}

// printOutcome says what was done.
func (t *tool) printOutcome(q runner, e *operation, o outcome, undo string) error {
	err := t.printDone(q, e, o, undo)
	if e.remarks != nil {
		for _, remark := range e.remarks(o.Report) {
			t.Note("%s", remark)
		}
	}
	if undo != "" && !t.JSON {
		note := e.undoNote(q, o, undo, t.Again())
		if e.undo != nil && o.Done > 0 {
			note = e.undo(undo)
		}
		t.Note("%s", note)
	}

	return err
}

func (t *tool) printDone(q runner, e *operation, o outcome, undo string) error {
	if t.JSON {
		return t.PrintJSON(result(q, e, o, undo, false))
	}
	if o.Gone > 0 {
		if err := t.printSafe("%s: %s no longer waited", q.Name(), units.Many(o.Gone, "message")); err != nil {
			return err
		}
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
			units.Thousands(o.Refused), cmp.Or(e.to, q.Name()), q.Name())
	}
	if err == nil {
		err = t.printDropped(o.Report)
	}
	if err == nil {
		err = t.printOrigins(o.Report, "sent")
	}
	if err == nil {
		err = t.printFiltered(e, o.Report, o.Done)
	}
	if err == nil && e.plan.Messages > 0 {
		err = t.printSafe("%s", canaryLine(o.Canary))
	}
	if err == nil {
		err = t.printLeft(o.Report, "left")
	}

	return err
}

// unsettled says where messages are that were on their way when a run has ended.
func (e *operation) unsettled(q runner, n int, undo string) string {
	switch {
	case e.marks():
		return fmt.Sprintf("%s more may be in %s twice: their copies were sent, and the removal of the originals is "+
			"not confirmed", units.Thousands(n), q.Name())
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
func (e *operation) undoNote(q runner, o outcome, path string, flags []string) string {
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
	dlq.LeftEdit:       "another edit or command",
	dlq.LeftTooLarge:   "--remove-header makes room",
	dlq.LeftNoOrigin:   "replay them with --to and a filter",
	dlq.LeftNoTarget:   "create the queue, or replay them with --to and a filter",
	dlq.LeftNotChosen:  "--origin chooses more",
	dlq.LeftUnasked:    "--origin chooses up to 100 of them",
	dlq.LeftParked:     "--include-parked replays them too",
	dlq.LeftLater:      "nothing",
	dlq.LeftExpires:    "an earlier time",
	dlq.LeftTooLong:    "an earlier time",
	dlq.LeftByBroker:   "wait until they are due",
}

func (t *tool) printLeft(r dlq.Report, what string) error {
	if r.LeftBehind() == 0 {
		return nil
	}
	var rows [][]string
	for _, l := range r.Left {
		rows = append(rows, []string{units.Thousands(l.Messages), string(l.Why), ways[l.Why]})
	}

	if err := t.Table([]string{what, "why", "what to do"}, rows); err != nil || len(r.EditErrors) == 0 {
		return err
	}
	rows = nil
	for _, e := range r.EditErrors {
		rows = append(rows, []string{units.Thousands(e.Messages), cmp.Or(e.UUID, "-"), cmp.Or(e.Why, "(others)")})
	}

	return t.Table([]string{"not edited", "the first", "why"}, rows)
}

// report is an outcome for programs.
type report struct {
	Queue     string `json:"queue"`
	MainQueue string `json:"main_queue"`
	To        string `json:"to,omitempty"`
	DryRun    bool   `json:"dry_run"`
	Matched   *int   `json:"matched,omitempty"` // nil: not known
	dlq.Report

	Undo     string            `json:"undo,omitempty"`
	Messages []namedMessage    `json:"messages,omitempty"`
	Canary   *dlq.CanaryReport `json:"canary,omitempty"`
}

// namedMessage is a message that the command line names.
type namedMessage struct {
	Position int    `json:"position"`
	UUID     string `json:"uuid"`
}

func result(q runner, e *operation, o outcome, undo string, dryRun bool) report {
	r := report{Queue: q.Name(), MainQueue: q.MainQueue(), To: strings.TrimPrefix(e.to, theirOrigins), DryRun: dryRun,
		Report: o.Report, Undo: undo}
	for _, l := range e.messages {
		r.Messages = append(r.Messages, namedMessage{l.Position, l.UUID})
	}
	if o.whole {
		r.Matched = &o.Matched
	}
	if e.plan.Messages > 0 && !dryRun {
		r.Canary = &o.Canary
	}

	return r
}
