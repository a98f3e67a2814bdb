package dlqcmd

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/amqpretry/watermill-retry/amqpretry/dlq"
	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/cli"
	"github.com/amqpretry/watermill-retry/internal/file"
	"github.com/amqpretry/watermill-retry/internal/units"
)

func (t *tool) importing() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "import QUEUE FILE",
		Short: "Publish exported dead letters again",
		Long: `Publish the messages of a file from "dlq export", or of an undo file, to the dead-letter queue of
QUEUE, or to another queue (--to). FILE is - for standard input.

FILE.imported records the progress, with the broker, virtual host, queue and filters. Run the same
command again after an interruption, a kill, or an unreadable line: it continues there. After a kill,
up to some hundred messages may be in the queue twice. You may fix or append lines after that
position, but not change those before it. A second import of a complete file publishes only appended
lines; --restart publishes all lines. An import of the file to another place is refused without
--restart, which begins a new record. Standard input has no such record.

An undo file of a purge puts deleted messages back. An undo file of a replay or a move contains
messages that were sent to another queue, where they may have been handled: the command asks first,
and --yes answers. It also asks if the file is from another dead-letter queue than that of QUEUE.

The import stops when the target has a limit and would drop messages, unless --allow-drop is set.

Messages of a ladder's queue for unroutable messages keep their target, delay and headers if they are
imported into that queue again (--dead-letter-queue).

With --json: one object, {"queue", "main_queue", "file", "dry_run", "skipped_lines", "lines",
"matched", "done", "truncated", "target", "warnings", "would_drop", "dropped", "untimed_left_out"}.
"dlq replay --help" describes the last five.`,
		Example: `  amqpretry dlq import orders orders.jsonl
  amqpretry dlq import orders orders.dlq-purge-20261122T051200Z.jsonl --reason exhausted
  gunzip < orders.jsonl.gz | amqpretry dlq import orders --to orders.parked -`,
		Args: cobra.ExactArgs(2),
		ValidArgsFunction: func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			if len(args) == 1 {
				return nil, cobra.ShellCompDirectiveDefault
			}
			return nil, cobra.ShellCompDirectiveNoFileComp
		},
	}
	filters := filterFlags(cmd)
	var (
		pace rate
		i    importing
	)
	cmd.Flags().StringVar(&i.to, "to", "", "target queue (default: the dead-letter queue of QUEUE)")
	cmd.Flags().Var(&pace, "rate", "maximum rate: 100/s, 30/m, 5000/h (default: as fast as the broker confirms)")
	cmd.Flags().BoolVar(&i.restart, "restart", false, "import all lines of FILE, and ignore FILE.imported")
	cmd.Flags().BoolVar(&i.yes, "yes", false, "import without asking: the undo file of a replay or a move, or a file "+
		"from another queue")
	cmd.Flags().BoolVar(&i.allowDrop, "allow-drop", false, allowDropHelp)
	cmd.Flags().BoolVar(&i.dryRun, "dry-run", false, "read and count the messages, and publish nothing")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		filter, err := filters.build()
		switch {
		case err != nil:
			return err
		case args[1] == "":
			return cli.Usage("FILE is empty: wanted the name of a file, or - for standard input")
		case checkQueue("--to", i.to) != nil:
			return checkQueue("--to", i.to)
		case cmd.Flags().Changed("to") && i.to == "":
			return cli.Usage("--to: must be the name of a queue, got an empty text")
		case args[1] == "-" && i.restart:
			return cli.Usage("--restart needs a file: standard input has no record of earlier imports")
		}
		i.path, i.rate, i.filter, i.filters = args[1], float64(pace), filter, filters.String()

		return t.with(cmd.Context(), args[0], func(q queue) error { return t.importFrom(cmd.Context(), q, i) })
	}

	return cmd
}

// importing is what the flags of an import say.
type importing struct {
	path, to             string
	rate                 float64
	restart, dryRun, yes bool
	allowDrop            bool
	filter               dlq.Filter
	filters              string
	// messages counts those that the import is about; 0 of standard input, which can be read only
	// once.
	messages func() (int, error)
}

