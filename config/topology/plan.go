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
	"github.com/amqpretry/watermill-retry/internal/header"
	"github.com/amqpretry/watermill-retry/internal/rabbitmq"
)

// Plan is everything that the broker holds for the retries of one main queue, as plain values. The
// main queue itself is not part of it.
type Plan struct {
	// Queue is the main queue.
	Queue string
	// RetryExchange is where failed messages are published; see [Plan.Route]. Empty under the mode
	// off, and with the strategy shared without retries.
	RetryExchange string
	// DeadLetterQueue is where they end. Empty under the mode off.
	DeadLetterQueue string

	// Strategy by which the broker brings failed messages back; empty for those by copies.
	// MainArguments are those that the main queue needs for it; nil where it needs none.
	Strategy      config.Strategy
	MainArguments amqp.Table

	// Ladder is what messages wait in with config.StrategyLadder, else nil. Its shared objects are
	// not in the following, but Declare declares them.
	Ladder *Ladder

	// Exchanges, Queues and Bindings in the order in which they are declared. All empty under the
	// mode off.
	Exchanges []Exchange
	Queues    []Queue
	Bindings  []Binding
}

// Exchange is an exchange of a [Plan], which is durable and never deleted by itself, or one of a
// [MainQueue].
type Exchange struct {
	// Name of the exchange.
	Name string
	// Type is headers for the retry exchange and the rejected exchange, direct for the return
	// exchange of shared queues, and topic or fanout in a [Ladder].
	Type                          string
	Durable, AutoDelete, Internal bool
	Arguments                     amqp.Table
	// Shared with other main queues.
	Shared bool
}

// Queue is a durable queue that is never deleted by itself.
type Queue struct {
	// Name of the queue.
	Name string
	// Delay for which messages wait here; 0 for the dead-letter queue and a landing queue.
	Delay     time.Duration
	Arguments amqp.Table
	// Landing tells that it is where messages with exact delays wait for the main queue to take
	// them.
	Landing bool
	// Shared with other main queues.
	Shared bool
}

// Binding routes what is published to Exchange with Key, or with the headers in Arguments, to
// Queue.
type Binding struct {
	Exchange, Queue string
	// ToExchange is the destination of a binding to an exchange. Queue is then empty.
	ToExchange string
	// Key is empty for headers exchanges.
	Key       string
	Arguments amqp.Table
}

// unlimited keeps looking at dead letters from killing them. The broker's own word for no limit,
// -1, means 0 to RabbitMQ 3.10.
//
// Upstream: a negative delivery limit is 0.
const unlimited = int64(math.MaxInt32)

// New plans the retries of a main queue under a policy, whose defaults are applied:
//
//	mode retry        retry exchange, one queue and binding per distinct delay, dead-letter queue and its binding
//	  ladder          retry exchange, landing queue and its binding, dead-letter queue and its binding
//	  cycle           as mode retry, with the rejected exchange and its bindings
//	mode dead-letter  retry exchange, dead-letter queue and its binding
//	mode off          nothing
//
// With the strategy shared the retry exchange and the retry queues are those of all main queues
// that have it. A second exchange leads back, to which each main queue binds its own name, so that
// nobody reaches a queue that takes no part; and the dead-letter queue, which stays the main
// queue's own, is reached through the default exchange.
//
// It reports everything at once that is wrong with the policy (*config.FieldError) and with the
// names (*[NameError]).
func New(queue string, policy config.Policy, names Names) (Plan, error) {
	if queue == "" {
		return Plan{}, &NameError{Object: "main queue", Problem: "the name is empty; server-named queues have no " +
			"name to come back to, give one through the config's queue name generator"}
	}
	invalid := policy.Validate()
	b := builder{plan: Plan{Queue: queue}, policy: policy.WithDefaults(), names: names.WithDefaults(),
		owners: map[string]string{queue: "main queue"}}
	b.check("main queue", queue, "the config's queue name generator")
	// Names for impossible delays would be errors that follow from the first one.
	if invalid == nil {
		b.build()
	}
	if err := errors.Join(append([]error{invalid}, b.errs...)...); err != nil {
		return Plan{}, err
	}
	return b.plan, nil
}

