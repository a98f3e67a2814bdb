package dlqcmd

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/amqpretry/watermill-retry/amqpretry/dlq"
	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/cli"
	"github.com/amqpretry/watermill-retry/config/topology"
)

// unroutable are the commands about delayed messages that no target takes. They lie in a queue of a
// ladder, and the same is done with them as with dead letters, by the same code.
type unroutable struct {
	*tool
	// ladders gives those that the command is about, and that the broker has.
	ladders func(context.Context) ([]Ladder, error)
}

// Ladder is a ladder with a queue for unroutable messages.
type Ladder struct {
	topology.Ladder
	// Ready is how many messages of that queue are ready. It is not set for the only ladder.
	Ready int
}

// Unroutable is the command delays unroutable. ladders gives the ladders that the broker has.
func Unroutable(s *cli.Session, ladders func(context.Context) ([]Ladder, error)) *cobra.Command {
	u := &unroutable{&tool{Session: s, open: open(s), broker: broker(s)}, ladders}
	cmd := &cobra.Command{
		Use:   "unroutable",
		Short: "List, send on or discard delayed messages that no target takes",
		Long: `List, send on or discard the messages whose delay is over and that no target takes: there is no landing
queue for their target. They stay in the ladder's queue for unroutable messages.

send and discard take the ladder with messages that match. --ladder is needed only if several have such
messages.

Exit codes: 0 done, also when there is nothing; 1 failed; 2 wrong usage; 4 done in part: some matching
messages were left or not visible; 130 interrupted (^C), possibly after a part was done.`,
	}
	cmd.AddCommand(u.list(), u.send(), u.discard())

	return cmd
}

// selection are the flags that say which messages.
type selection struct {
	queue, exchange, key string
	foreign              bool
}

func (f *selection) addTarget(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.Var(cli.Text(&f.queue), "target", "target `queue` of the messages, such as orders")
	flags.Var(cli.Text(&f.exchange), "target-exchange", "target `exchange` of the messages")
	flags.Var(cli.Text(&f.key), "target-key", "routing `key` of the target exchange")
}

// words are the flags of a target.
func (f *selection) words() []string {
	if f.queue != "" {
		return []string{"--target", f.queue}
	}
	return []string{"--target-exchange", f.exchange, "--target-key", f.key}
}

func (f *selection) add(cmd *cobra.Command) {
	f.addTarget(cmd)
	flags := cmd.Flags()
	flags.BoolVar(&f.foreign, "foreign", false, "messages whose routing key names no target")
	cmd.MarkFlagsMutuallyExclusive("target", "target-exchange", "foreign")
}

// given tells whether there is a selection.
func (f *selection) given() bool { return f.queue != "" || f.exchange != "" || f.foreign }

func (f *selection) check() error {
	if f.key != "" && f.exchange == "" {
		return cli.Usage("--target-key needs --target-exchange, the exchange whose routing key it is")
	}
	return checkQueue("--target", f.queue)
}

// target is the one that is named; false for messages without one.
func (f *selection) target() (topology.Target, bool) {
	if f.queue != "" {
		return topology.Target{Key: f.queue}, true
	}
	return topology.Target{Exchange: f.exchange, Key: f.key}, f.exchange != ""
}

// filter matches the messages of a ladder that are selected.
func (f *selection) filter(ladder topology.Ladder) dlq.Filter {
	if !f.given() {
		return dlq.Filter{}
	}
	wanted, named := f.target()

	return dlq.Filter{Where: func(l *dlq.DeadLetter) bool {
		target, known := targetOf(ladder, l)
		return known == named && target == wanted
	}}
}

// targetOf is where a message was to go, by the routing key with which it came through the ladder.
// Anybody can have written that, so it only selects messages: a person names where they are sent.
func targetOf(ladder topology.Ladder, l *dlq.DeadLetter) (target topology.Target, known bool) {
	target, _, known = ladder.ParseKey(l.CameBy.RoutingKey)
	return target, known && target != topology.Target{} // a queue has a name
}

