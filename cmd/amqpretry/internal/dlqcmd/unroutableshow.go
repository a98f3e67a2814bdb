package dlqcmd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/rabbitmq/amqp091-go"
	"github.com/spf13/cobra"

	"github.com/amqpretry/watermill-retry/amqpretry/dlq"
	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/cli"
	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/internal/header"
	"github.com/amqpretry/watermill-retry/internal/units"
)

func (u *unroutable) list() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List delayed messages that no target takes",
		Long: `List the delayed messages whose delay is over and that no target takes, of all ladders: how many there
are for each target, and the oldest ones. They stay in their queue, in order. While the command reads,
other consumers do not see them.

The target and the delay come from the routing key of the message, which its sender wrote. A message
without such a key was not sent by this library; its target is shown as -, and --foreign selects it.

--position shows one message in full; 1 is the oldest. If several ladders have messages, it needs
--ladder.

With --json: one line for each message (JSON Lines), {"ladder", "position", "target": {"exchange",
"key"}, "delay_ms", "due", "routing_key", "message"}; "target", "delay_ms" and "due" are absent when
unknown, the exchange of a queue is "", and "message" has the keys of "dlq show --json".`,
		Example: `  amqpretry delays unroutable list
  amqpretry delays unroutable list --target orders --limit 0 --json
  amqpretry delays unroutable list --position 1`,
		Args: cobra.NoArgs,
	}
	var chosen selection
	chosen.add(cmd)
	limit := cmd.Flags().Int("limit", 20, "maximum number of messages to list for each ladder; 0 means all")
	position := cmd.Flags().Int("position", 0, "position of the message to show in full; 1 is the oldest")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		switch byPosition := cmd.Flags().Changed("position"); {
		case *limit < 0:
			return cli.Usage("--limit: must be 0 or more, got %d", *limit)
		case byPosition && *position < 1:
			return cli.Usage("--position: must be 1 or more, got %d", *position)
		case byPosition && chosen.given():
			return cli.Usage("--position counts all messages of a ladder: leave --target, --target-exchange and " +
				"--foreign out")
		}
		if err := chosen.check(); err != nil {
			return err
		}
		if *position > 0 {
			return u.showOne(cmd, *position)
		}

		return u.showAll(cmd.Context(), &chosen, *limit)
	}

	return cmd
}

func (u *unroutable) showAll(ctx context.Context, chosen *selection, limit int) error {
	ladders, err := u.ladders(ctx)
	if err != nil {
		return err
	}
	if len(ladders) == 0 {
		return noLadder()
	}
	for _, ladder := range ladders {
		if err := u.withUnroutable(ctx, ladder.Ladder, "", func(q queue) error {
			return u.listOf(ctx, q, ladder.Ladder, chosen, limit)
		}); err != nil {
			return err
		}
	}

	return nil
}

// listOf prints what is selected of a ladder, up to a limit, and counts all of it.
func (u *unroutable) listOf(ctx context.Context, q queue, ladder topology.Ladder, chosen *selection, limit int) error {
	depth, hidden, err := q.Ready(ctx)
	if err != nil {
		return err
	}
	bar := u.Progress(q.Name(), depth)
	defer bar.Close()
	var (
		targets counted
		rows    [][]string
		matched int
		now     = u.Now()
	)
	for l, err := range q.Browse(ctx, chosen.filter(ladder)) {
		if err != nil {
			return errors.Join(u.printListed(&targets, rows), err)
		}
		bar.Set(l.Position)
		matched++
		d := delayedOf(ladder, l)
		targets.add(d.targetText())
		switch listed := limit == 0 || matched <= limit; {
		case !listed:
		case u.JSON:
			if err := u.PrintJSONLine(d); err != nil {
				return err
			}
		default:
			rows = append(rows, d.row(now))
		}
	}
	bar.Close()
	defer u.noteUnseenNow(ctx, q, hidden)
	if !u.JSON {
		if err := u.printListed(&targets, rows); err != nil {
			return err
		}
	}
	text := units.Many(matched, "message")
	if chosen.given() {
		text += " of " + units.Thousands(depth)
	}
	if limit > 0 && matched > limit {
		text = fmt.Sprintf("%s of %s; --limit lists more", units.Thousands(limit), text)
	}
	u.Note("%s: %s", q.Name(), text)

	return nil
}