// Route is where a copy with this count and delay is published: to the retry exchange or the
// [Ladder] to wait, and to the end with the count -1. It changes a message that a ladder gets, see
// [Ladder.Address].
func (p Plan) Route(count int, delay time.Duration, message *amqp.Publishing) (exchange, key string) {
	switch {
	case count != header.CountDead && p.Ladder != nil:
		return p.Ladder.Address(Target{Key: p.Queue}, delay, message)
	case count == header.CountDead && p.endsByDefaultExchange():
		return "", p.DeadLetterQueue
	default:
		return p.RetryExchange, p.Queue
	}
}

// End is where a dead letter is published.
func (p Plan) End() (exchange, key string) { return p.Route(header.CountDead, 0, nil) }

func (p Plan) endsByDefaultExchange() bool {
	for _, b := range p.Bindings {
		if b.Queue == p.DeadLetterQueue && b.Exchange == p.RetryExchange {
			return false
		}
	}
	return true
}

// ReturnPath is the part of the plan that leads messages back to the main queue, as far as it could
// be lost without a trace: of shared retry queues the return exchange with the main queue's
// binding, with a [Ladder] the landing queue with its binding, with the strategy cycle all that the
// plan declares, else nothing.
func (p Plan) ReturnPath() Plan {
	back := Plan{Queue: p.Queue}
	if p.Strategy == config.StrategyCycle {
		back.Exchanges, back.Queues, back.Bindings = p.Exchanges, p.Queues, p.Bindings
		return back
	}
	for _, q := range p.Queues {
		if q.Landing {
			back.Queues = append(back.Queues, q)
		}
	}
	for _, b := range p.Bindings {
		if b.Queue == p.Queue || len(back.Queues) > 0 && b.Queue == back.Queues[0].Name {
			back.Bindings = append(back.Bindings, b)
		}
	}
	for _, x := range p.Exchanges {
		if len(back.Bindings) > 0 && x.Name == back.Bindings[0].Exchange {
			back.Exchanges = append(back.Exchanges, x)
		}
	}
	return back
}

// IsShared tells whether messages wait in retry queues that other main queues share.
func (p Plan) IsShared() bool {
	for _, q := range p.Queues {
		if q.Shared {
			return true
		}
	}
	return false
}

// IsEmpty tells whether the plan declares nothing.
func (p Plan) IsEmpty() bool { return len(p.Exchanges)+len(p.Queues)+len(p.Bindings) == 0 }

// builder collects a plan and what is wrong with its names.
type builder struct {
	plan   Plan
	policy config.Policy
	names  Names
	owners map[string]string // of the names of queues
	errs   []error
}

func (b *builder) build() {
	if b.policy.Mode == config.ModeOff {
		return
	}
	b.plan.DeadLetterQueue = b.names.DeadLetterQueue(b.plan.Queue)
	deadLetters := Queue{Name: b.plan.DeadLetterQueue, Arguments: deadLetterArguments()}

	switch {
	case b.policy.Strategy != config.StrategyShared:
		name := b.ofType(b.names.RetryExchange(b.plan.Queue))
		b.exchange(Exchange{Name: name, Type: amqp.ExchangeHeaders, Durable: true}, "retry exchange",
			"Names.RetryExchange")
		if b.policy.Strategy == config.StrategyLadder {
			b.landing()
		} else {
			b.retryQueues()
		}
		b.queue(deadLetters, "dead-letter queue", "Names.DeadLetterQueue")
		b.bind(deadLetters.Name, header.Count, strconv.Itoa(header.CountDead))
	case b.policy.Mode == config.ModeRetry:
		b.exchange(Exchange{Name: b.ofType(b.names.Shared), Type: amqp.ExchangeHeaders, Durable: true, Shared: true},
			"shared retry exchange", "Names.Shared")
		back := Exchange{Name: b.names.returnExchange(), Type: amqp.ExchangeDirect, Durable: true, Shared: true}
		b.check("return exchange", back.Name, "Names.Shared")
		b.plan.Exchanges = append(b.plan.Exchanges, back)
		b.retryQueues()
		b.plan.Bindings = append(b.plan.Bindings, Binding{Exchange: back.Name, Queue: b.plan.Queue, Key: b.plan.Queue})
		b.queue(deadLetters, "dead-letter queue", "Names.DeadLetterQueue")
	default:
		b.queue(deadLetters, "dead-letter queue", "Names.DeadLetterQueue")
	}
	b.strategy()
}

