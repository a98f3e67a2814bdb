package topologycmd

import (
	"context"
	"fmt"
	"slices"

	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/inspect"
	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/internal/httpapi"
)

// deadLetterTargets declares where main queues dead-letter to by themselves, and adds that to the
// report.
func (c *topologies) deadLetterTargets(ctx context.Context, b *inspect.Broker, r *report, topics []inspect.Topic,
) error {
	client, err := c.session.ManagementClient("--dead-letter-targets")
	if err != nil {
		return err
	}
	for i, t := range topics {
		d := &deadLetters{b: b, client: client}
		err := d.targets(ctx, t, c.names())
		r.Queues[i].Objects = append(r.Queues[i].Objects, d.created...)
		if err != nil {
			return fmt.Errorf("cannot declare all dead-letter targets of queue %q; this can be repeated: %w",
				t.Plan.Queue,
				err)
		}
	}

	return nil
}

// deadLetters declares the targets of one main queue.
type deadLetters struct {
	b       *inspect.Broker
	client  *httpapi.Client
	created []object
}

// declare declares one object that is missing, and notes it.
func (d *deadLetters) declare(plan topology.Plan) error {
	for _, o := range (inspect.Topic{Plan: plan}).Objects()[1:] { // without a main queue
		d.created = append(d.created, line(o).with(inspect.Created, ""))
	}

	return d.b.Declare(plan)
}

// targets declares the dead-letter queue under the mode off too, and the exchange, binding or queue
// that the main queue's own arguments name. It leaves what a policy of the broker names.
func (d *deadLetters) targets(ctx context.Context, t inspect.Topic, names topology.Names) error {
	deadLetterQueue := t.Plan.DeadLetterQueue
	if deadLetterQueue == "" {
		policy := config.Policy{Mode: config.ModeDeadLetter, Strategy: config.StrategyShared}
		plan, err := topology.New(t.Plan.Queue, policy, names)
		if err != nil {
			return err
		}
		deadLetterQueue = plan.DeadLetterQueue
		if err := d.queue(plan.Queues[0]); err != nil {
			return err
		}
	}

	main, err := d.client.Queue(ctx, t.Plan.Queue)
	if httpapi.NotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	_, own := main.Arguments["x-dead-letter-exchange"]
	target := inspect.DeadLetteringOf(t.Plan.Queue, inspect.Effective(main))
	switch {
	case !own || !target.Set, target.Exchange == "" && !target.OwnKey:
		return nil
	case target.Exchange == "":
		quorum := amqp091.Table{amqp091.QueueTypeArg: amqp091.QueueTypeQuorum}
		return d.queue(topology.Queue{Name: target.Key, Arguments: quorum})
	default:
		return d.lead(ctx, target, deadLetterQueue)
	}
}

// queue declares a queue that is missing.
func (d *deadLetters) queue(q topology.Queue) error {
	there, _, _ := d.b.Queue(q.Name)
	if !there.Known || there.Value {
		return there.Err
	}

	return d.declare(topology.Plan{Queues: []topology.Queue{q}})
}

// lead declares an exchange, if it is missing, and binds a queue to it, if it leads to none.
func (d *deadLetters) lead(ctx context.Context, target inspect.DeadLettering, queue string) error {
	all, err := d.client.Exchanges(ctx)
	if err != nil {
		return err
	}
	kind := amqp091.ExchangeFanout
	if i := slices.IndexFunc(all, func(x httpapi.Exchange) bool { return x.Name == target.Exchange }); i >= 0 {
		kind = all[i].Type
	} else {
		exchanges := []topology.Exchange{{Name: target.Exchange, Type: kind, Durable: true}}
		if err := d.declare(topology.Plan{Exchanges: exchanges}); err != nil {
			return err
		}
	}
	bindings, err := d.client.BindingsFrom(ctx, target.Exchange)
	if err != nil && !httpapi.NotFound(err) {
		return err
	}
	if slices.ContainsFunc(bindings, func(b httpapi.Binding) bool { return target.Takes(kind, b) }) {
		return nil
	}
	key := map[string]string{amqp091.ExchangeTopic: "#", amqp091.ExchangeDirect: target.Key}[kind]

	return d.declare(topology.Plan{Bindings: []topology.Binding{{Exchange: target.Exchange, Queue: queue, Key: key}}})
}
