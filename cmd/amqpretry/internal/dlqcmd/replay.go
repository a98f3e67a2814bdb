package dlqcmd

import (
	"context"
	"errors"
	"time"

	"github.com/spf13/cobra"

	"github.com/amqpretry/watermill-retry/amqpretry/dlq"
	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/cli"
)

const replayHelp = `Send dead letters back to the queue where they failed, or to another one (--to). They start again
with the first attempt and without a deadline, and keep their history. Other subscribers of the topic
do not receive them.

The command first prints how many messages match, how many of them it can send, and why it cannot
send the others. On a terminal it then asks for confirmation; elsewhere it needs --yes. A message
leaves the dead-letter queue after the broker has confirmed its copy. If the command is killed in
between, a message can be in both queues.

` + messagesToTake + `

--canary 10 sends ten messages first. It sends the others after those ten were handled, retries
included; --tolerate allows some to fail. Consumers with watermill-retry report the results. The
canary stops the run when more messages have failed for good, when nobody consumes the queue, or when
--watch is over and too few results are known. Make --watch longer than the sum of the policy's
delays; it ends as soon as all results are known.

A message that failed in another queue, by its headers, is left in place unless --foreign is set.

Parked messages are left in place: those of "dlq park", and those that have come back from 3 replays.
MESSAGE, --uuid, --fingerprint, --parked and --include-parked replay them too.

--to-origin empties a dead-letter queue that several queues share. Each message goes to the queue in
which it failed, by the headers of watermill-retry, NServiceBus, MassTransit or Spring, or by x-death.
The command prints these queues, and asks; with --yes it needs --origin for each queue to which
messages may go, or --all-origins. Messages stay if they name no queue, another one, or one that does
not exist.

A target that would drop messages, because of a length limit or a message TTL, is refused unless
--allow-drop is set. Limits that a policy sets are visible only with the management API; without it,
the command reports dropped messages afterwards.

--edit opens the body in $VISUAL or $EDITOR. --body reads it from a file, or from standard input (-).
--set-header and --remove-header change headers. MESSAGE or the filter must select exactly one
message; with --edit-all, --body, --set-header and --remove-header change all that are selected. The
message keeps a record of the edit for "dlq show".

--filter-body gives the body of each selected message to a command, which prints the new one. "sh -c"
runs the command, once for each message and one at a time. When it fails, prints nothing, or takes longer than
--filter-timeout, the message stays, and the report has the first 500 bytes of its standard error. The
command gets bodies with the content encoding gzip unpacked. A dry run also runs it, and prints the
first 3 changes.` + operationJSON + `
  edited     messages that an edit changes; absent if there are none
  edit_errors  messages that an edit refuses: [{"why", "uuid", "messages"}], "uuid" is the first one;
             absent if there are none
  origins    with --to-origin: [{"queue", "messages", "target", "problem"}]; "problem" says why no
             message can go there
  run        the value of the header amqpretry-replay in the replayed messages
  canary     {"sent", "handled", "dead_lettered", "dropped", "unresolved", "retried", "watched",
             "stopped"}; absent without --canary. "unresolved" counts messages without a final result,
             "retried" those of them that have failed and wait for another attempt. "watched" is false
             when no other messages were to follow, so the results were not awaited. "stopped" has the
             cause; it is absent when the others were sent`

func (t *tool) replay() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "replay QUEUE [MESSAGE...]",
		Short: "Send dead letters back to the queue where they failed",
		Long:  replayHelp,
		Example: `  amqpretry dlq replay orders --reason exhausted --newer-than 2h
  amqpretry dlq replay orders --canary 10 --rate 100/s --yes
  amqpretry dlq replay orders 4f6c8a52-9d0e-4b2b-a1de-7a8a3f1c2b10 --edit
  amqpretry dlq replay orders --handler bill --to orders.repair --limit 100 --yes`,
	}
	var (
		e     = operation{plan: dlq.Plan{Kind: dlq.Replay}, verb: "replay", past: "replayed"}
		edits edits
		p     = &e.plan
	)
	cmd.Flags().Var(cli.Text(&p.To), "to", "target queue (default: QUEUE)")
	e.addRate(cmd)
	cmd.Flags().IntVar(&p.Messages, "canary", 0, "number of messages to send first; the others wait for their results")
	cmd.Flags().DurationVar(&p.Watch, "watch", 15*time.Minute, "with --canary: maximum wait for the results")
	cmd.Flags().IntVar(&p.Tolerate, "tolerate", 0, "with --canary: number of messages that may be dead-lettered again "+
		"or dropped")
	cmd.Flags().BoolVar(&p.Foreign, "foreign", false, "include messages that failed in another queue, by their headers")
	cmd.Flags().BoolVar(&p.IncludeParked, "include-parked", false, "include parked messages")
	e.addOrigins(cmd)
	edits.add(cmd)
	check := func(m messages, _ []string) error {
		if err := checkCanary(cmd, &p.Canary); err != nil {
			return err
		}
		if err := e.checkOrigins(); err != nil {
			return err
		}
		if m.given() && p.Messages > 0 {
			return cli.Usage("--canary and MESSAGE exclude each other: a canary is a part of what a filter selects")
		}
		edits.others = e.filters.others(cmd)
		var err error
		p.Change, err = edits.check()

		return errors.Join(err, t.checkEditor(edits, &e))
	}
	t.take(cmd, &e, check, func(ctx context.Context, q queue) error {
		t.tellOfCanary(&p.Canary)
		return t.edit(ctx, q, &e, edits)
	})

	return cmd
}
