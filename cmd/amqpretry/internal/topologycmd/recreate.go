package topologycmd

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/inspect"
	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/internal/httpapi"
	"github.com/amqpretry/watermill-retry/internal/retire"
)

// recreate deletes the retry queues in conflict, once they are proven empty: they are missing then.
// Where anything else is in conflict too, nothing is deleted.
func (c *topologies) recreate(ctx context.Context, b *inspect.Broker, r *report, topics []inspect.Topic) error {
	client, err := c.session.ManagementClient("--recreate")
	if err != nil {
		return err
	}
	for _, ladder := range r.Ladders {
		if len(inState(ladder.Objects, inspect.Conflict)) > 0 {
			return nil // which is told: all services share it, and nothing of it is ever deleted
		}
	}
	obsolete := map[string]retire.Queue{}
	for i, t := range topics {
		if r.lacksMain(i, t) {
			return nil // which is told: nothing can be declared
		}
		for _, o := range r.Queues[i].Objects {
			if o.State != inspect.Conflict || o.Kind == kindMain { // which is not of the plan
				continue
			}
			q, found := plannedQueue(t.Plan, o.Name)
			if o.Kind != kindQueue || o.Argument == "" || !found || q.Delay == 0 {
				// which is told: an exchange, somebody's exclusive queue, a dead-letter queue or a
				// landing queue
				return nil
			}
			if obsolete[q.Name], err = asDeclared(ctx, client, b, t.Plan, q); err != nil {
				return fmt.Errorf("cannot recreate queue %q, nothing was changed: %w", q.Name, err)
			}
		}
	}
	for i, t := range topics {
		for n, o := range r.Queues[i].Objects {
			if o.State != inspect.Conflict || o.Kind == kindMain {
				continue
			}
			if old, left := obsolete[o.Name]; left { // a shared queue belongs to several topics
				c.session.Note("%s: waiting until it is proven empty: 20s or more, and up to its delay of %s and 4 "+
					"minutes", o.Name, config.FormatDelay(old.Delay))
				if err := retire.Delete(ctx, client, old); err != nil {
					return fmt.Errorf("cannot recreate queue %q: %w; %s", o.Name, err, c.bindAgain(ctx, t.Plan, o.Name))
				}
				delete(obsolete, o.Name)
			}
			q, _ := plannedQueue(t.Plan, o.Name)
			if err := b.Declare(partOf(t.Plan, q)); err != nil { // at once: another queue may stop this
				return fmt.Errorf("queue %q was deleted and cannot be declared; run apply again: %w", o.Name,
					err)
			}
			r.Queues[i].Objects[n] = queueObject(q).with(inspect.Missing, "")
		}
	}

	return nil
}

// partOf is a plan of one queue, with the exchange and the bindings that lead to it.
func partOf(plan topology.Plan, q topology.Queue) topology.Plan {
	return topology.Plan{Queue: plan.Queue, Exchanges: plan.Exchanges, Queues: []topology.Queue{q},
		Bindings: slices.DeleteFunc(slices.Clone(plan.Bindings),
			func(b topology.Binding) bool { return b.Queue != q.Name })}
}

// bindAgain undoes what Retire does first, also after an interrupt: the queue is still in use, so
// copies must be routed to it. It returns what has become of that.
func (c *topologies) bindAgain(ctx context.Context, plan topology.Plan, queue string) string {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
	defer cancel()
	cannot := func(err error) string {
		return fmt.Sprintf("its binding may be missing, so that copies for it are held, and it cannot be bound: %v",
			err)
	}
	b, err := c.connect(ctx) // the other connection has ended with an interrupt
	if err != nil {
		return cannot(err)
	}
	defer b.Close()
	switch there, _, _ := b.Queue(queue); {
	case !there.Known:
		return cannot(there.Err)
	case !there.Value:
		return "it does not exist any more; apply declares it"
	}
	part := partOf(plan, topology.Queue{Name: queue})
	part.Queues = nil // it is declared otherwise
	if err := b.Declare(part); err != nil {
		return cannot(err)
	}

	return "it still exists, and is bound as before"
}

func plannedQueue(plan topology.Plan, name string) (topology.Queue, bool) {
	for _, q := range plan.Queues {
		if q.Name == name {
			return q, true
		}
	}

	return topology.Queue{}, false
}

// asDeclared is a planned retry queue with the delay and the arguments that it has.
func asDeclared(ctx context.Context, client *httpapi.Client, b *inspect.Broker, plan topology.Plan,
	q topology.Queue) (retire.Queue, error) {
	found, err := client.Queue(ctx, q.Name)
	if err != nil {
		return retire.Queue{}, err
	}
	ttl, ok := found.Arguments[amqp091.QueueMessageTTLArg].(int64)
	if !ok || ttl < 1 {
		return retire.Queue{}, fmt.Errorf("it has no %s, so it is no retry queue: delete it yourself, if "+
			"nothing needs it",
			amqp091.QueueMessageTTLArg)
	}
	for _, argument := range []string{"x-dead-letter-exchange", "x-dead-letter-routing-key"} {
		wanted, has := q.Arguments[argument], found.Arguments[argument]
		if wanted == has {
			continue
		}
		// The API is some seconds late, and counts what the queue has dead-lettered and still
		// keeps. The broker's own count is the other way round. What neither sees would have left
		// by itself.
		there, ready, _ := b.Queue(q.Name)
		if !there.Known {
			return retire.Queue{}, there.Err
		}
		if ready > 0 || found.Messages == nil || *found.Messages > 0 {
			return retire.Queue{}, fmt.Errorf("its waiting messages do not return to queue %q, because its "+
				"%s is %#v instead of %#v: move them first", plan.Queue, argument, has, wanted)
		}
	}
	q.Delay, q.Arguments = time.Duration(ttl)*time.Millisecond, amqp091.Table(found.Arguments)

	return retire.Queue{Queue: q, RetryExchange: plan.RetryExchange}, nil
}
