package topology

import (
	"slices"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/config"
)

// ObsoleteQueue is a retry queue whose delay no policy uses any more. What waits in it still comes back.
//
// When a policy's delays change, other delays are other queues. Those of the delays before stay, since messages wait in
// them and old instances may still use them. [Management.Retire] deletes them, and [RetireCommands] say how to do it by
// hand.
type ObsoleteQueue struct {
	Queue
	// Binding by which the retry exchange routes to it.
	Binding Binding
}

// Obsolete lists the retry queues of old plans that no current plan uses, in the order of the old plans. It never lists
// a dead-letter queue, a main queue, or anything that a current plan has.
//
// now are all current plans of what may use the queues: with the default scope those of the main queues in question,
// with the scope "shared" those of all topics of all services on the virtual host with the same Names.Shared, since one
// that is left out may be the one that still uses the queue.
func Obsolete(now []Plan, old ...Plan) []ObsoleteQueue {
	kept := map[string]bool{}
	for _, plan := range now {
		for _, q := range plan.Queues {
			kept[q.Name] = true
		}
	}
	for _, plan := range slices.Concat(now, old) {
		kept[plan.Queue], kept[plan.DeadLetterQueue] = true, true
	}
	var obsolete []ObsoleteQueue
	for _, plan := range old {
		for _, q := range plan.Queues {
			if q.Delay > 0 && !kept[q.Name] {
				kept[q.Name] = true // listed once
				obsolete = append(obsolete, ObsoleteQueue{Queue: q, Binding: plan.bindingOf(q)})
			}
		}
	}
	return obsolete
}

func (p Plan) bindingOf(q Queue) Binding {
	for _, b := range p.Bindings {
		if b.Queue == q.Name {
			return b
		}
	}
	return Binding{Exchange: p.RetryExchange, Queue: q.Name}
}

// planOf is the plan under which a queue that the broker has is a retry queue of the main queue, if there is one: its
// arguments say for which delay and type, and its name must be the one that names give for these.
func planOf(queue string, names Names, name string, arguments amqp.Table) (Plan, bool) {
	ms, _ := arguments[amqp.QueueMessageTTLArg].(int64)
	queueType, _ := arguments[amqp.QueueTypeArg].(string)
	exchange, hasExchange := arguments["x-dead-letter-exchange"].(string)
	if !hasExchange || exchange != "" || arguments["x-dead-letter-routing-key"] != queue || ms < 1 || ms > int64(config.MaxDelay/config.MinDelay) {
		return Plan{}, false
	}
	delays := []time.Duration{time.Duration(ms) * config.MinDelay}
	plan, err := New(queue, config.Policy{Delays: delays, QueueType: config.QueueType(queueType)}, names)
	if err != nil {
		return Plan{}, false
	}
	return plan, slices.ContainsFunc(plan.Queues, func(q Queue) bool {
		return q.Delay > 0 && q.Name == name && q.Arguments[amqp.QueueTypeArg] == queueType
	})
}
