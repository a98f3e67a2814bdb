package dlqcmd

import (
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
	}
	e := operation{plan: dlq.Plan{Kind: dlq.Purge}, verb: "purge", past: "purged"}
	all := cmd.Flags().Bool("all", false, "delete all messages; not with a filter")
	t.take(cmd, &e, func(m messages, args []string) error {
		switch {
		case *all && e.filters.given():
			return cli.Usage("--all and filters exclude each other: found --all %s", e.filters)
		case *all && m.given():
			return cli.Usage("--all and MESSAGE exclude each other: found --all %s", strings.Join(args[1:], " "))
		case !*all && !e.filters.given() && !m.given():
			return cli.Usage("wanted MESSAGE, a filter, such as --older-than 30d, or --all")
		}
		return nil
	}, nil)

	return cmd
}
