package dlqcmd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/amqpretry/watermill-retry/amqpretry/dlq"
	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/cli"
	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/internal/units"
)

// waits are the commands about messages that wait for a retry or for a delayed publish.
type waits struct {
	*tool
	ladders func() ([]topology.Ladder, error) // those that the command may be about
	shared  string
}

// Waits are the commands list, cancel, send, postpone and restore of the command delays. ladders
// gives the ladders that the command may be about.
func Waits(s *cli.Session, ladders func() ([]topology.Ladder, error)) []*cobra.Command {
	w := &waits{tool: &tool{Session: s}, ladders: ladders}

	return []*cobra.Command{w.list(), w.cancel(), w.send(), w.postpone(), w.restore()}
}

// of adds the flags that say whose messages a command is about.
func (w *waits) of(cmd *cobra.Command) *selection {
	var chosen selection
	chosen.addTarget(cmd)
	cli.SharedNameFlag(cmd.Flags(), &w.shared)
	cmd.MarkFlagsMutuallyExclusive("target", "target-exchange")

	return &chosen
}

// words are the flags that say where messages wait.
func (w *waits) words() (words []string) {
	if file := w.PolicyFile(); file != "" {
		words = append(words, "--policies", file)
	}
	if w.shared != "" {
		words = append(words, "--shared-name", w.shared)
	}

	return words
}

// dueFlags are the filters that only messages that wait have.
func dueFlags(cmd *cobra.Command) *filters {
	f := filterFlags(cmd)
	f.flags.Var(new(age), "due-within", "due within this time from now: 90s, 15m, 36h, 30d")
	f.flags.Var(new(age), "due-after", "due after this time from now: 90s, 15m, 36h, 30d")
	cmd.Flags().AddFlagSet(f.flags)

	return f
}

// with does something with the messages that wait for the chosen target.
func (w *waits) with(ctx context.Context, chosen *selection, do func(*dlq.Waits) error) error {
	if !chosen.given() {
		return cli.Usage("wanted --target QUEUE, or --target-exchange EXCHANGE")
	}
	if err := chosen.check(); err != nil {
		return err
	}
	target, _ := chosen.target()
	policies, err := w.Policies()
	if err != nil {
		return err
	}
	ladders, err := w.ladders()
	if err != nil {
		return err
	}
	client, err := w.DLQ(ctx, topology.Names{Shared: w.shared})
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }()
	of, err := client.Waits(target, policies.For(target.Key), ladders...)
	if err != nil {
		return err
	}
	err = asUsage(do(of))
	if missing := (*dlq.NoQueueError)(nil); errors.As(err, &missing) && missing.What == "target" {
		return hinted{err, "; `amqpretry topology apply` or a service declares it"}
	}

	return err
}

const waitsHelp = `

The messages wait in retry queues and in ladders: for a retry, or until the time of a delayed publish.
The policy file names the retry queues of the target. With the management API, those of delays that the
policy no longer has are found too. While the command reads a queue, each of its messages goes on when it
is due.`

func (w *waits) list() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "list --target QUEUE",
		Short: "List messages that wait, with the times when they are due",
		Long: `List the messages that wait for a target, the soonest first. They stay where they are.` + waitsHelp + `

A time with ~ is estimated: an older version of the library has sent the message, or the broker delays it
by itself. A time with < is the latest possible one, as the message tells no time.

Strategies: with redelivery and native, the broker delays messages in the main queue itself, where nobody
can read them. Only the copies that these strategies send are listed.

With --json: one line for each message (JSON Lines), with the keys of "dlq show --json" and "wait":
{"queue", "target": {"exchange", "key"}, "due", "not_before", "due_by"}. "due_by" is told, estimated or at
most. "not_before" is when the message is to be handled, if it waits again after "due"; else it is absent.`,
		Example: `  amqpretry delays list --target orders
  amqpretry delays list --target orders --due-within 5m --error-type '*net.OpError'
  amqpretry delays list --target orders --limit 0 --json | jq -r .failure.uuid`,
		Args: cobra.NoArgs,
	}
	chosen, filters := w.of(cmd), dueFlags(cmd)
	limit := cmd.Flags().Int("limit", 20, "maximum number of messages to list; 0 means all")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		filter, err := filters.build()
		if err != nil {
			return err
		}
		if *limit < 0 {
			return cli.Usage("--limit: must be 0 or more, got %d", *limit)
		}

		return w.with(cmd.Context(), chosen, func(of *dlq.Waits) error {
			return w.printList(cmd.Context(), of, filter, *limit)
		})
	}

	return cmd
}