func (t *tool) importFrom(ctx context.Context, q queue, i importing) error {
	i.messages = func() (int, error) { return 0, nil }
	o := dlq.ImportOptions{Filter: i.filter, To: i.to, Rate: i.rate, DryRun: i.dryRun, AllowDrop: i.allowDrop,
		Taken: func(taken dlq.Taken) error { return t.confirmTaken(q, i, taken) },
		Elsewhere: func(queue string) error {
			return t.confirmImport(q, i, fmt.Sprintf("%s contains messages of %s, not of %s.", i.path, queue, q.Name()))
		}}
	if i.path == "-" {
		return t.importReader(ctx, q, t.In, i, o, 0)
	}

	in, err := os.Open(i.path)
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }()
	if err := file.Lock(in); err != nil {
		return cli.Usage("%s: another import of this file is running: %v", i.path, err)
	}
	if i.dryRun {
		return t.importReader(ctx, q, in, i, o, t.lines(in))
	}
	w, err := t.checkpoint(ctx, q, in, i)
	if err != nil {
		return err
	}
	o.Skip, o.Imported = w.Lines, w.imported
	i.messages = func() (int, error) {
		report, err := q.Import(ctx, whole(in), dlq.ImportOptions{Filter: i.filter, To: i.to, Skip: o.Skip,
			DryRun: true})
		if errors.As(err, new(*dlq.LineError)) {
			err = nil // the import ends there, too
		}
		return report.Matched, err
	}
	if o.Skip > 0 {
		t.Note("%s: continues after line %s, as recorded in %s", i.path, units.Thousands(o.Skip),
			checkpointPath(i.path))
	}
	if err := w.begin(); err != nil {
		return err
	}

	err = t.importReader(ctx, q, in, i, o, t.lines(in))
	if kept := w.end(err == nil); kept != nil {
		return errors.Join(err, fmt.Errorf("cannot record the progress: %w", kept))
	}
	if err != nil && w.Lines > 0 {
		same := "the same command"
		if i.restart {
			same += " without --restart"
		}
		t.Note("%s of %s imported; %s continues after them", units.Many(w.Lines, "line"), i.path, same)
	}

	return err
}

// confirmTaken asks whether to import what a replay or a move has sent on: that is no undo of what
// has become of it there.
func (t *tool) confirmTaken(q queue, i importing, taken dlq.Taken) error {
	what, then := "replayed", "If they were handled there, another replay handles them twice."
	if taken.By == "move" {
		what, then = "moved", "If they are still there, they will be in both queues."
	}
	news := fmt.Sprintf("%s contains messages that were %s to %s, from %s on. %s", i.path, what, taken.To,
		taken.At.UTC().Format(time.RFC3339), then)

	return t.confirmImport(q, i, news)
}

// confirmImport asks whether to import messages that may not be meant.
func (t *tool) confirmImport(q queue, i importing, news string) error {
	if i.yes || i.dryRun {
		t.Note("%s", news)
		return nil
	}

	n, err := i.messages()
	if err != nil {
		return err
	}
	them := "them"
	if n > 0 {
		them = units.Many(n, "message")
	}
	question := fmt.Sprintf("%s Import %s into %s?", news, them, cmp.Or(i.to, q.Name()))
	if t.JSON {
		return cli.Usage("%s With --json there is no question: add --yes", question)
	}

	return t.Confirm(question, false)
}

func (t *tool) importReader(ctx context.Context, q queue, r io.Reader, i importing, o dlq.ImportOptions,
	lines int) error {
	in := bufio.NewReader(r)
	if err := isExport(in, q, i.path); err != nil {
		return err
	}
	bar := t.Progress("import "+i.path, lines)
	defer bar.Close()
	o.Progress = func(p dlq.Progress) { bar.Set(o.Skip + p.Seen) }
	report, failed := q.Import(ctx, in, o)
	bar.Close()
	unanswered := errors.Is(failed, cli.ErrDeclined) || errors.As(failed, new(*cli.ExitError))
	if !unanswered || report.Done > 0 { // else it has read one message, to ask about it
		if err := t.printImport(q, i, o.Skip, report, failed == nil); err != nil {
			failed = errors.Join(failed, err)
		}
	}

	switch {
	case failed != nil && ctx.Err() != nil:
		return cli.Interrupted("interrupted")
	case errors.Is(failed, cli.ErrDeclined) && report.Done > 0:
		return fmt.Errorf("%s: not confirmed, so nothing was done after %s that needed no question, or had got a yes",
			i.path, units.Many(report.Done, "message"))
	case failed != nil:
		return fmt.Errorf("%s: %w", i.path, failed)
	case report.Truncated:
		return &cli.ExitError{Code: cli.ExitIncomplete}
	default:
		return nil
	}
}

