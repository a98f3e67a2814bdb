package groupcmd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/cli"
	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/inspect"
	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/internal/httpapi"
	"github.com/amqpretry/watermill-retry/internal/retire"
	"github.com/amqpretry/watermill-retry/internal/shell"
)

const (
	patience = 90 * time.Second // for one answer of the broker
	poll     = time.Second
)

// apply does all steps. Everything that it has to know is on the broker, so it can begin anywhere.
func (c *change) apply(ctx context.Context) (err error) {
	c.broker, err = inspect.Connect(ctx, func(ctx context.Context) (*amqp091.Connection, error) {
		connection, err := c.session.Dial(ctx)
		c.connection = connection
		return connection, err
	}, patience)
	if err != nil {
		return err
	}
	defer c.broker.Close()

	for _, p := range c.parts {
		if err := c.declare(ctx, p); err != nil {
			return err
		}
	}
	for _, p := range c.parts {
		if err := c.unbind(ctx, p); err != nil {
			return err
		}
	}
	if err := c.drain(ctx); err != nil {
		return err
	}

	return c.retire(ctx)
}

// declare declares what the new group has, as far as there is an old one.
func (c *change) declare(ctx context.Context, p *part) error {
	if p.to == "" {
		return nil
	}
	old, err := c.client.Queue(ctx, p.queue)
	if httpapi.NotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if n, err := c.look(p.to); err != nil {
		return err
	} else if !n.there {
		if err := checkExpires(p.queue, p.to, old.Arguments); err != nil {
			return err
		}
		main := topology.Queue{Name: p.to, Arguments: renamed(old.Arguments, p.queue, p.to)}
		if err := c.broker.Declare(topology.Plan{Queues: []topology.Queue{main}}); err != nil {
			return err
		}
	}
	if p.plan.Ladder != nil {
		if err := c.broker.Declare(p.plan.Ladder.Shared()); err != nil {
			return err
		}
	}
	if err := c.broker.Declare(p.plan); err != nil {
		return err
	}
	p.mark(declares, p.to, nil)

	return nil
}

// checkExpires refuses a queue that would be deleted with its messages while nobody consumes.
func checkExpires(queue, to string, arguments httpapi.Arguments) error {
	if arguments[amqp091.QueueTTLArg] == nil {
		return nil
	}

	return fmt.Errorf("queue %q has the argument %s: a queue %q that has it too could be deleted with its messages "+
		"before anybody consumes from it; declare %[3]q without it, and run this again", queue, amqp091.QueueTTLArg, to)
}

// renamed are the arguments of a queue for its new name: some name its dead-letter queue, or the
// exchange of a strategy. Other names may begin in the same way.
func renamed(arguments httpapi.Arguments, from, to string) amqp091.Table {
	table := amqp091.Table{}
	for key, value := range arguments {
		text, _ := value.(string)
		rest, has := strings.CutPrefix(text, from)
		if has && (rest == "" || rest == ".dlq" || strings.HasPrefix(rest, ".rejected.")) {
			value = to + rest
		}
		table[key] = value
	}

	return table
}

// unbind takes the old queue from its exchanges, after it has bound the new one in the same way.
func (c *change) unbind(ctx context.Context, p *part) error {
	var h held
	p.unacked = 0
	if n, err := c.look(p.queue); err != nil || !n.there {
		return err
	}
	h.main = &retire.Queue{}
	if err := c.bindings(ctx, p, &h); err != nil {
		return err
	}
	if h.counts.Unacked != nil {
		p.unacked = *h.counts.Unacked
	}
	for _, b := range h.bindings {
		if p.to != "" {
			bound := b
			bound.Queue = p.to
			if err := c.client.Bind(ctx, bound); err != nil {
				return err
			}
		}
		if err := c.client.Unbind(ctx, b); err != nil && !httpapi.NotFound(err) {
			return err
		}
		if p.to != "" {
			p.done(binds, "to exchange "+b.Exchange)
		}
		if p.done(unbinds, "from exchange "+b.Exchange) {
			continue
		}
		c.session.Note("%s: an old instance has bound it to exchange %q again: it is unbound", p.queue, b.Exchange)
	}

	return nil
}

// done marks a step about a binding; false if it was done before.
func (p *part) done(action action, detail string) bool {
	for _, s := range p.steps {
		if s.Action == action && s.Detail == detail && s.State == inspect.Planned {
			s.State = stateDone
			return true
		}
	}

	return false
}