// one is the ladder that has messages of a selection, or any of those without such messages.
func (u *unroutable) one(cmd *cobra.Command, chosen *selection) (topology.Ladder, error) {
	ctx := cmd.Context()
	ladders, err := u.ladders(ctx)
	switch {
	case err != nil:
		return topology.Ladder{}, err
	case len(ladders) == 0:
		return topology.Ladder{}, noLadder()
	case len(ladders) == 1:
		return ladders[0].Ladder, nil
	}
	having := slices.DeleteFunc(slices.Clone(ladders), func(l Ladder) bool { return l.Ready == 0 })
	if len(having) > 1 && chosen.given() {
		if having, err = u.matching(ctx, having, chosen); err != nil {
			return topology.Ladder{}, err
		}
	}
	switch len(having) {
	case 0:
		u.Note("no such messages are ready in %s", joined(ladders, ", ", topology.Ladder.Unroutable))
		return ladders[0].Ladder, nil
	case 1:
		return having[0].Ladder, nil
	default:
		return topology.Ladder{}, cli.Usage("%d ladders have such messages; name one with --ladder:\n%s", len(having),
			joined(having, "\n", func(l topology.Ladder) string {
				return "  " + cli.CommandLine(cmd, "--ladder="+l.Name())
			}))
	}
}

// matching are the ladders with messages of a selection.
func (u *unroutable) matching(ctx context.Context, ladders []Ladder, chosen *selection) (found []Ladder, err error) {
	for _, l := range ladders {
		err := u.withUnroutable(ctx, l.Ladder, "", func(q queue) error {
			for _, err := range q.Browse(ctx, chosen.filter(l.Ladder)) {
				if err == nil {
					found = append(found, l)
				}
				return err
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
	}

	return found, nil
}

func joined(ladders []Ladder, separator string, text func(topology.Ladder) string) string {
	texts := make([]string, len(ladders))
	for i, l := range ladders {
		texts[i] = text(l.Ladder)
	}

	return strings.Join(texts, separator)
}

func noLadder() error {
	return fmt.Errorf("there is no ladder on this virtual host; pass the policy file that has it (--policies), or " +
		"its name (--ladder)")
}

// withUnroutable does something with the unroutable queue of a ladder. Without a main queue each
// message tells its own.
func (u *unroutable) withUnroutable(ctx context.Context, ladder topology.Ladder, mainQueue string,
	do func(queue) error) error {
	u.deadLetterQueue = ladder.Unroutable()
	q, client, err := u.open(ctx, u.deadLetterQueue, mainQueue)
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }()

	if err := u.explain(do(q), q); err != nil {
		return unroutableError{err}
	}
	return nil
}

// unroutableError is an error of the code for dead letters, in the words of the command delays.
type unroutableError struct{ error }

func (e unroutableError) Error() string {
	return strings.NewReplacer(
		"a dead-letter queue", "an unroutable queue",
		"dead-letter queue", "unroutable queue",
		"replay, move, purge or browse", "send, discard or list",
		"(replay, move, import)", "(send)",
	).Replace(e.error.Error())
}

func (e unroutableError) Unwrap() error { return e.error }

const sendHelp = `Send delayed messages that no target takes to a queue, after it was declared: mostly to their target,
whose delay is over. They begin with the first attempt, as after a "dlq replay", and keep their
history. Declare the landing queue of the target first, or more messages become unroutable. For
retries, "amqpretry topology apply" or the service of the queue does that; for delayed publishing, the
next delayed publish to the target, after 30 s at most.

You name the target. Its messages are found by their routing keys, and are sent to no other queue
than --to, or --target without it. A target that is an exchange needs --to: messages go to a queue,
not through the exchange.

The command first prints how many messages match. On a terminal it then asks for confirmation;
elsewhere it needs --yes. A message leaves the unroutable queue after the broker has confirmed its
copy. If the command is killed in between, a message can be in both queues.`

func (u *unroutable) send() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "send --target QUEUE",
		Short: "Send delayed messages on that no target took",
		Long:  sendHelp + operationJSON,
		Example: `  amqpretry delays unroutable list
  amqpretry delays unroutable send --target orders --dry-run
  amqpretry delays unroutable send --target orders --to orders.repair --yes
  amqpretry delays unroutable send --target-exchange events --target-key paid --to billing`,
		Args: cobra.NoArgs,
	}
	var chosen selection
	e := operation{plan: dlq.Plan{Kind: dlq.Replay, Foreign: true}, verb: "send", past: "sent"}
	to := &e.plan.To
	chosen.add(cmd)
	cmd.Flags().StringVar(to, "to", "", "`queue` to which the messages go (default: that of --target)")
	e.addRate(cmd)
	e.add(cmd, "LADDER.unroutable")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if !chosen.given() {
			return cli.Usage("wanted --target QUEUE, --target-exchange EXCHANGE or --foreign; " +
				"`amqpretry delays unroutable list` lists the targets")
		}
		if err := errors.Join(chosen.check(), checkQueue("--to", *to), e.check()); err != nil {
			return err
		}
		if *to == "" {
			*to = chosen.queue
		}
		if *to == "" {
			return cli.Usage("--to: wanted a queue, as the messages were for no queue")
		}
		return u.take(cmd, &e, &chosen)
	}

	return cmd
}

