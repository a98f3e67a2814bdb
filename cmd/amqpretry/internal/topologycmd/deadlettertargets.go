package topologycmd

import (
	"context"
	"fmt"
	"slices"

	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/internal/httpapi"
)

// deadLetterTargets declares where main queues dead-letter to by themselves, and adds that to the
// report.
func (c *topologies) deadLetterTargets(ctx context.Context, b *broker, r *report, targets []target) error {
	client, err := c.session.ManagementClient("--dead-letter-targets")
	if err != nil {
		return err
	}
	for i, t := range targets {
		created, err := c.declareTargets(ctx, b, client, t)
		for _, o := range created {
			r.Queues[i].Objects = append(r.Queues[i].Objects, o.with(stateCreated, ""))
		}
		if err != nil {
			return fmt.Errorf("cannot declare all dead-letter targets of queue %q; this can be repeated: %w", t.Queue,
				err)
		}
	}

	return nil
}

// declareTargets declares the dead-letter queue under the mode off too, and the exchange, binding
// or queue that the main queue's own arguments name. It leaves what a policy of the broker names.
func (c *topologies) declareTargets(
	ctx context.Context, b *broker, client *httpapi.Client, t target,
) (created []object, err error) {
	declare := func(q topology.Queue) error {
		has, err := b.hasQueue(q.Name)
		if err != nil || has {
			return err
		}
		created = append(created, queueObject(q))
		return topology.Plan{Queues: []topology.Queue{q}}.Declare(b)
	}
	deadLetterQueue := t.plan.DeadLetterQueue
	if deadLetterQueue == "" {
		policy := config.Policy{Mode: config.ModeDeadLetter, Strategy: config.StrategyShared}
		plan, err := topology.New(t.Queue, policy, c.names())
		if err != nil {
			return nil, err
		}
		deadLetterQueue = plan.DeadLetterQueue
		if err := declare(plan.Queues[0]); err != nil {
			return created, err
		}
	}

	main, err := client.Queue(ctx, t.Queue)
	if httpapi.NotFound(err) {
		return created, nil
	}
	if err != nil {
		return created, err
	}
	exchange, set := main.Arguments["x-dead-letter-exchange"].(string)
	key, hasKey := main.Arguments["x-dead-letter-routing-key"].(string)
	if !hasKey {
		key, hasKey = main.Effective["dead-letter-routing-key"].(string)
	}
	switch {
	case !set, exchange == "" && !hasKey:
		return created, nil
	case exchange == "":
		quorum := amqp091.Table{amqp091.QueueTypeArg: amqp091.QueueTypeQuorum}
		return created, declare(topology.Queue{Name: key, Arguments: quorum})
	}
	if !hasKey {
		key = t.Queue // of the messages, as far as they came by the default exchange
	}
	more, err := leadTo(ctx, b, client, exchange, key, deadLetterQueue, hasKey)

	return append(created, more...), err
}

// leadTo declares an exchange, if it is missing, and binds a queue to it, if it leads to none.
func leadTo(
	ctx context.Context, b *broker, client *httpapi.Client, exchange, key, queue string, ownKey bool,
) (created []object, err error) {
	all, err := client.Exchanges(ctx)
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(all, func(x httpapi.Exchange) bool { return x.Name == exchange })
	if i < 0 {
		x := topology.Exchange{Name: exchange, Type: amqp091.ExchangeFanout, Durable: true}
		if err := (topology.Plan{Exchanges: []topology.Exchange{x}}).Declare(b); err != nil {
			return nil, err
		}
		created = append(created, exchangeObject(x))
		all, i = []httpapi.Exchange{{Type: x.Type}}, 0
	}
	kind := all[i].Type
	bindings, err := client.BindingsFrom(ctx, exchange)
	if err != nil && !httpapi.NotFound(err) {
		return created, err
	}
	leads := func(other httpapi.Binding) bool {
		return kind != amqp091.ExchangeDirect || !ownKey || other.Key == key
	}
	if slices.ContainsFunc(bindings, leads) {
		return created, nil
	}
	binding := topology.Binding{Exchange: exchange, Queue: queue}
	switch kind {
	case amqp091.ExchangeTopic:
		binding.Key = "#"
	case amqp091.ExchangeDirect:
		binding.Key = key
	}

	return append(created, bindingObject(binding)), topology.Plan{Bindings: []topology.Binding{binding}}.Declare(b)
}
