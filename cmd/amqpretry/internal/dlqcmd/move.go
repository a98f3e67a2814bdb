package dlqcmd

import (
	"context"
	"errors"

	"github.com/spf13/cobra"

	"github.com/amqpretry/watermill-retry/amqpretry/dlq"
	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/cli"
)

func (t *tool) move() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "move QUEUE [MESSAGE...] --to QUEUE",
		Short: "Move dead letters to another queue, unchanged",
		Long: `Move dead letters to another queue, unchanged. They stay dead letters, with all their headers. To try
them again, use "dlq replay".

The command first prints how many messages match. On a terminal it then asks for confirmation;
elsewhere it needs --yes. A message leaves the dead-letter queue after the broker has confirmed its
copy. A target that would drop messages is refused, unless --allow-drop is set.

` + messagesToTake + operationJSON,
		Example: `  amqpretry dlq move orders --to parked --error-type '*billing.OutageError'
  amqpretry dlq move orders --to orders.parked --older-than 7d --yes`,
		Args: cobra.MinimumNArgs(1),
	}
	filters := filterFlags(cmd)
	var (
		flags operationFlags
		pace  rate
	)
	to := cmd.Flags().String("to", "", "target queue")
	allowDrop := cmd.Flags().Bool("allow-drop", false, allowDropHelp)
	cmd.Flags().Var(&pace, "rate", "maximum rate: 100/s, 30/m, 5000/h (default: as fast as the broker confirms)")
	flags.add(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		filter, err := filters.build()
		if err != nil {
			return err
		}
		if *to == "" {
			return cli.Usage("--to: must be the name of a queue")
		}
		m, err := parseMessages(args[1:])
		if err := errors.Join(err, checkQueue("--to", *to), flags.check(), m.checkYes(flags.yes)); err != nil {
			return err
		}

		return t.with(cmd.Context(), args[0], func(q queue) error {
			switch *to {
			case q.Name():
				return cli.Usage("--to: %q is the dead-letter queue itself", *to)
			case q.MainQueue():
				return cli.Usage("--to: %q is the main queue: `amqpretry dlq replay %s` sends them back to it", *to,
					typed(t.Again(), *to))
			}
			found, filter, err := t.choose(cmd.Context(), q, m, filter)
			if err != nil {
				return err
			}
			return t.run(cmd.Context(), q, operation{verb: "move", past: "moved", to: *to, messages: found,
				byPosition: len(m.positions) > 0,
				do: func(ctx context.Context, s step) (outcome, error) {
					r, err := q.Move(ctx, dlq.MoveOptions{
						Filter: filter, To: *to, Limit: s.limit, Rate: float64(pace), DryRun: s.dryRun, Undo: s.undo,
						Progress: s.progress, AllowDrop: *allowDrop, Settled: s.reported,
					})
					return outcome{Report: r}, err
				}}, &flags)
		})
	}

	return cmd
}
