package topology

import (
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// Backend holds messages on the broker, each for any delay, and then hands them to their targets. [Ladder] is the only
// one there is. A backend is a comparable value.
//
// A target takes part by declaring its part of the backend. Messages for any other target end where an operator finds
// them, and reach nobody.
//
// A backend that needs more than RabbitMQ 3.10 must find out by a trial whether a broker can do that, and never by a
// version: the nodes of a cluster may have different ones.
type Backend interface {
	// Name tells backends apart: those of one name share their messages.
	Name() string
	// Shared is what all targets of a virtual host have in common, as a plan without a main queue.
	Shared() Plan
	// Of is what a target declares beside Shared, as a plan without a main queue.
	Of(target Target, names Names) (Plan, error)
	// Address makes a message ready to wait for a delay, and returns where it is published. It changes message: what
	// the broker would act on while it waits is removed. A delay beyond the longest of the backend is shortened to
	// that one without an error, so callers check first.
	Address(target Target, delay time.Duration, message *amqp.Publishing) (exchange, key string)
	// Remaining is how long a message in one of the shared queues waits at most until its target gets it.
	Remaining(q Queue) time.Duration
	// Hops is in how many queues a message with this delay waits, its target's own included.
	Hops(delay time.Duration) int
}

// Target is where delayed messages go when they are due: an exchange with a routing key. The default exchange has an
// empty name, and its routing key is a queue.
type Target struct {
	// Exchange is empty for the default exchange.
	Exchange string
	// Key is the routing key, and with the default exchange the name of the queue.
	Key string
}

// QueueTarget is the target that is a queue.
func QueueTarget(queue string) Target { return Target{Key: queue} }

// String is the name of the target's queue or exchange, with the routing key where it has one.
func (t Target) String() string {
	switch {
	case t.Exchange == "":
		return t.Key
	case t.Key == "":
		return t.Exchange
	default:
		return t.Exchange + " with key " + t.Key
	}
}