// isExport looks at what comes first: a file that is none has no line that could be named.
func isExport(in *bufio.Reader, q queue, path string) error {
	_, _ = in.Peek(1) // reads as much as there is; what fails will fail again
	head, _ := in.Peek(in.Buffered())
	text := bytes.TrimSpace(bytes.TrimPrefix(head, []byte("\ufeff")))
	switch {
	case bytes.HasPrefix(head, []byte{0x1f, 0x8b}):
		unpack := "gunzip"
		if path != "-" {
			unpack += " -c " + quote(path)
		}
		return fmt.Errorf("%s is compressed by gzip. Unpacked it can be read: %s | amqpretry dlq import %s -, with "+
			"the other flags", path, unpack, quote(cmp.Or(q.MainQueue(), q.Name())))
	case len(text) > 0 && text[0] != '{':
		return fmt.Errorf("%s is no export: wanted a JSON object in each line, which begins with {, found %q", path,
			text[:min(len(text), 20)])
	default:
		return nil
	}
}

// printImport says what was imported. whole is false of a file that was not read to its end.
func (t *tool) printImport(q queue, i importing, skipped int, r dlq.Report, whole bool) error {
	target := cmp.Or(i.to, q.Name())
	if t.JSON {
		return t.PrintJSON(struct {
			Queue     string      `json:"queue"`
			MainQueue string      `json:"main_queue"`
			File      string      `json:"file"`
			DryRun    bool        `json:"dry_run"`
			Skipped   int         `json:"skipped_lines"`
			Lines     int         `json:"lines"`
			Matched   int         `json:"matched"`
			Done      int         `json:"done"`
			Truncated bool        `json:"truncated"`
			Target    *dlq.Target `json:"target,omitempty"`
			Warnings  []string    `json:"warnings,omitempty"`
			WouldDrop int         `json:"would_drop,omitempty"`
			Dropped   int         `json:"dropped,omitempty"`
			Untimed   int         `json:"untimed_left_out,omitempty"`
		}{target, q.MainQueue(), i.path, i.dryRun, skipped, skipped + r.Seen, r.Matched, r.Done, r.Truncated, r.Target,
			r.Warnings, r.WouldDrop, r.Dropped, r.UntimedLeftOut})
	}
	defer t.noteUntimed(r.UntimedLeftOut)
	what := units.Many(r.Seen, "message")
	if !whole {
		what += " read"
	}
	var err error
	if i.dryRun {
		err = t.printSafe("%s: %s, of which %s and can be imported into %s. This was a dry run", i.path, what,
			matching(r.Matched), target)
		if err == nil {
			err = t.printWarnings(r)
		}
	} else {
		err = t.printSafe("%s: %s, of which %s; %s imported into %s", i.path, what, matching(r.Matched),
			units.Thousands(r.Done), target)
		if err == nil {
			err = t.printDropped(r)
		}
	}
	if err == nil && r.Truncated {
		err = t.printSafe("The last line is incomplete and was not imported, because the writer of the file was " +
			"interrupted. If this is an undo file, that message is still in its queue")
	}

	return err
}

// lines are how many a file has, for the progress bar; 0 where nobody sees it.
func (t *tool) lines(file *os.File) int {
	if !t.ErrIsTerminal || t.JSON {
		return 0
	}
	defer func() { _, _ = file.Seek(0, io.SeekStart) }()

	return countLines(file)
}

// countLines counts the line feeds until the end, or an error.
func countLines(r io.Reader) int {
	n, buffer := 0, make([]byte, 1<<16)
	for {
		read, err := r.Read(buffer)
		n += bytes.Count(buffer[:read], []byte{'\n'})
		if err != nil {
			return n
		}
	}
}
