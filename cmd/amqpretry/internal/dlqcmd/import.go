package dlqcmd

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/amqpretry/watermill-retry/amqpretry/dlq"
	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/cli"
)

func (t *tool) importing() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "import QUEUE FILE",
		Short: "Publish exported dead letters",
		Long: `Publish the messages of a file that "dlq export" has made, or that is an undo file, into the dead-letter queue of QUEUE, or into
another queue (--to). FILE is - for standard input.

FILE.imported says how far it is. An import that was interrupted or killed goes on there when it is called again: what may be there twice
then is what was on its way, some hundred messages at most. --restart begins anew. A file that was imported is not imported once more, unless --again says
so. Standard input has no such memory.

With --json: one object, {"queue", "main_queue", "file", "dry_run", "skipped_lines", "lines", "matched", "done", "truncated"}.`,
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
	cmd.Flags().StringVar(&i.to, "to", "", "queue into which they go (default: the dead-letter queue of QUEUE)")
	cmd.Flags().Var(&pace, "rate", "how many at most: 100/s, 30/m, 5000/h (default: as fast as the broker confirms)")
	cmd.Flags().BoolVar(&i.restart, "restart", false, "begin anew, whatever FILE.imported says")
	cmd.Flags().BoolVar(&i.again, "again", false, "import a file that was imported before")
	cmd.Flags().BoolVar(&i.dryRun, "dry-run", false, "read and count, and publish nothing")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		filter, err := filters.build()
		switch {
		case err != nil:
			return err
		case args[1] == "":
			return cli.Usage("FILE is empty: wanted the name of a file, or - for standard input")
		case cmd.Flags().Changed("to") && i.to == "":
			return cli.Usage("--to: must be the name of a queue, got an empty text")
		case args[1] == "-" && (i.restart || i.again):
			return cli.Usage("--restart and --again are for files: of standard input nothing is remembered")
		}
		i.path, i.rate, i.filter, i.filters = args[1], float64(pace), filter, filters.String()

		return t.with(cmd.Context(), args[0], func(q queue) error { return t.importFrom(cmd.Context(), q, i) })
	}

	return cmd
}

// importing is what the flags of an import say.
type importing struct {
	path, to               string
	rate                   float64
	restart, again, dryRun bool
	filter                 dlq.Filter
	filters                string
}

func (t *tool) importFrom(ctx context.Context, q queue, i importing) error {
	o := dlq.ImportOptions{Filter: i.filter, To: i.to, Rate: i.rate, DryRun: i.dryRun}
	if i.path == "-" {
		return t.importReader(ctx, q, t.In, i, o, 0)
	}

	file, err := os.Open(i.path)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }()
	if err := lock(file); err != nil {
		return cli.Usage("%s: another import of it is at work: %v", i.path, err)
	}
	if i.dryRun {
		return t.importReader(ctx, q, file, i, o, t.lines(file))
	}
	k, err := t.keeper(ctx, q, file, i)
	if err != nil {
		return err
	}
	o.Skip, o.Imported = k.mark.Lines, k.imported
	if o.Skip > 0 {
		t.Note("%s: going on after line %s, as %s says", i.path, thousands(o.Skip), bookmarkPath(i.path))
	}
	if err := k.begin(); err != nil {
		return err
	}

	err = t.importReader(ctx, q, file, i, o, t.lines(file))
	var exit *cli.ExitError
	ended := err == nil || errors.As(err, &exit) && exit.Err == nil // if with an end that is missing
	if kept := k.end(ended); kept != nil {
		return errors.Join(err, fmt.Errorf("how far it is could not be kept: %w", kept))
	}
	if !ended {
		t.Note("%s of %s are imported; the same command goes on after them", many(k.mark.Lines, "line"), i.path)
	}

	return err
}

// keeper finds out where the import of a file begins.
func (t *tool) keeper(ctx context.Context, q queue, file *os.File, i importing) (*keeper, error) {
	s, err := sourceOf(file)
	if err != nil {
		return nil, err
	}
	broker, err := t.broker(ctx)
	if err != nil {
		return nil, err
	}
	d := destination{Broker: broker, Queue: cmp.Or(i.to, q.Name()), Filter: i.filters}
	k := &keeper{file: i.path, now: t.Now, mark: bookmark{source: s, destination: d}}
	if i.restart {
		return k, nil
	}
	b, ok, err := readBookmark(i.path)
	if err == nil && ok {
		k.mark.Lines, err = b.resume(i.path, s, d, i.again)
	}

	return k, err
}

func (t *tool) importReader(ctx context.Context, q queue, r io.Reader, i importing, o dlq.ImportOptions, lines int) error {
	bar := t.Progress("import "+i.path, lines)
	defer bar.Close()
	o.Progress = func(p dlq.Progress) { bar.Set(o.Skip + p.Seen) }
	report, failed := q.Import(ctx, r, o)
	bar.Close()
	if err := t.printImport(q, i, o.Skip, report); err != nil {
		failed = errors.Join(failed, err)
	}

	switch {
	case failed != nil && ctx.Err() != nil:
		return &cli.ExitError{Code: cli.ExitIncomplete, Err: errors.New("interrupted")}
	case failed != nil:
		return fmt.Errorf("%s: %w", i.path, failed)
	case report.Truncated:
		return &cli.ExitError{Code: cli.ExitIncomplete}
	default:
		return nil
	}
}

func (t *tool) printImport(q queue, i importing, skipped int, r dlq.Report) error {
	target := cmp.Or(i.to, q.Name())
	if t.JSON {
		return t.PrintJSON(struct {
			Queue     string `json:"queue"`
			MainQueue string `json:"main_queue"`
			File      string `json:"file"`
			DryRun    bool   `json:"dry_run"`
			Skipped   int    `json:"skipped_lines"`
			Lines     int    `json:"lines"`
			Matched   int    `json:"matched"`
			Done      int    `json:"done"`
			Truncated bool   `json:"truncated"`
		}{target, q.MainQueue(), i.path, i.dryRun, skipped, skipped + r.Seen, r.Matched, r.Done, r.Truncated})
	}
	var err error
	if i.dryRun {
		err = t.printSafe("%s: %s, of which %s match and can go into %s. This was a dry run", i.path, many(r.Seen, "message"), thousands(r.Matched), target)
	} else {
		err = t.printSafe("%s: %s, of which %s match; %s imported into %s", i.path, many(r.Seen, "message"), thousands(r.Matched), thousands(r.Done), target)
	}
	if err == nil && r.Truncated {
		err = t.printSafe("The last line has no end, and was not imported: whoever wrote the file was stopped. Where it is an undo file, that message is still in its queue")
	}

	return err
}

// lines are how many a file has, for the progress bar; 0 where nobody sees it.
func (t *tool) lines(file *os.File) int {
	if !t.ErrIsTerminal || t.JSON {
		return 0
	}
	defer func() { _, _ = file.Seek(0, io.SeekStart) }()
	n, buffer := 0, make([]byte, 1<<16)
	for {
		read, err := file.Read(buffer)
		n += bytes.Count(buffer[:read], []byte{'\n'})
		if err != nil {
			return n
		}
	}
}
