package dlqcmd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/amqpretry/watermill-retry/amqpretry/dlq"
	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/cli"
	"github.com/amqpretry/watermill-retry/internal/shell"
)

// errand takes messages out of a dead-letter queue: a replay, a move, a purge. First it is done dry, to show what it would do.
type errand struct {
	verb, past string // replay, replayed
	to         string // where to; empty for nowhere
	do         func(context.Context, step) (outcome, error)
}

// step is what differs between the dry run and the real one.
type step struct {
	dryRun   bool
	limit    int
	undo     io.Writer
	progress func(dlq.Progress)
}

type outcome struct {
	dlq.Report
	run      string
	watched  bool // whether what was replayed comes back dead
	cameBack int
	stopped  bool
	editing  error
}

// can is how many can go, as far as a dry run tells.
func (o outcome) can() int { return max(o.Matched-o.left(), 0) }

func (o outcome) left() int {
	left := 0
	for _, n := range o.Left {
		left += n
	}
	return left
}

// errandFlags are what all errands have.
type errandFlags struct {
	undoFlags
	yes, dryRun bool
	limit       int
}

func (f *errandFlags) add(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&f.yes, "yes", false, "do it, without asking")
	cmd.Flags().BoolVar(&f.dryRun, "dry-run", false, "only say what would be done, and do not ask")
	cmd.Flags().IntVar(&f.limit, "limit", 0, "how many messages at most, the oldest first; 0 means all that match")
	cmd.MarkFlagsMutuallyExclusive("yes", "dry-run")
	f.undoFlags.add(cmd)
}

const errandJSON = `

With --json: one object, {"queue", "main_queue", "to", "dry_run", "total", "seen", "matched", "done", "left": [{"why", "messages"}], "undo"}; nobody is
asked then, so without --yes it is a dry run.`

var errInterrupted = errors.New("interrupted: what is not done is where it was; the same command goes on")

