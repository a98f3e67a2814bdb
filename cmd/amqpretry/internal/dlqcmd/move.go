package dlqcmd

import (
	"context"

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
	}
	e := operation{plan: dlq.Plan{Kind: dlq.Move}, verb: "move", past: "moved"}
	cmd.Flags().StringVar(&e.plan.To, "to", "", "target queue")
	e.addRate(cmd)
	check := func(messages, []string) error {
		if e.plan.To == "" {
			return cli.Usage("--to: must be the name of a queue")
		}
		return nil
	}
	t.take(cmd, &e, check, func(_ context.Context, q queue) error {
		if to := e.plan.To; to == q.MainQueue() {
			return cli.Usage("--to: %q is the main queue: `amqpretry dlq replay %s` sends them back to it", to,
				typed(t.Again(), to))
		}
		return nil
	})

	return cmd
}
