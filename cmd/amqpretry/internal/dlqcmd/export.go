package dlqcmd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/amqpretry/watermill-retry/amqpretry/dlq"
	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/cli"
	"github.com/amqpretry/watermill-retry/internal/file"
	"github.com/amqpretry/watermill-retry/internal/units"
)

func (t *tool) export() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "export QUEUE [MESSAGE...]",
		Short: "Export dead letters as JSON Lines, with all properties and headers",
		Long: `Write dead letters as JSON Lines, one line for each message, with its body, its properties, and its
headers with their types. "dlq import" publishes them again as they were. The messages stay in the
queue.

` + messagesHelp + `

With -o, the file appears when it is complete, and only you can read it (mode 0600). An existing file
is overwritten only with --force. A file that the shell creates (> FILE) has the mode of your umask,
which often lets others read it.

With -o and --json: one object on standard output, {"queue", "file", "total", "matched", "done",
"untimed_left_out"}. "dlq replay --help" describes the last one.`,
		Example: `  amqpretry dlq export orders -o orders.jsonl
  amqpretry dlq export orders 3 -o order.jsonl
  amqpretry dlq export orders --reason permanent | gzip > orders.jsonl.gz
  amqpretry dlq export orders | amqpretry dlq import orders --uri "$OTHER" -`,
		Args: cobra.MinimumNArgs(1),
	}
	filters := filterFlags(cmd)
	output := cmd.Flags().StringP("output", "o", "", "output `file` (default: standard output)")
	force := cmd.Flags().Bool("force", false, "overwrite an existing file")
	limit := cmd.Flags().Int("limit", 0, "maximum number of messages, oldest first; 0 means all matches")
	_ = cmd.MarkFlagFilename("output", "jsonl")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		filter, err := filters.build()
		if err != nil {
			return err
		}
		if *limit < 0 {
			return cli.Usage("--limit: must be 0 or more, got %d", *limit)
		}
		m, err := parseMessages(args[1:])
		if err != nil {
			return err
		}

		return t.with(cmd.Context(), args[0], func(q queue) error {
			ctx := cmd.Context()
			_, filter, err := t.choose(ctx, q, m, filter)
			if err != nil {
				return err
			}
			o := dlq.ExportOptions{Filter: filter, Limit: *limit}
			if *output == "" || *output == "-" {
				t.noteReaders()
				_, err := t.exportTo(ctx, q, t.Out, o)
				return err
			}
			return t.exportFile(ctx, q, *output, *force, o)
		})
	}

	return cmd
}

// noteReaders says that the shell has made a file which others can read.
func (t *tool) noteReaders() {
	out, ok := t.Stdout().(*os.File)
	if !ok {
		return
	}
	if info, err := out.Stat(); err == nil && info.Mode().IsRegular() && info.Mode().Perm()&0o077 != 0 {
		t.Note("Others can read the output file (mode %04o), and the messages in it. Use umask 077, or -o FILE.",
			info.Mode().Perm())
	}
}

// exportTo writes, with a progress bar, and says how much.
func (t *tool) exportTo(ctx context.Context, q queue, w io.Writer, o dlq.ExportOptions) (dlq.Report, error) {
	bar := t.Progress("export "+q.Name(), 0)
	defer bar.Close()
	o.Progress = func(p dlq.Progress) {
		bar.SetTotal(p.Total)
		bar.Set(p.Seen)
	}
	report, err := q.Export(ctx, w, o)
	if err != nil && !isIncomplete(err) {
		return report, err
	}
	bar.Close()
	t.Note("%s: %s of %s exported", q.Name(), units.Thousands(report.Done), units.Many(report.Total, "message"))
	t.noteUntimed(report.UntimedLeftOut)
	t.noteUnseen(q, report.Consumers, report.Hidden)
	for _, l := range report.Left {
		t.Note("%s not: %s", units.Many(l.Messages, "message"), l.Why)
	}
	if err == nil && len(report.Left) > 0 {
		err = &cli.ExitError{Code: cli.ExitIncomplete}
	}

	return report, err
}

// exportFile writes a file that appears when it is complete.
func (t *tool) exportFile(ctx context.Context, q queue, path string, force bool, o dlq.ExportOptions) error {
	if err := mayWrite(path, force); err != nil {
		return err
	}
	out, err := os.CreateTemp(filepath.Dir(path), ".amqpretry-*.jsonl") // has mode 0600
	if err != nil {
		return fmt.Errorf("--output: %w", err)
	}
	defer func() { _ = os.Remove(out.Name()) }()
	report, failed := t.exportTo(ctx, q, out, o)
	if failed != nil && !isIncomplete(failed) && !errors.As(failed, new(*cli.ExitError)) {
		return errors.Join(failed, out.Close())
	}
	if err := errors.Join(out.Sync(), out.Close()); err != nil {
		return fmt.Errorf("--output: %w", err)
	}
	if err := publish(out.Name(), path, force); err != nil {
		return err
	}
	file.SyncFolder(filepath.Dir(path))
	if t.JSON {
		failed = errors.Join(failed, t.PrintJSON(struct {
			Queue   string `json:"queue"`
			File    string `json:"file"`
			Total   int    `json:"total"`
			Matched int    `json:"matched"`
			Done    int    `json:"done"`
			Untimed int    `json:"untimed_left_out,omitempty"`
		}{q.Name(), path, report.Total, report.Matched, report.Done, report.UntimedLeftOut}))
	}

	return failed
}

func mayWrite(path string, force bool) error {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("--output: %w", err)
	case !info.Mode().IsRegular():
		return cli.Usage("--output: %s is no regular file; without --output it goes to standard output", path)
	case !force:
		return cli.Usage("--output: %s exists; --force overwrites it", path)
	}
	return nil
}

// publish gives a complete file its name, and without force overwrites nothing that has appeared
// meanwhile.
func publish(complete, path string, force bool) error {
	if !force {
		err := os.Link(complete, path)
		if err == nil {
			return nil
		}
		if err := mayWrite(path, false); err != nil {
			return err
		}
		// A file system without hard links.
	}
	if err := os.Rename(complete, path); err != nil {
		return fmt.Errorf("--output: %w", err)
	}
	return nil
}
