package dlqcmd

import (
	"github.com/spf13/cobra"

	"github.com/amqpretry/watermill-retry/amqpretry/dlq"
	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/cli"
)

const parkHelp = `

It first prints how many messages match. On a terminal it then asks for confirmation; elsewhere it
needs --yes. Each message is published into the dead-letter queue again, with the note in the header
amqpretry-parked, and its original leaves the queue after the broker has confirmed that. So these
messages are at the end of the queue then. If the command is killed, up to 256 messages can be in the
queue twice.

` + messagesToTake + operationJSON

func (t *tool) park() *cobra.Command {
	e := operation{plan: dlq.Plan{Kind: dlq.Park}, verb: "park", past: "parked"}

	return t.marking(&cobra.Command{
		Use:   "park QUEUE [MESSAGE...] --note TEXT",
		Short: "Leave dead letters out of replays, with a note",
		Long: `Park dead letters, with a note that says why. "dlq replay" leaves parked messages where they are,
unless it names them by MESSAGE, --uuid, --fingerprint or --parked, or has --include-parked. The other
commands treat them like any message. A replay forgets the note.

A message that has come back from 3 replays is parked without a note. The command needs MESSAGE or a
filter.` + parkHelp,
		Example: `  amqpretry dlq park orders 3 --note "waits for the new contract, ask legal"
  amqpretry dlq park orders --fingerprint 46782f56ee19 --note "fix is in release 7" --yes
  amqpretry dlq list orders --parked`,
	}, &e)
}

func (t *tool) unpark() *cobra.Command {
	e := operation{plan: dlq.Plan{Kind: dlq.Unpark}, verb: "unpark", past: "unparked"}

	return t.marking(&cobra.Command{
		Use:   "unpark QUEUE [MESSAGE...]",
		Short: "Let replays take parked dead letters again",
		Long: `Let replays take parked dead letters again, also those that are parked because they have come back
from 3 replays. It takes only messages that are parked. The command needs MESSAGE or a filter;
--parked selects all that are parked.` + parkHelp,
		Example: `  amqpretry dlq unpark orders --fingerprint 46782f56ee19 --note "release 7 is out"
  amqpretry dlq unpark orders --parked --yes`,
	}, &e)
}

// marking completes a command that parks or unparks.
func (t *tool) marking(cmd *cobra.Command, e *operation) *cobra.Command {
	cmd.Flags().StringVar(&e.plan.Note, "note", "", "why, at most 500 bytes")
	t.take(cmd, e, func(m messages, _ []string) error {
		if !e.filters.given() && !m.given() {
			return cli.Usage("wanted MESSAGE, or a filter, such as --fingerprint or --min-replays 1")
		}
		return nil
	}, nil)

	return cmd
}

// marks tells that the operation leaves the messages in their queue.
func (e *operation) marks() bool { return e.plan.Kind == dlq.Park || e.plan.Kind == dlq.Unpark }