// depth is what AMQP tells of a queue, without the lag of the management API.
type depth struct {
	there            bool
	ready, consumers int
}

func (c *change) look(queue string) (d depth, err error) {
	there, ready, consumers := c.broker.Queue(queue)
	if !there.Known {
		if there.Err == nil {
			there.Err = errors.New(there.Why)
		}
		return d, fmt.Errorf("queue %q: %w", queue, there.Err)
	}

	return depth{there.Value, ready, consumers}, nil
}

// drain waits until the old queues are empty and have no consumers.
func (c *change) drain(ctx context.Context) error {
	said, quiet := "", time.Now()
	for {
		messages, consumers, unacked, wait, full := 0, 0, int64(0), time.Duration(0), ""
		for _, p := range c.parts {
			d, shared, err := c.drainOnce(ctx, p)
			if err != nil {
				return err
			}
			if d.ready > 0 && d.consumers == 0 {
				full = p.queue
			}
			unacked += p.unacked
			if messages, consumers = messages+d.ready, consumers+d.consumers; shared {
				wait = max(wait, c.waits(p))
			}
		}
		if c.begins(messages, consumers, unacked) {
			quiet = time.Now()
		}
		rest := wait - time.Since(quiet)
		if messages+consumers == 0 && rest <= 0 {
			break
		}
		if full != "" && c.to == "" {
			return &cli.ExitError{Code: cli.ExitIncomplete, Err: fmt.Errorf("group %q has %s, and queue %q no "+
				"consumer: start an instance of the group, or run `%s`; then run the same command again", c.from,
				cli.Times(messages, "message"), full, c.purge(full, "--dead-letter-queue", shell.Quote(full)))}
		}
		if text := c.waitsFor(messages, consumers, unacked, rest); text != said {
			said = text
			c.session.Note("%s", text)
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(poll):
		}
	}
	for _, p := range c.parts {
		if p.to == "" && p.held.main != nil {
			p.mark(drains, p.queue, nil)
		}
	}

	return nil
}

// purge is a command to paste.
func (c *change) purge(queue string, flags ...string) string {
	commands := cli.Commands{}
	for _, flag := range c.session.Again() {
		commands.Again = append(commands.Again, shell.Quote(flag))
	}

	return commands.AMQPRetry("dlq purge", append(append([]string{"--all"}, flags...), queue)...)
}

// begins tells that the wait for queues of all services begins again: old instances can still fail
// messages, which then wait there.
func (c *change) begins(messages, consumers int, unacked int64) bool {
	if c.to == "" { // instances without messages have nothing to fail
		return messages > 0 || unacked > 0
	}

	return consumers > 0 || unacked > 0
}

// waits is how long messages of a topic may come back from queues of all services: to be moved,
// after the last instance has ended; to be handled for the last time, after the last message was
// seen.
func (c *change) waits(p *part) time.Duration {
	switch {
	case c.wait >= 0:
		return c.wait
	case c.to == "":
		return p.policy.TotalWait()
	default:
		return slices.Max(append(p.policy.DistinctDelays(), 0))
	}
}

func (c *change) waitsFor(messages, consumers int, unacked int64, rest time.Duration) string {
	switch {
	case consumers > 0 && c.to != "":
		return fmt.Sprintf("Deploy the services with group %s now. Waiting until the instances with group %s end.",
			c.to, c.from)
	case consumers > 0 && (messages > 0 || rest > 0):
		return fmt.Sprintf("Waiting until the instances of group %s have handled its messages.", c.from)
	case consumers > 0:
		return fmt.Sprintf("Stop the instances of group %s now. No message is left.", c.from)
	case messages > 0:
		return "Waiting until messages have come back from retry queues."
	case unacked > 0:
		return fmt.Sprintf("Waiting until the instances of group %s have handled their last messages.", c.from)
	default:
		return fmt.Sprintf("Waiting until %s, for messages in queues of all services.",
			c.session.Now().Add(rest).Format(time.TimeOnly))
	}
}

// drainOnce moves what is there, if nobody consumes it. It returns what was left, and whether more
// may come from queues of all services.
func (c *change) drainOnce(ctx context.Context, p *part) (left depth, shared bool, err error) {
	if err := c.unbind(ctx, p); err != nil {
		return left, false, err
	}
	waiting := 0
	for _, s := range p.held.sources { // before the main queue: they go there
		d, err := c.look(s.Queue)
		if err != nil {
			return left, false, err
		}
		waiting += d.ready
	}
	left, err = c.look(p.queue)
	if err != nil || !left.there {
		return left, false, err
	}
	if left.consumers == 0 && p.to != "" {
		if err := c.forward(ctx, p.queue, p.moved(c.names())); err != nil {
			return left, false, err
		}
		left.ready = 0
	}
	left.ready += waiting

	return left, p.held.returns || p.held.landing != nil, nil
}

