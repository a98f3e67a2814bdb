package topology

import (
	"errors"
	"fmt"
	"math"
	"reflect"
	"strconv"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/internal/wire"
)

// Plan is everything that the broker holds for the retries of one main queue, as plain values. The main queue itself
// is not part of it.
type Plan struct {
	// Queue is the main queue.
	Queue string
	// RetryExchange is where failed messages are published. Empty under the mode off.
	RetryExchange string
	// DeadLetterQueue is where they end. Empty under the mode off.
	DeadLetterQueue string

	// Exchanges, Queues and Bindings in the order in which they are declared. All empty under the mode off.
	Exchanges []Exchange
	Queues    []Queue
	Bindings  []Binding
}

// Exchange is a durable exchange that is never deleted by itself.
type Exchange struct {
	Name string
	// Type is always headers.
	Type string
}

// Queue is a durable queue that is never deleted by itself.
type Queue struct {
	Name string
	// Delay for which messages wait here; 0 for the dead-letter queue.
	Delay     time.Duration
	Arguments amqp.Table
}

// Binding routes what is published to Exchange with the headers in Arguments to Queue.
type Binding struct {
	Exchange, Queue string
	Arguments       amqp.Table
}

// unlimited keeps looking at dead letters from killing them. The broker's own word for no limit, -1, means 0 to
// RabbitMQ 3.10.
const unlimited = int64(math.MaxInt32)

// New plans the retries of a main queue under a policy, whose defaults are applied:
//
//	mode retry        exchange, one queue and binding per distinct delay, dead-letter queue and its binding
//	mode dead-letter  exchange, dead-letter queue and its binding
//	mode off          nothing
//
// It reports everything at once that is wrong with the policy (*config.FieldError) and with the names (*[NameError]).
func New(queue string, policy config.Policy, names Names) (Plan, error) {
	if queue == "" {
		return Plan{}, &NameError{Object: "main queue", Problem: "the name is empty; server-named queues have no name to come back to, give one through the config's queue name generator"}
	}
	invalid := policy.Validate()
	errs := []error{invalid, checkName(queue, "main queue", queue, "the config's queue name generator")}
	plan := Plan{Queue: queue}
	policy = policy.WithDefaults()
	// Names for impossible delays would be errors that follow from the first one.
	if invalid == nil && policy.Mode != config.ModeOff {
		errs = append(errs, plan.fill(policy, names.WithDefaults())...)
	}
	if err := errors.Join(errs...); err != nil {
		return Plan{}, err
	}
	return plan, nil
}

func (p *Plan) fill(policy config.Policy, names Names) (errs []error) {
	p.RetryExchange = names.RetryExchange(p.Queue)
	p.DeadLetterQueue = names.DeadLetterQueue(p.Queue)
	errs = append(errs, checkName(p.Queue, "retry exchange", p.RetryExchange, "Names.RetryExchange"))
	p.Exchanges = []Exchange{{Name: p.RetryExchange, Type: amqp.ExchangeHeaders}}

	owners := map[string]string{p.Queue: "main queue"}
	add := func(q Queue, object, field, key, value string) {
		errs = append(errs, checkName(p.Queue, object, q.Name, field))
		if owner, taken := owners[q.Name]; taken {
			errs = append(errs, &NameError{Queue: p.Queue, Object: object, Name: q.Name, Problem: "has the same name as the " + owner + "; give another name through " + field})
		}
		owners[q.Name] = object
		p.Queues = append(p.Queues, q)
		p.Bindings = append(p.Bindings, Binding{
			Exchange:  p.RetryExchange,
			Queue:     q.Name,
			Arguments: amqp.Table{"x-match": "all", key: value},
		})
	}

	for _, delay := range policy.DistinctDelays() {
		spelled := config.FormatDelay(delay)
		add(Queue{
			Name:      names.RetryQueue(RetryQueueParams{Queue: p.Queue, Delay: spelled, Type: policy.QueueType}),
			Delay:     delay,
			Arguments: retryArguments(p.Queue, delay, policy.QueueType),
		}, "retry queue for "+spelled, "Names.RetryQueue", wire.KeyDelay, spelled)
	}
	add(Queue{Name: p.DeadLetterQueue, Arguments: deadLetterArguments()},
		"dead-letter queue", "Names.DeadLetterQueue", wire.KeyCount, strconv.Itoa(wire.CountDead))
	return errs
}

// retryArguments never depend on the broker's version, since instances of one service may meet several.
func retryArguments(queue string, delay time.Duration, queueType config.QueueType) amqp.Table {
	args := amqp.Table{
		amqp.QueueTypeArg: string(queueType),
		// int64, as the library sends an int with 32 bits, which wraps beyond 24 days.
		amqp.QueueMessageTTLArg:     delay.Milliseconds(),
		"x-dead-letter-exchange":    "",
		"x-dead-letter-routing-key": queue,
	}
	if queueType == config.QueueTypeQuorum {
		// At-least-once silently becomes at-most-once unless a full queue rejects what is published.
		args["x-dead-letter-strategy"] = "at-least-once"
		args[amqp.QueueOverflowArg] = amqp.QueueOverflowRejectPublish
		args["x-queue-leader-locator"] = "balanced"
	}
	return args
}

func deadLetterArguments() amqp.Table {
	return amqp.Table{
		amqp.QueueTypeArg:        amqp.QueueTypeQuorum,
		"x-queue-leader-locator": "balanced",
		"x-delivery-limit":       unlimited,
	}
}

// Check reports all collisions between the plans of one broker, as joined *[NameError]s: two main queues whose objects
// share a name, one main queue with two different plans, and a main queue that is another's retry or dead-letter queue.
// Equal plans are no collision.
func Check(plans ...Plan) error {
	type object struct{ kind, name string }
	byQueue, owners := map[string]Plan{}, map[object]string{}
	var errs []error
	claim := func(kind, name, queue string) {
		key := object{kind, name}
		if owner, taken := owners[key]; taken && owner != queue {
			errs = append(errs, &NameError{Queue: queue, Object: kind, Name: name,
				Problem: fmt.Sprintf("belongs to the topology of queue %q; give another name through Names", owner)})
			return
		}
		owners[key] = queue
	}
	// Main queues first: of two that meet, it is the other one that can be named otherwise.
	for _, plan := range plans {
		if known, twice := byQueue[plan.Queue]; twice && !reflect.DeepEqual(known, plan) {
			errs = append(errs, &NameError{Queue: plan.Queue, Object: "main queue", Name: plan.Queue,
				Problem: "has two different topologies; all that consume one queue need the same policy and the same Names"})
		}
		byQueue[plan.Queue] = plan
		claim("queue", plan.Queue, plan.Queue)
	}
	for _, plan := range plans {
		for _, exchange := range plan.Exchanges {
			claim("exchange", exchange.Name, plan.Queue)
		}
		for _, queue := range plan.Queues {
			claim("queue", queue.Name, plan.Queue)
		}
	}
	return errors.Join(errs...)
}