// ofType keeps the retry queues of both types apart: with one exchange, a delay that has a queue of
// each, because the type was changed, would be routed to both.
func (b *builder) ofType(exchange string) string {
	if b.policy.ClassicQueues {
		return exchange + classicSuffix
	}
	return exchange
}

// exchange adds the one to which failed messages are published.
func (b *builder) exchange(x Exchange, object, field string) {
	b.check(object, x.Name, field)
	b.plan.RetryExchange = x.Name
	b.plan.Exchanges = append(b.plan.Exchanges, x)
}

func (b *builder) retryQueues() {
	shared := b.policy.Strategy == config.StrategyShared
	field, name := "Names.RetryQueue", b.names.RetryQueue
	if shared {
		field, name = "Names.Shared", func(p RetryQueueParams) string { return retryQueueName(b.names.Shared, p) }
	}
	for _, delay := range b.policy.DistinctDelays() {
		spelled := config.FormatDelay(delay)
		q := Queue{
			Name:      name(RetryQueueParams{Queue: b.plan.Queue, Delay: spelled, Classic: b.policy.ClassicQueues}),
			Delay:     delay,
			Arguments: retryArguments(delay, b.policy.ClassicQueues),
			Shared:    shared,
		}
		if shared { // without a key of its own: what waits keeps the one that it was published with
			q.Arguments["x-dead-letter-exchange"] = b.names.returnExchange()
		} else {
			q.Arguments["x-dead-letter-exchange"] = ""
			q.Arguments["x-dead-letter-routing-key"] = b.plan.Queue
		}
		b.queue(q, "retry queue for "+spelled, field)
		b.bind(q.Name, header.Delay, spelled)
	}
}

// landing adds the part of the ladder that is this queue's.
func (b *builder) landing() {
	ladder, err := NewLadder(b.policy.Ladder)
	if err != nil {
		b.errs = append(b.errs, err)
		return
	}
	own, err := ladder.Of(Target{Key: b.plan.Queue}, b.names)
	if err != nil {
		b.errs = append(b.errs, err)
		return
	}
	b.plan.Ladder = &ladder
	for _, q := range own.Queues {
		b.queue(q, "landing queue", "Names.Landing")
	}
	b.plan.Bindings = append(b.plan.Bindings, own.Bindings...)
}

func (b *builder) queue(q Queue, object, field string) {
	b.check(object, q.Name, field)
	if owner, taken := b.owners[q.Name]; taken {
		b.errs = append(b.errs, &NameError{Queue: b.plan.Queue, Object: object, Name: q.Name, Problem: "has the same " +
			"name as the " + owner + "; give another name through " + field})
	}
	b.owners[q.Name] = object
	b.plan.Queues = append(b.plan.Queues, q)
}

// bind lets the retry exchange route what carries the header to the queue.
func (b *builder) bind(queue, header, value string) {
	b.plan.Bindings = append(b.plan.Bindings, Binding{
		Exchange:  b.plan.RetryExchange,
		Queue:     queue,
		Arguments: amqp.Table{"x-match": "all", header: value},
	})
}

func (b *builder) check(object, name, field string) {
	if err := checkName(b.plan.Queue, object, name, field); err != nil {
		b.errs = append(b.errs, err)
	}
}

// retryArguments never depend on the broker's version, since instances of one service may meet
// several.
func retryArguments(delay time.Duration, classic bool) amqp.Table {
	// int64, as the library sends an int with 32 bits, which wraps beyond 24 days.
	ttl := delay.Milliseconds()
	if classic {
		return amqp.Table{amqp.QueueTypeArg: amqp.QueueTypeClassic, amqp.QueueMessageTTLArg: ttl}
	}
	return amqp.Table{
		amqp.QueueTypeArg:       amqp.QueueTypeQuorum,
		amqp.QueueMessageTTLArg: ttl,
		// At-least-once silently becomes at-most-once unless a full queue rejects what is
		// published.
		"x-dead-letter-strategy": "at-least-once",
		amqp.QueueOverflowArg:    amqp.QueueOverflowRejectPublish,
		// Upstream: queues of one connection all have their leader on its node; documentation of
		// RabbitMQ 4.3; RabbitMQ 3.10 to 4.3; TestArgumentsStayForEver; remove when balanced is the
		// default.
		"x-queue-leader-locator": "balanced",
		// Else, since RabbitMQ 4.0, a message that was looked at 21 times is dead-lettered at once:
		// a retry too early.
		"x-delivery-limit": unlimited,
	}
}