// run does an errand, or says what it would do.
func (t *tool) run(ctx context.Context, q queue, e errand, f *errandFlags) error {
	if f.limit < 0 {
		return cli.Usage("--limit: must be 0 or more, got %d", f.limit)
	}
	limit := f.limit
	if !f.yes {
		planned, err := t.step(ctx, q, e, step{dryRun: true}) // all that match, whatever the limit
		if err != nil {
			return err
		}
		if err := t.printPlan(q, e, planned, limit); err != nil {
			return err
		}
		switch {
		case planned.can() == 0:
			return nil
		case f.dryRun || t.JSON || !t.InIsTerminal:
			t.Note("This was a dry run: nothing was %s. --yes does it.", e.past)
			return nil
		}
		// Those that were shown, and none that has come meanwhile.
		limit = planned.can()
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
	done, failed := t.step(ctx, q, e, step{limit: limit, undo: undo.writer()})
	path, err := undo.close()
	failed = errors.Join(failed, err)
	if failed == nil || done.Seen > 0 || t.JSON { // what has failed before it began has no numbers
		failed = errors.Join(failed, t.printOutcome(q, e, done, path))
	}

	switch {
	case failed != nil && ctx.Err() != nil:
		return &cli.ExitError{Code: cli.ExitIncomplete, Err: errInterrupted}
	case failed != nil:
		return failed
	case done.stopped || done.left() > 0:
		return &cli.ExitError{Code: cli.ExitIncomplete}
	default:
		return nil
	}
}

// step runs once, with a progress bar.
func (t *tool) step(ctx context.Context, q queue, e errand, s step) (outcome, error) {
	title := e.verb
	if s.dryRun {
		title = "count"
	}
	bar := t.Progress(title+" "+q.Name(), 0)
	defer bar.Close()
	s.progress = func(p dlq.Progress) {
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

// question is what is asked before it is done.
func (e errand) question(n int) string {
	verb := strings.ToUpper(e.verb[:1]) + e.verb[1:]
	if e.to == "" {
		return fmt.Sprintf("%s %s?", verb, many(n, "message"))
	}
	return fmt.Sprintf("%s %s to %s?", verb, many(n, "message"), e.to)
}

// where is " to orders".
func (e errand) where() string {
	if e.to == "" {
		return ""
	}
	return " to " + e.to
}

// printPlan says what would be done.
func (t *tool) printPlan(q queue, e errand, o outcome, limit int) error {
	if t.JSON {
		return t.PrintJSON(result(q, e, o, "", true))
	}
	if o.Matched == 0 {
		return t.printSafe("%s: %s, and none matches", q.Name(), many(o.Total, "message"))
	}
	text := fmt.Sprintf("%s: %s, of which %s match; %s can be %s%s", q.Name(), many(o.Total, "message"), thousands(o.Matched),
		thousands(o.can()), e.past, e.where())
	if limit > 0 && o.can() > limit {
		text += fmt.Sprintf(", %s by --limit", thousands(limit))
	}
	if err := t.printSafe("%s", text); err != nil {
		return err
	}

	return t.printLeft(o, "cannot")
}

// printOutcome says what was done.
func (t *tool) printOutcome(q queue, e errand, o outcome, undo string) error {
	if t.JSON {
		return t.PrintJSON(result(q, e, o, undo, false))
	}
	if o.Matched == 0 {
		return t.printSafe("%s: no message matches, of %s", q.Name(), thousands(o.Total))
	}
	of := fmt.Sprintf(" of %s that match", thousands(o.Matched))
	if o.stopped { // before it has seen how many there are
		of = ""
	}
	err := t.printSafe("%s: %s%s %s%s", q.Name(), thousands(o.Done), of, e.past, e.where())
	if err == nil && (o.watched || o.cameBack > 0) {
		err = t.printSafe("%s came back dead", thousands(o.cameBack))
	}
	if err == nil && o.stopped {
		err = t.printSafe("That is more than is tolerated, so it was stopped: the others are where they were")
	}
	if err == nil {
		err = t.printLeft(o, "left where they are")
	}
	if undo != "" {
		target := quote(q.MainQueue())
		if q.Name() != q.MainQueue()+suffix {
			target += " --dead-letter-queue " + quote(q.Name())
		}
		t.Note("Undo file: %s. This puts what is in it back into %s: amqpretry dlq import %s %s", undo, q.Name(), target, quote(undo))
	}

	return err
}

// ways are what can be done about what cannot go.
var ways = map[dlq.Obstacle]string{
	dlq.ObstacleStranger:   "--strangers replays them as well; are they in the right queue?",
	dlq.ObstacleUnreadable: "they can be shown and counted, and nothing else",
	dlq.ObstacleEdit:       "another edit",
	dlq.ObstacleTooLarge:   "--remove-header makes room",
}

func (t *tool) printLeft(o outcome, what string) error {
	if o.left() == 0 {
		return nil
	}
	var rows [][]string
	for _, l := range leftBehind(o) {
		rows = append(rows, []string{thousands(l.Messages), string(l.Why), ways[l.Why]})
	}

	if err := t.Table([]string{what, "why", "what to do"}, rows); err != nil || o.editing == nil {
		return err
	}

	return t.printSafe("The first that could not be edited: %v", o.editing)
}

// left is how many could not go, and why.
type left struct {
	Why      dlq.Obstacle `json:"why"`
	Messages int          `json:"messages"`
}

func leftBehind(o outcome) []left {
	all := []left{}
	for why, n := range o.Left {
		if n > 0 {
			all = append(all, left{why, n})
		}
	}
	slices.SortFunc(all, func(a, b left) int { return cmp.Or(cmp.Compare(b.Messages, a.Messages), cmp.Compare(a.Why, b.Why)) })

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
	Matched   int    `json:"matched"`
	Done      int    `json:"done"`
	Left      []left `json:"left"`
	Undo      string `json:"undo,omitempty"`
	Run       string `json:"run,omitempty"`
	CameBack  int    `json:"came_back,omitempty"`
	Stopped   bool   `json:"stopped,omitempty"`
}

func result(q queue, e errand, o outcome, undo string, dryRun bool) report {
	return report{
		Queue: q.Name(), MainQueue: q.MainQueue(), To: e.to, DryRun: dryRun, Total: o.Total, Seen: o.Seen, Matched: o.Matched, Done: o.Done,
		Left: leftBehind(o), Undo: undo, Run: o.run, CameBack: o.cameBack, Stopped: o.stopped,
	}
}

// quote is a word as a shell takes it.
func quote(word string) string {
	if word != "" && !strings.ContainsFunc(word, func(r rune) bool { return r > 0x7e || !strings.ContainsRune(plain, r) }) {
		return word
	}
	return shell.Quote(word)
}

const plain = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-/:@%+=,"
