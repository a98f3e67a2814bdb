// Package delayscmd is the command delays: how many messages wait, and what to do with them, and
// with those that no target takes. The latter two are done by the code of the command dlq.
package delayscmd

import (
	"github.com/spf13/cobra"

	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/cli"
	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/dlqcmd"
)

// Command is the command.
func Command(s *cli.Session) *cobra.Command {
	l := &ladders{s}
	cmd := &cobra.Command{
		Use:   "delays",
		Short: "Count, list, cancel, send and postpone messages that wait, and handle those that no target takes",
		Long: `Count the messages that wait for a retry or a delayed publish, list them, and cancel, send or postpone
them. List, send on or discard those that no target takes.

Messages with exact delays wait in a ladder: queues that all services of a virtual host share. A
message whose delay is over goes through the landing queue of its target, such as orders.landing. If
there is no such queue, it goes to the ladder's queue for unroutable messages and stays there.

Messages in a landing queue cannot be consumed: the broker is about to hand them over. If they stay,
their main queue is missing, full or down. Declare it, drain it or start its nodes; the messages follow
within 3 minutes. Deleting the landing queue discards them.

The commands are about the ladders of the policy file, and the two default ladders if they exist.
--ladder names one by the name of its objects, such as amqpretry.delay.v1.100ms.10x6.

Exit codes: 0 done, also when there is nothing; 1 failed; 2 wrong usage; 4 done in part: some matching
messages were left or not visible; 130 interrupted (^C), possibly after a part was done.`,
	}
	s.ConnectionFlags(cmd)
	s.PoliciesFlag(cmd)
	s.LadderFlag(cmd, "")
	cmd.AddCommand(statCommand(s, l))
	cmd.AddCommand(dlqcmd.Waits(s, l.topologies)...)
	cmd.AddCommand(dlqcmd.Unroutable(s, l.withUnroutable))

	return cmd
}