func (w *waits) printList(ctx context.Context, of *dlq.Waits, filter dlq.Filter, limit int) error {
	found, matched, failed := of.Soonest(ctx, filter, limit)
	var rows [][]string
	for _, l := range found {
		if w.JSON {
			if err := w.PrintJSONLine(l); err != nil {
				return err
			}
			continue
		}
		rows = append(rows, []string{
			dueText(l.Wait, w.Now()), shorten(cmp.Or(l.UUID, "-"), maxNameCell), shorten(l.Wait.Queue, maxNameCell),
			strconv.Itoa(l.Calls), shorten(handlerAndTopic(l), maxNameCell),
			shorten(cmp.Or(l.Error, "-"), maxErrorCell),
		})
	}
	if len(rows) > 0 {
		if err := w.Table([]string{"due in", "uuid", "waits in", "calls", "handler/topic", "error"}, rows); err != nil {
			return err
		}
	}
	if failed != nil {
		return failed
	}
	text := units.Many(matched, "message")
	switch {
	case matched == 0:
		text = "no messages"
	case len(found) < matched:
		text = fmt.Sprintf("%s of %s; --limit lists more", units.Thousands(len(found)), text)
	}
	w.Note("%s: %s", of.Name(), text)

	return nil
}

// dueText is the time until a message is handled.
func dueText(wait *dlq.Wait, now time.Time) string {
	mark := map[dlq.DueBy]string{dlq.DueEstimated: "~", dlq.DueAtMost: "<"}[wait.DueBy]

	return mark + units.Elapsed(wait.End().Sub(now))
}

const waitsTake = waitsHelp + `

The command needs a filter or --all. It first prints how many messages match. On a terminal it then asks
for confirmation; elsewhere it needs --yes. A message whose wait ends meanwhile is not found any more.`

// take completes a command that does an operation with messages that wait. check looks at its own
// flags; nil for nothing.
func (w *waits) take(cmd *cobra.Command, e *operation, check func() error) *cobra.Command {
	chosen, filters := w.of(cmd), dueFlags(cmd)
	all := cmd.Flags().Bool("all", false, "all messages that wait for the target; not with a filter")
	cmd.Long += waitsTake + operationJSON
	cmd.Args = cobra.NoArgs
	e.filters = filters
	e.add(cmd, "waits_of_QUEUE")
	cmd.Long = strings.Replace(cmd.Long, `"dlq import" puts copies of its messages back.`,
		`"delays restore" lets copies of its messages wait again.`, 1)
	cmd.Flags().Var((*rate)(&e.plan.Rate), "rate", "maximum rate: 100/s, 30/m, 5000/h (default: as fast as the broker "+
		"takes them)")
	cmd.RunE = func(cmd *cobra.Command, _ []string) (err error) {
		if e.plan.Filter, err = filters.build(); err != nil {
			return err
		}
		switch {
		case *all && filters.given():
			return cli.Usage("--all and filters exclude each other: found --all %s", filters)
		case !*all && !filters.given():
			return cli.Usage("wanted a filter, such as --uuid UUID, or --all")
		}
		if check != nil {
			err = check()
		}
		if err := errors.Join(err, e.check(), asUsage(e.plan.Validate())); err != nil {
			return err
		}
		e.remarks = func(r dlq.Report) []string { return unknownUUIDs(e.plan.Filter.UUIDs, r) }

		return w.with(cmd.Context(), chosen, func(of *dlq.Waits) error {
			e.undo = func(path string) string {
				return fmt.Sprintf("Undo file: %s. To let copies wait again%s: amqpretry delays restore %s", path,
					map[bool]string{true: " (those that were sent stay)"}[e.plan.Kind != dlq.Cancel],
					typed(slices.Concat(w.Again(), w.words(), chosen.words(), []string{"--yes"}), path))
			}
			return w.run(cmd.Context(), of, e)
		})
	}

	return cmd
}

// unknownUUIDs says how many of the wanted messages were not there.
func unknownUUIDs(uuids []string, r dlq.Report) []string {
	if n := len(uuids) - r.Matched; n > 0 && r.Gone == 0 {
		return []string{fmt.Sprintf("%s of %s not found: they no longer wait, or never did", units.Thousands(n),
			units.Many(len(uuids), "UUID"))}
	}

	return nil
}