func (u *unroutable) printListed(targets *counted, rows [][]string) error {
	if u.JSON || len(rows) == 0 {
		return nil
	}
	var counts [][]string
	for _, name := range targets.sorted() {
		counts = append(counts, []string{units.Thousands(targets.n[name]), shorten(name, maxErrorCell)})
	}
	if err := u.Table([]string{"messages", "target"}, counts); err != nil {
		return err
	}
	if _, err := fmt.Fprintln(u.Out); err != nil {
		return err
	}

	return u.Table([]string{"#", "target", "delay", "due", "uuid", "topic", "bytes"}, rows)
}

// delayed is a message that no target has taken.
type delayed struct {
	Ladder   string           `json:"ladder"`
	Position int              `json:"position"`
	Target   *topology.Target `json:"target,omitempty"`
	DelayMS  int64            `json:"delay_ms,omitempty"`
	// Due is when its delay was over, by the broker's clock.
	Due        time.Time      `json:"due,omitzero"`
	RoutingKey string         `json:"routing_key"`
	Message    dlq.DeadLetter `json:"message"`

	delay  time.Duration
	target topology.Target
	known  bool
}

func delayedOf(ladder topology.Ladder, l dlq.DeadLetter) delayed {
	d := delayed{Ladder: ladder.Name(), Position: l.Position, RoutingKey: l.CameBy.RoutingKey, Message: l}
	if d.target, d.known = targetOf(ladder, &l); d.known {
		d.Target = &d.target
	}
	_, d.delay, _ = ladder.ParseKey(l.CameBy.RoutingKey)
	d.DelayMS = d.delay.Milliseconds()
	if deaths, _ := l.Message.Headers[header.Death].([]any); len(deaths) > 0 {
		newest, _ := deaths[0].(amqp091.Table)
		if at, ok := newest["time"].(time.Time); ok && at.Year() > 0 && at.Year() < 10_000 {
			d.Due = at.UTC()
		}
	}

	return d
}

func (d delayed) targetText() string {
	if !d.known {
		return "-"
	}
	return d.target.String()
}

func (d delayed) delayText() string {
	if d.delay == 0 {
		return "-"
	}
	return config.FormatDelay(d.delay)
}

func (d delayed) row(now time.Time) []string {
	return []string{
		strconv.Itoa(d.Position), shorten(d.targetText(), maxNameCell), d.delayText(), since(d.Due, now),
		shorten(cmp.Or(d.Message.UUID, "-"), maxNameCell), shorten(cmp.Or(d.Message.Topic, "-"), maxNameCell),
		units.Thousands(len(d.Message.Message.Body)),
	}
}

func (u *unroutable) showOne(cmd *cobra.Command, position int) error {
	ctx := cmd.Context()
	ladder, err := u.one(cmd, &selection{})
	if err != nil {
		return err
	}

	return u.withUnroutable(ctx, ladder, "", func(q queue) error {
		l, err := u.named(ctx, q, messages{positions: []int{position}})
		if err != nil {
			return err
		}
		d := delayedOf(ladder, l)
		if u.JSON {
			return u.PrintJSON(d)
		}

		return u.printOne(q, d)
	})
}

func (u *unroutable) printOne(q queue, d delayed) error {
	l := d.Message
	p := &printer{tool: u.tool}
	p.section("Message", [][2]string{
		{"uuid", cmp.Or(l.UUID, "-")},
		{"place", fmt.Sprintf("%s of %s", units.Thousands(l.Position), q.Name())},
		{"target", d.targetText()},
		{"delay", d.delayText()},
		{"due", moment(d.Due, u.Now())},
		{"came here by", route(l.CameBy)},
		{"topic", l.Topic},
		{"handler", l.Handler},
		{"error", l.Error},
		{"error type", l.ErrorType},
		{"calls", told(l.Calls > 0, strconv.Itoa(l.Calls))},
		{"cannot be read", unreadable(l)},
	})

	return p.message(l)
}