// retire deletes what nobody needs any more, in the order of these stages. Nothing more is deleted
// of a topic of which something was kept.
func (c *change) retire(ctx context.Context) error {
	for _, stage := range []func(context.Context, held, *part) []retire.Queue{
		c.retryQueues, c.mainQueue, c.deadLetterQueue, c.retryExchange,
	} {
		var queues []retire.Queue
		var owners []*part
		for _, p := range c.parts {
			if p.kept {
				continue
			}
			h, err := c.held(ctx, p)
			if err != nil {
				return err
			}
			for _, q := range stage(ctx, h, p) {
				queues, owners = append(queues, q), append(owners, p)
			}
		}
		retire.DeleteAll(ctx, c.client, queues, func(i int) {
			c.session.Note("%s: waiting until it is proven empty, 20s or more", queues[i].Name)
		}, func(i int, err error) {
			if owners[i].mark(deletes, queues[i].Name, err) {
				c.session.Note("%s: deleted", queues[i].Name)
			}
		})
	}

	return nil
}

// retryQueues are first, as messages go from there to the main queue. Under the strategy cycle, the
// main queue must go before its rejected exchange, and that before the retry queues.
func (c *change) retryQueues(_ context.Context, h held, p *part) []retire.Queue {
	if foreign := h.foreign(); foreign != "" && h.main != nil {
		p.mark(deletes, p.queue, fmt.Errorf("messages go to it from queue %q: delete that first", foreign))
	}
	if h.dead != nil && p.to == "" {
		if d, err := c.look(h.dead.Name); err != nil || d.ready > 0 {
			p.mark(deletes, h.dead.Name, cmp.Or(err, fmt.Errorf("dead letters: %d; replay them, or run `%s`",
				d.ready, c.purge(p.queue))))
		}
	}
	if p.kept || h.cycles(p.queue) {
		return nil
	}

	return append(h.retries, some(h.landing)...)
}

func (c *change) mainQueue(ctx context.Context, h held, p *part) []retire.Queue {
	if h.main != nil && p.to != "" && !p.mark(moves, p.queue, c.forward(ctx, p.queue, p.moved(c.names()))) {
		return nil
	}

	if h.main != nil {
		h.main.Last = func(ctx context.Context) error { return c.noneWaits(ctx, p) }
	}

	return some(h.main)
}

// noneWaits is asked when nobody has a message of the main queue any more. An instance that ended
// late may have failed its last messages since the retry queues were empty or deleted.
func (c *change) noneWaits(ctx context.Context, p *part) error {
	queues, err := c.client.Counts(ctx)
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, q := range waiting(queues, p.queue) {
		if d, err := c.look(q.Queue); err != nil {
			return err
		} else if d.ready > 0 {
			return fmt.Errorf("queue %q has %s for it: run the same command again", q.Queue,
				cli.Times(d.ready, "message"))
		}
	}

	return nil
}

// deadLetterQueue is behind the main queue, which may dead-letter to it.
func (c *change) deadLetterQueue(ctx context.Context, h held, p *part) []retire.Queue {
	for _, x := range h.rejected {
		p.mark(deletes, x.Name, retire.DeleteExchange(ctx, c.client, x))
	}
	if h.dead != nil && p.to != "" {
		err := errors.New("the policy of the new group has no dead-letter queue")
		if p.plan.DeadLetterQueue != "" {
			err = c.forward(ctx, h.dead.Name, p.movedDead)
		}
		if !p.mark(moves, h.dead.Name, err) {
			return nil
		}
	}

	return append(h.retries, some(h.dead)...)
}

func (c *change) retryExchange(ctx context.Context, h held, p *part) []retire.Queue {
	for _, x := range h.exchanges {
		p.mark(deletes, x, retire.DeleteExchange(ctx, c.client, retire.Exchange{Name: x, Queue: p.queue}))
	}

	return nil
}

func some(q *retire.Queue) []retire.Queue {
	if q == nil {
		return nil
	}

	return []retire.Queue{*q}
}
