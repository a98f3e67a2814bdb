package topology

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"slices"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/internal/management"
)

// ObsoleteQueue is a retry queue whose delay no policy uses any more. Messages that wait in it still come back.
//
// When the delays of a policy change, the new delays get new queues. The old queues stay, since messages wait in them
// and old instances may still use them. [Management.Retire] deletes them.
type ObsoleteQueue struct {
	Queue
	// RetryExchange routes messages to the queue.
	RetryExchange string
}

// Obsolete returns the retry queues of old plans that no current plan uses, in the order of the old plans. It never
// returns a dead-letter queue, a main queue, or a queue of a current plan.
//
// now must have all current plans that may use the queues. For retry queues of their own these are the plans of
// the main queues in question. For shared ones these are the plans of all topics of all services on the virtual host
// with the same Names.Shared: one that is missing may be the one that still uses the queue.
func Obsolete(now []Plan, old ...Plan) []ObsoleteQueue {
	kept := map[string]bool{}
	for i, plan := range slices.Concat(now, old) {
		kept[plan.Queue], kept[plan.DeadLetterQueue] = true, true
		for _, q := range plan.Queues {
			kept[q.Name] = kept[q.Name] || i < len(now)
		}
	}
	var obsolete []ObsoleteQueue
	for _, plan := range old {
		for _, q := range plan.Queues {
			if q.Delay > 0 && !kept[q.Name] {
				kept[q.Name] = true // listed once
				obsolete = append(obsolete, ObsoleteQueue{Queue: q, RetryExchange: plan.RetryExchange})
			}
		}
	}
	return obsolete
}

// Management is the HTTP API of RabbitMQ's management plugin. Unlike AMQP it lists queues and bindings, and counts all
// messages of a queue.
type Management struct {
	// URL of the API with user and password, such as http://user:password@host:15672.
	URL string
	// VHost is the virtual host; "" means "/".
	VHost string
	// HTTPClient is used for TLS, timeouts and the like; nil means a plain one.
	HTTPClient *http.Client
}

// Format prints the virtual host and nothing else, under no verb: the URL has a password.
func (m Management) Format(f fmt.State, _ rune) {
	_, _ = fmt.Fprintf(f, "topology.Management(virtual host %q)", cmp.Or(m.VHost, "/"))
}

// ManagementError is a request that the management API refused or did not answer, and what the user needs for it.
type ManagementError = management.Error

func (m Management) client() (*management.Client, error) {
	return management.New(m.URL, cmp.Or(m.VHost, "/"), m.HTTPClient)
}

// Obsolete returns the retry queues that the broker has for the main queues of these plans and that none of the plans
// uses, whatever their delays. names must be those of the old plans.
//
// Under a plan of the mode off, all retry queues of its main queue are obsolete. Shared retry queues are never
// returned, as other services may use them: see the function [Obsolete] for these.
//
// now must have the plans of all services that consume these main queues. A queue that another service uses under a
// policy of its own is returned as well, and only [Management.Retire] may find out.
func (m Management) Obsolete(ctx context.Context, names Names, now ...Plan) ([]ObsoleteQueue, error) {
	client, err := m.client()
	if err != nil {
		return nil, err
	}
	queues, err := client.Queues(ctx)
	if err != nil {
		return nil, err
	}
	var found []Plan
	for _, queue := range queues {
		for _, plan := range now {
			if old, ok := planOf(plan.Queue, names, queue.Name, amqp.Table(queue.Arguments)); ok {
				found = append(found, old)
				break
			}
		}
	}
	return Obsolete(now, found...), nil
}

// planOf returns the plan under which a queue of the broker is a retry queue of the main queue, if there is one. The
// arguments tell its delay and type, and its name must be the one that names give for these.
func planOf(queue string, names Names, name string, arguments amqp.Table) (Plan, bool) {
	ms, _ := arguments[amqp.QueueMessageTTLArg].(int64)
	queueType, _ := arguments[amqp.QueueTypeArg].(string)
	exchange, hasExchange := arguments["x-dead-letter-exchange"].(string)
	if !hasExchange || exchange != "" || arguments["x-dead-letter-routing-key"] != queue ||
		ms < 1 || ms > int64(config.MaxDelay/config.MinDelay) {
		return Plan{}, false
	}
	delays := []time.Duration{time.Duration(ms) * config.MinDelay}
	plan, err := New(queue, config.Policy{Delays: delays, ClassicQueues: queueType == amqp.QueueTypeClassic}, names)
	if err != nil {
		return Plan{}, false
	}
	return plan, slices.ContainsFunc(plan.Queues, func(q Queue) bool {
		return q.Delay > 0 && q.Name == name && q.Arguments[amqp.QueueTypeArg] == queueType
	})
}
