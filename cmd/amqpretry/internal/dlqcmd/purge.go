package dlqcmd

import (
	"context"
	"errors"
	"strings"

	"github.com/spf13/cobra"

	"github.com/amqpretry/watermill-retry/amqpretry/dlq"
	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/cli"
)

func (t *tool) purge() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "purge QUEUE [MESSAGE...]",
		Short: "Delete dead letters that match a filter, or all",
		Long: `Delete dead letters. The command needs MESSAGE, a filter, or --all.

It first prints how many messages match. On a terminal it then asks for confirmation; elsewhere it
needs --yes. A message is deleted after it is in the undo file, on disk.

` + messagesToTake + `

For retention, run it with "--older-than 30d --yes" in a daily job; the undo files are the archive.` + operationJSON,
		Example: `  amqpretry dlq purge orders --reason permanent --topic orders.test
  amqpretry dlq purge orders --older-than 30d --undo archive/orders-november.jsonl --yes
  amqpretry dlq purge orders 3
  amqpretry dlq purge orders --all --yes`,
		Args: cobra.MinimumNArgs(1),
	}
	filters := filterFlags(cmd)
	var flags operationFlags
	all := cmd.Flags().Bool("all", false, "delete all messages; not with a filter")
	flags.add(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		filter, err := filters.build()
		if err != nil {
			return err
		}
		m, err := parseMessages(args[1:])
		switch {
		case err != nil:
			return err
		case *all && filters.given():
			return cli.Usage("--all and filters exclude each other: found --all %s", filters)
		case *all && m.given():
			return cli.Usage("--all and MESSAGE exclude each other: found --all %s", strings.Join(args[1:], " "))
		case !*all && !filters.given() && !m.given():
			return cli.Usage("wanted MESSAGE, a filter, such as --older-than 30d, or --all")
		}
		if err := errors.Join(flags.check(), m.checkYes(flags.yes)); err != nil {
			return err
		}

		return t.with(cmd.Context(), args[0], func(q queue) error {
			found, filter, err := t.choose(cmd.Context(), q, m, filter)
			if err != nil {
				return err
			}
			return t.run(cmd.Context(), q, operation{verb: "purge", past: "purged", messages: found,
				byPosition: len(m.positions) > 0,
				do: func(ctx context.Context, s step) (outcome, error) {
					r, err := q.Purge(ctx, dlq.PurgeOptions{Filter: filter, Limit: s.limit, DryRun: s.dryRun,
						Undo: s.undo, Progress: s.progress, Settled: s.reported})
					return outcome{Report: r}, err
				}}, &flags)
		})
	}

	return cmd
}