func (w *waits) cancel() *cobra.Command {
	return w.take(&cobra.Command{
		Use:   "cancel --target QUEUE",
		Short: "Delete messages that wait",
		Long: `Delete messages that wait for a target: retries that nobody wants, or delayed messages whose reason is
gone. A message is deleted after it is in the undo file, on disk.`,
		Example: `  amqpretry delays cancel --target orders --uuid 8f14e45f
  amqpretry delays cancel --target orders --header tenant=acme --yes`,
	}, &operation{plan: dlq.Plan{Kind: dlq.Cancel}, verb: "cancel", past: "cancelled"}, nil)
}

func (w *waits) send() *cobra.Command {
	return w.take(&cobra.Command{
		Use:   "send --target QUEUE",
		Short: "Send messages that wait to their target at once",
		Long: `Send messages that wait to their target at once. A retry stays the retry that it is, with its attempt,
its history and its deadline. Services of an older version let it wait for the rest of its delay.

A retry queue dead-letters the message itself. Of a message in a ladder, the command sends a copy through
the landing queue of the target.`,
		Example: `  amqpretry delays send --target orders --uuid 8f14e45f
  amqpretry delays send --target orders --error-type '*net.OpError' --rate 50/s --yes`,
	}, &operation{plan: dlq.Plan{Kind: dlq.SendNow}, verb: "send", past: "sent"}, nil)
}

func (w *waits) postpone() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "postpone --target QUEUE",
		Short: "Let messages wait longer",
		Long: `Let messages wait until a later time: --for counts from now, --until is a time. A message that is due
later already stays as it is. So does one whose deadline is before that time.

A message in a ladder waits in that ladder again. One in a retry queue waits as often as it takes, at most
for the policy's MaxPostpone after its last failure: its service sends it to wait again until the time.`,
		Example: `  amqpretry delays postpone --target orders --all --for 1h
  amqpretry delays postpone --target orders --uuid 8f14e45f --until 2026-12-01T06:00:00Z`,
	}
	var by age
	var until string
	cmd.Flags().Var(&by, "for", "time to wait from now: 90s, 15m, 36h, 30d")
	cmd.Flags().StringVar(&until, "until", "", "`time` until which to wait, such as 2026-12-01T06:00:00Z")
	e := &operation{plan: dlq.Plan{Kind: dlq.Postpone}, verb: "postpone", past: "postponed"}

	return w.take(cmd, e, func() (err error) {
		if (by.Duration == 0) == (until == "") {
			return cli.Usage("wanted one of --for DURATION and --until TIME")
		}
		if e.plan.Until = w.Now().Add(by.Duration); until != "" {
			if e.plan.Until, err = time.Parse(time.RFC3339, until); err != nil {
				return cli.Usage("--until: wanted a time, such as 2026-12-01T06:00:00Z, got %q", until)
			}
		}
		if !e.plan.Until.After(w.Now()) {
			return cli.Usage("wanted a later time: `amqpretry delays send` sends messages at once")
		}

		return nil
	})
}

func (w *waits) restore() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "restore --target QUEUE FILE",
		Short: "Let the messages of an undo file wait again",
		Long: `Let the messages of an undo file of cancel, send or postpone wait again: each in the queue from which it
was taken, for the whole delay of that queue. Without --yes the command counts them.

Messages that were sent or postponed may have been handled since. They would be handled twice.

With --json: one object, {"seen", "matched", "done"}.`,
		Example: `  amqpretry delays restore --target orders waits_of_orders-cancel-20261122T051200Z.jsonl
  amqpretry delays restore --target orders --yes cancelled.jsonl`,
		Args: cobra.ExactArgs(1),
	}
	chosen := w.of(cmd)
	yes := cmd.Flags().Bool("yes", false, "send the messages to wait")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		file, err := os.Open(args[0])
		if err != nil {
			return cli.Usage("FILE: %v", err)
		}
		defer func() { _ = file.Close() }()

		return w.with(cmd.Context(), chosen, func(of *dlq.Waits) error {
			r, err := of.Import(cmd.Context(), file, dlq.ImportOptions{DryRun: !*yes})
			if w.JSON {
				return errors.Join(w.PrintJSON(r.Progress), err)
			}
			if err == nil && !*yes {
				w.Warn("This was a dry run: nothing was sent. --yes does it.")
				return w.printSafe("%s: %s can wait again", of.Name(), units.Many(r.Matched, "message"))
			}

			return errors.Join(w.printSafe("%s: %s of %s wait again", of.Name(), units.Thousands(r.Done),
				units.Many(r.Matched, "message")), err)
		})
	}

	return cmd
}
