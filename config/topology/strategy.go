package topology

import (
	"maps"
	"slices"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/internal/header"
	"github.com/amqpretry/watermill-retry/internal/rabbitmq"
)

// strategy adds what a broker-driven strategy needs beside the retry queues, in which copies wait.
func (b *builder) strategy() {
	if !b.policy.Strategy.ByBroker() {
		return
	}
	b.plan.Strategy = b.policy.Strategy
	if b.policy.Strategy == config.StrategyCycle {
		b.rejected()
		return
	}
	arguments := ProtectArguments(b.plan.DeadLetterQueue)
	if b.policy.Strategy == config.StrategyNative {
		shortest, longest, _ := b.policy.NativeDelays() // the policy is valid
		// "failed" leaves what a closing consumer gives back where it is.
		arguments["x-delayed-retry-type"] = "failed"
		arguments["x-delayed-retry-min"] = shortest.Milliseconds()
		arguments["x-delayed-retry-max"] = longest.Milliseconds()
	}
	b.plan.MainArguments = arguments
}

// rejected adds the exchange to which the main queue dead-letters. Only what a consumer has
// rejected may go to the retry queue: when a message comes back to a queue without a rejection on
// its way, the broker sees a cycle, and drops the message or holds it where it is. All other
// reasons lead to the dead-letter queue. Each reason must lead somewhere: 32 messages that lead
// nowhere stop the dead-lettering of their queue.
//
// The first reason stays when a message comes round again, so what was rejected once must not die
// of anything else: see cycleArguments.
func (b *builder) rejected() {
	delay := b.policy.Delay(1)
	params := RetryQueueParams{Queue: b.plan.Queue, Delay: config.FormatDelay(delay), Classic: b.policy.ClassicQueues}
	retryQueue, name := b.names.RetryQueue(params), b.names.Rejected(params)
	b.check("rejected exchange", name, "Names.Rejected")
	if name == b.plan.RetryExchange {
		b.errs = append(b.errs, &NameError{Queue: b.plan.Queue, Object: "rejected exchange", Name: name,
			Problem: "has the same name as another exchange of the plan; give another name through Names.Rejected"})
	}
	other := params
	other.Delay = config.FormatDelay(delay + time.Millisecond)
	if name != "" && name == b.names.Rejected(other) {
		b.errs = append(b.errs, &NameError{Queue: b.plan.Queue, Object: "rejected exchange", Name: name,
			Problem: "does not depend on the delay; under another delay its bindings would lead to two retry queues, " +
				"and double each message; use its Delay in Names.Rejected"})
	}

	b.plan.Exchanges = append(b.plan.Exchanges, Exchange{Name: name, Type: amqp.ExchangeHeaders, Durable: true})
	for _, reason := range deathReasons() {
		queue := b.plan.DeadLetterQueue
		if reason == rejected {
			queue = retryQueue
		}
		b.plan.Bindings = append(b.plan.Bindings, Binding{Exchange: name, Queue: queue, Arguments: amqp.Table{
			"x-match": "all-with-x", firstReason: reason,
		}})
	}
	b.plan.MainArguments = cycleArguments(name, b.plan.Queue)
}

// rejected is the reason of a death that a consumer has asked for.
const rejected = "rejected"

// firstReason is the broker's header by which a rejected exchange routes.
const firstReason = "x-first-death-reason"

// deathReasons are all reasons for which a broker dead-letters.
func deathReasons() []string { return []string{rejected, "expired", "maxlen", "delivery_limit"} }

// cycleArguments are those of a main queue that dead-letters to its rejected exchange. The delivery
// limit is too high to be reached: what has reached it would come to the retry queue as well, and
// be lost there.
func cycleArguments(exchange, queue string) amqp.Table {
	return amqp.Table{
		amqp.QueueTypeArg:           amqp.QueueTypeQuorum,
		"x-dead-letter-exchange":    exchange,
		"x-dead-letter-routing-key": queue,
		"x-dead-letter-strategy":    "at-least-once",
		amqp.QueueOverflowArg:       amqp.QueueOverflowRejectPublish,
		"x-delivery-limit":          unlimited,
	}
}

// WithMainArguments adds what the plan's strategy needs to the arguments that a main queue has
// anyway. These are not changed; where they say otherwise, the strategy wins: see
// [Plan.MainConflicts]. Only a delivery limit stays, see [Plan.KeepsLimit].
func (p Plan) WithMainArguments(arguments amqp.Table) amqp.Table {
	if p.MainArguments == nil {
		return arguments
	}
	all := amqp.Table{}
	maps.Copy(all, arguments)
	maps.Copy(all, p.MainArguments)
	if limit := arguments[deliveryLimit]; p.KeepsLimit(limit) {
		all[deliveryLimit] = limit
	}
	return all
}

const deliveryLimit = "x-delivery-limit"

// KeepsLimit tells whether a main queue may have this delivery limit of its own: any, where the
// broker sends what reaches it to the dead-letter queue. With the strategy cycle it would come to
// the retry queue, and be lost there.
func (p Plan) KeepsLimit(limit any) bool {
	n, is := header.Integer(limit)
	return is && n >= 0 && p.Strategy.CountsReturns()
}

// MainConflicts lists in order the arguments of a main queue that say otherwise than its strategy
// needs, or that it cannot work with.
func (p Plan) MainConflicts(arguments amqp.Table) []string {
	var conflicts []string
	for key, value := range arguments {
		wanted, needed := p.MainArguments[key]
		switch {
		case p.MainArguments == nil:
		case key == deliveryLimit && p.KeepsLimit(value):
		case needed && !rabbitmq.SameArgument(value, wanted), !needed && p.refuses(key):
			conflicts = append(conflicts, key)
		}
	}
	slices.Sort(conflicts)
	return conflicts
}

// refuses tells of arguments with which the strategy would lose messages: in a cycle, what expires
// in its main queue after a rejection would be taken for rejected, and be lost in the retry queue;
// and a delayed retry that the policy does not ask for would double each wait.
func (p Plan) refuses(key string) bool {
	switch key {
	case amqp.QueueMessageTTLArg, "x-expires":
		return p.Strategy == config.StrategyCycle
	case "x-delayed-retry-type", "x-delayed-retry-min", "x-delayed-retry-max":
		return p.Strategy != config.StrategyNative
	}
	return false
}
