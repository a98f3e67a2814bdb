package dlqcmd

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/spf13/cobra"

	"github.com/amqpretry/watermill-retry/amqpretry/dlq"
	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/cli"
)

func (t *tool) replay() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "replay QUEUE",
		Short: "Send dead letters back to the queue that has failed them",
		Long: `Send dead letters back to the queue that has failed them, or to another one (--to). They begin a new
life there: at the first attempt, without deadline, with the history of before. Other subscribers of
the topic do not see them again.

First it says how many match, how many can go, and which cannot and why. On a terminal it asks then;
else nothing is done without --yes. A message leaves the dead-letter queue when the broker has
confirmed its copy. A message that is killed in between is in both queues.

--canary 10 sends ten first. The others follow when it is known that all of them but --tolerate were
handled: whoever consumes the queue with watermill-retry says so, also after retries. It stops when
more than that have failed for good, when --watch is over and too few are known to be handled, or
when nobody consumes the queue. --watch should be longer than all delays of the policy together; it
is over as soon as all is known. The others are not watched.

A message whose headers say that another queue has failed it is left, unless --foreign is given.

--edit opens the body of one message in $VISUAL or $EDITOR; --body takes it from a file, or from
standard input (-); --set-header and --remove-header change headers. The filter must match exactly
one message then; --edit-all allows more (not with --edit). What was changed goes with the message,
for "dlq show".` + operationJSON + `
Further keys: "run" (in the header amqpretry-replay of what was replayed), "canary": {"sent",
"handled", "dead_lettered", "dropped", "unresolved", "retried" (of those), "stopped" (why)}.`,
		Example: `  amqpretry dlq replay orders --reason exhausted --newer-than 2h
  amqpretry dlq replay orders --canary 10 --rate 100/s --yes
  amqpretry dlq replay orders --uuid 4f6c8a52-9d0e-4b2b-a1de-7a8a3f1c2b10 --edit
  amqpretry dlq replay orders --handler bill --to orders.repair --limit 100 --yes`,
		Args: cobra.ExactArgs(1),
	}
	filters := filterFlags(cmd)
	var (
		flags operationFlags
		edits edits
		pace  rate
		o     dlq.ReplayOptions
	)
	cmd.Flags().Var(cli.Text(&o.To), "to", "queue to which they go (default: QUEUE)")
	cmd.Flags().Var(&pace, "rate", "how many at most: 100/s, 30/m, 5000/h (default: as fast as the broker confirms)")
	cmd.Flags().IntVar(&o.Canary.Messages, "canary", 0, "how many go first, to see what becomes of them")
	cmd.Flags().DurationVar(&o.Canary.Watch, "watch", 15*time.Minute, "with --canary: how long to wait until it is "+
		"known what has become of them")
	cmd.Flags().IntVar(&o.Canary.Tolerate, "tolerate", 0, "with --canary: how many may be dead-lettered again, or "+
		"dropped")
	cmd.Flags().BoolVar(&o.Foreign, "foreign", false, "also those whose headers say that another queue has failed them")
	edits.add(cmd)
	flags.add(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		ctx := cmd.Context()
		var err error
		if o.Filter, err = filters.build(); err != nil {
			return err
		}
		if err := checkCanary(cmd, &o.Canary); err != nil {
			return err
		}
		change, err := edits.check()
		if err := errors.Join(checkQueue("--to", o.To), flags.check(), err, t.checkEditor(edits, flags)); err != nil {
			return err
		}
		o.Rate = float64(pace)

		return t.with(ctx, args[0], func(q queue) error {
			if o.To == q.Name() {
				return cli.Usage("--to: %q is the dead-letter queue itself", o.To)
			}
			if o.Filter, o.Edit, err = t.edit(ctx, q, o.Filter, edits, change); err != nil {
				return err
			}
			t.tellOfCanary(&o.Canary)
			e := replaying(q, o)
			e.remarks = change.remarks
			return t.run(ctx, q, e, &flags)
		})
	}

	return cmd
}

func replaying(q queue, o dlq.ReplayOptions) operation {
	return operation{verb: "replay", past: "replayed", to: cmp.Or(o.To, q.MainQueue()),
		do: func(ctx context.Context, s step) (outcome, error) {
			o.DryRun, o.Limit, o.Undo, o.Progress = s.dryRun, s.limit, s.undo, s.progress
			r, err := q.Replay(ctx, o)
			done := outcome{Report: r.Report, run: r.Run, editing: r.EditError}
			if o.Canary.Messages > 0 && !s.dryRun {
				done.canary = &r.Canary
			}

			return done, err
		}}
}