func deadLetterArguments() amqp.Table {
	return amqp.Table{
		amqp.QueueTypeArg:        amqp.QueueTypeQuorum,
		"x-queue-leader-locator": "balanced",
		"x-delivery-limit":       unlimited,
	}
}

// Check reports all collisions between the plans of one broker, as joined *[NameError]s: two main
// queues whose objects share a name, one main queue with two different plans, and a main queue that
// is another's retry or dead-letter queue. Equal plans are no collision. Neither is what one main
// queue has for its retries and for delayed publishing.
func Check(plans ...Plan) error {
	c := collisions{plans: map[string]Plan{}, owners: map[object]string{}, landings: map[string]Queue{}}
	// Main queues first: of two that meet, it is the other one that can be named otherwise.
	for _, plan := range plans {
		c.mainQueue(plan)
	}
	ladders := map[string]bool{}
	for _, plan := range plans {
		c.objects(plan)
		if plan.Ladder == nil || ladders[plan.Ladder.Name()] {
			continue
		}
		ladders[plan.Ladder.Name()] = true
		for _, queue := range plan.Ladder.Shared().Queues {
			c.claim(rabbitmq.KindQueue, queue.Name, plan.Queue, "the ladder",
				", and is a queue of the ladder; give it another name, or the ladder another Prefix")
		}
	}
	return errors.Join(c.errs...)
}

type object struct{ kind, name string }

// collisions collects who owns which object.
type collisions struct {
	plans    map[string]Plan // by main queue
	owners   map[object]string
	landings map[string]Queue
	errs     []error
}

func (c *collisions) claim(kind, name, queue, owner, wayOut string) {
	key := object{kind, name}
	if other, taken := c.owners[key]; taken && owner != other {
		c.errs = append(c.errs, &NameError{Queue: queue, Object: kind, Name: name,
			Problem: "belongs to " + other + wayOut})
		return
	}
	c.owners[key] = owner
}

func (c *collisions) mainQueue(plan Plan) {
	if plan.Queue == "" {
		return
	}
	if !plan.isPart() {
		if known, twice := c.plans[plan.Queue]; twice && !reflect.DeepEqual(known, plan) {
			c.errs = append(c.errs, &NameError{Queue: plan.Queue, Object: "main queue", Name: plan.Queue,
				Problem: "has two different topologies; all that consume one queue need the same policy and the same " +
					"Names"})
		}
		c.plans[plan.Queue] = plan
	}
	c.claim(rabbitmq.KindQueue, plan.Queue, plan.Queue, plan.owner(), otherNames)
}

func (c *collisions) objects(plan Plan) {
	owner := func(shared bool) string {
		if shared {
			return "the shared retry topology"
		}
		return plan.owner()
	}
	for _, exchange := range plan.Exchanges {
		c.claim(rabbitmq.KindExchange, exchange.Name, plan.Queue, owner(exchange.Shared), otherNames)
	}
	for _, queue := range plan.Queues {
		if queue.Landing {
			if known, twice := c.landings[queue.Name]; twice && reflect.DeepEqual(known, queue) {
				continue // of the same target
			}
			c.landings[queue.Name] = queue
		}
		c.claim(rabbitmq.KindQueue, queue.Name, plan.Queue, owner(queue.Shared), otherNames)
	}
}

const otherNames = "; give another name through Names"

// isPart tells a plan that has only what a target declares beside a ladder.
func (p Plan) isPart() bool {
	return p.Ladder != nil && p.RetryExchange == "" && p.DeadLetterQueue == ""
}

func (p Plan) owner() string {
	if p.Queue == "" && len(p.Queues) > 0 { // an exchange is the target
		return fmt.Sprintf("the topology of %q", p.Queues[0].Name)
	}
	return fmt.Sprintf("the topology of queue %q", p.Queue)
}