// take does an operation with the selected messages of a ladder.
func (u *unroutable) take(cmd *cobra.Command, e *operation, chosen *selection) error {
	ladder, err := u.one(cmd, chosen)
	if err != nil {
		return err
	}
	if e.plan.To == ladder.Unroutable() {
		return cli.Usage("--to: %q is the unroutable queue itself", e.plan.To)
	}
	e.plan.Filter = chosen.filter(ladder)

	return u.withUnroutable(cmd.Context(), ladder, chosen.queue, func(q queue) error {
		return u.run(cmd.Context(), q, e)
	})
}

func (u *unroutable) discard() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "discard --target QUEUE",
		Short: "Delete delayed messages that no target takes",
		Long: `Delete delayed messages that no target takes: those of a target that is gone for good, or --all.

The command first prints how many messages match. On a terminal it then asks for confirmation;
elsewhere it needs --yes. A message is deleted after it is in the undo file, on disk.` + operationJSON,
		Example: `  amqpretry delays unroutable discard --target orders --dry-run
  amqpretry delays unroutable discard --foreign --undo foreign.jsonl --yes`,
		Args: cobra.NoArgs,
	}
	var chosen selection
	e := operation{plan: dlq.Plan{Kind: dlq.Purge}, verb: "discard", past: "discarded"}
	chosen.add(cmd)
	all := cmd.Flags().Bool("all", false, "delete all unroutable messages of the ladder")
	cmd.MarkFlagsMutuallyExclusive("all", "target")
	cmd.MarkFlagsMutuallyExclusive("all", "target-exchange")
	cmd.MarkFlagsMutuallyExclusive("all", "foreign")
	e.add(cmd, "LADDER.unroutable")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if !chosen.given() && !*all {
			return cli.Usage("wanted --target QUEUE, --target-exchange EXCHANGE, --foreign or --all")
		}
		if err := errors.Join(chosen.check(), e.check()); err != nil {
			return err
		}

		return u.take(cmd, &e, &chosen)
	}

	return cmd
}

// counted are targets with how many messages are for each, the most first.
type counted struct {
	names []string
	n     map[string]int
}

func (c *counted) add(name string) {
	if c.n == nil {
		c.n = map[string]int{}
	}
	if c.n[name] == 0 && len(c.n) >= mostNames { // whoever makes up names cannot fill the memory
		name = otherTargets
	}
	if c.n[name] == 0 {
		c.names = append(c.names, name)
	}
	c.n[name]++
}

const (
	otherTargets = "(others)"
	mostNames    = 10_000
)

func (c *counted) sorted() []string {
	slices.SortStableFunc(c.names, func(a, b string) int { return c.n[b] - c.n[a] })
	return c.names
}
