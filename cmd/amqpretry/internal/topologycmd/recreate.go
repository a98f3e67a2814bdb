package topologycmd

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/amqpretry/topology"
	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/cli"
	"github.com/amqpretry/watermill-retry/internal/management"
)

// management is the management API, which a flag of apply needs.
func (c *topologies) management(flag string) (topology.Management, *management.Client, error) {
	m, ok, err := c.session.Management()
	if err != nil {
		return m, nil, err
	}
	if !ok {
		return m, nil, cli.Usage("%s needs the management API, and none was given: set %s, or --management-url", flag,
			cli.EnvManagement)
	}
	client, err := management.New(m.URL, cmp.Or(m.VHost, "/"), m.HTTPClient)

	return m, client, err
}

// recreate deletes the retry queues in conflict, once they are certainly empty: they are missing then. Where anything else
// is in conflict too, nothing is deleted.
func (c *topologies) recreate(ctx context.Context, r *report, targets []target) error {
	api, client, err := c.management("--recreate")
	if err != nil {
		return err
	}
	obsolete := map[string]topology.ObsoleteQueue{}
	for i, t := range targets {
		for _, o := range r.Queues[i].Objects {
			if o.State != stateConflict {
				continue
			}
			q, found := plannedQueue(t.plan, o.Name)
			if o.Kind != kindQueue || o.Argument == "" || !found || q.Delay == 0 {
				return nil // which is told: an exchange, somebody's exclusive queue, or a dead-letter queue
			}
			if obsolete[q.Name], err = asDeclared(ctx, client, t.plan, q); err != nil {
				return fmt.Errorf("cannot recreate queue %q, which is still there: %w", q.Name, err)
			}
		}
	}
	for i, t := range targets {
		for n, o := range r.Queues[i].Objects {
			if o.State != stateConflict {
				continue
			}
			if old, left := obsolete[o.Name]; left { // a shared queue belongs to several targets
				c.session.Note("%s: waiting until it is certainly empty, 20s or more", o.Name)
				if err := api.Retire(ctx, old); err != nil {
					return fmt.Errorf("cannot recreate queue %q, which is still there: %w", o.Name, err)
				}
				delete(obsolete, o.Name)
			}
			q, _ := plannedQueue(t.plan, o.Name)
			r.Queues[i].Objects[n] = queueObject(q).with(stateMissing, "")
		}
	}

	return nil
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
func asDeclared(ctx context.Context, client *management.Client, plan topology.Plan,
	q topology.Queue) (topology.ObsoleteQueue, error) {
	found, err := client.Queue(ctx, q.Name)
	if err != nil {
		return topology.ObsoleteQueue{}, err
	}
	ttl, ok := found.Arguments[amqp091.QueueMessageTTLArg].(int64)
	if !ok || ttl < 1 {
		return topology.ObsoleteQueue{}, fmt.Errorf("it has no %s, so it is no retry queue: delete it by hand, if "+
			"nobody needs it",
			amqp091.QueueMessageTTLArg)
	}
	q.Delay, q.Arguments = time.Duration(ttl)*time.Millisecond, amqp091.Table(found.Arguments)

	return topology.ObsoleteQueue{Queue: q, RetryExchange: plan.RetryExchange}, nil
}
