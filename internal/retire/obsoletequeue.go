// Package retire finds retry queues and rejected exchanges that no policy uses any more, and
// deletes them without loss, over the management API.
package retire

import (
	"context"
	"slices"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/internal/httpapi"
)

// Queue is a retry queue whose delay no policy uses any more. Messages that wait in it still come
// back.
//
// When the delays of a policy change, the new delays get new queues. The old queues stay, since
// messages wait in them and old instances may still use them. [Delete] deletes them.
type Queue struct {
	topology.Queue
	// RetryExchange routes messages to the queue; empty if nothing does.
	RetryExchange string
	// Others are more exchanges of this library that route to the queue, such as the retry exchange
	// for classic retry queues of an earlier policy.
	Others []string
	// Whole tells that everything of the main queue goes, and that this is the main queue itself,
	// its landing queue or its dead-letter queue: messages do not leave it after a delay.
	Whole bool
	// Last is called after the queue was proven empty. An error keeps the queue. It may be nil.
	Last func(context.Context) error
}

// Obsolete returns the retry queues of old plans that no current plan uses, in the order of the old
// plans. It never returns a dead-letter queue, a main queue, or a queue of a current plan.
//
// now must have all current plans that may use the queues. For retry queues of their own these are
// the plans of the main queues in question. For shared ones these are the plans of all topics of
// all services on the virtual host with the same Names.Shared: one that is missing may be the one
// that still uses the queue.
func Obsolete(now []topology.Plan, old ...topology.Plan) []Queue {
	kept := map[string]bool{}
	for i, plan := range slices.Concat(now, old) {
		kept[plan.Queue], kept[plan.DeadLetterQueue] = true, true
		for _, q := range plan.Queues {
			kept[q.Name] = kept[q.Name] || i < len(now)
		}
	}
	var obsolete []Queue
	for _, plan := range old {
		for _, q := range plan.Queues {
			if q.Delay > 0 && !kept[q.Name] {
				kept[q.Name] = true // listed once
				obsolete = append(obsolete, Queue{Queue: q, RetryExchange: plan.RetryExchange})
			}
		}
	}
	return obsolete
}

// Found is what main queues have on the broker, and no policy uses any more.
type Found struct {
	// Queues are retry queues.
	Queues []Queue
	// Exchanges are rejected exchanges that nothing uses: no plan, no queue or policy with this
	// dead-letter exchange, no other exchange and no foreign binding. A retry queue to which such
	// an exchange leads cannot be retired before the exchange, see [DeleteExchange].
	Exchanges []Exchange
}

// Find returns what the broker has for the main queues of these plans and that none of the plans
// uses, whatever their delays. names must be those of the old plans.
//
// Under a plan of the mode off, all retry queues of its main queue are obsolete. Shared retry
// queues are never returned, as other services may use them: see [Obsolete] for these.
//
// now must have the plans of all services that consume these main queues. A queue that another
// service uses under a policy of its own is returned as well, and only [Delete] may find out.
func Find(ctx context.Context, client *httpapi.Client, names topology.Names, now ...topology.Plan) (Found, error) {
	uses, err := usesOf(ctx, client)
	if err != nil {
		return Found{}, err
	}
	exchanges, err := uses.obsolete(ctx, names, now)
	return Found{Among(uses.queues, names, now...), exchanges}, err
}

// Among is [Find] for retry queues, in a list of all queues.
func Among(queues []httpapi.Queue, names topology.Names, now ...topology.Plan) []Queue {
	var old []topology.Plan
	for _, queue := range queues {
		for _, plan := range now {
			if plan, ok := planOf(plan.Queue, names, queue.Name, amqp.Table(queue.Arguments)); ok {
				old = append(old, plan)
				break
			}
		}
	}
	return Obsolete(now, old...)
}

// planOf returns the plan under which a queue of the broker is a retry queue of the main queue, if
// there is one. The arguments tell its delay and type, and its name must be the one that names give
// for these.
func planOf(queue string, names topology.Names, name string, arguments amqp.Table) (topology.Plan, bool) {
	ms, _ := arguments[amqp.QueueMessageTTLArg].(int64)
	queueType, _ := arguments[amqp.QueueTypeArg].(string)
	exchange, hasExchange := arguments["x-dead-letter-exchange"].(string)
	if !hasExchange || exchange != "" || arguments["x-dead-letter-routing-key"] != queue ||
		ms < 1 || ms > int64(config.MaxDelay/time.Millisecond) {
		return topology.Plan{}, false
	}
	delays := []time.Duration{time.Duration(ms) * time.Millisecond}
	policy := config.Policy{Delays: delays, ClassicQueues: queueType == amqp.QueueTypeClassic}
	plan, err := topology.New(queue, policy, names)
	if err != nil {
		return topology.Plan{}, false
	}
	return plan, slices.ContainsFunc(plan.Queues, func(q topology.Queue) bool {
		return q.Delay > 0 && q.Name == name && q.Arguments[amqp.QueueTypeArg] == queueType
	})
}
