package consumer

import (
	"errors"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/amqpretry/topology"
	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/internal/codec"
	"github.com/amqpretry/watermill-retry/internal/engine"
	"github.com/amqpretry/watermill-retry/internal/header"
	"github.com/amqpretry/watermill-retry/internal/publish"
	"github.com/amqpretry/watermill-retry/internal/wire"
)

// Queue is a queue to consume from, with what its policy makes of it. Its names are pinned: a delivery does not say
// from which queue it came.
type Queue struct {
	Topic  string // empty for a failed queue of several main queues
	Name   string
	Policy config.Policy
	Plan   topology.Plan
	Names  topology.Names
	// Declare declares the main queue and the plan on a broker of this version; nil when nothing may be declared.
	Declare func(channel *amqp091.Channel, version string) error
	// DeadLettersOf is the main queue whose dead letters lie in Queue; empty for a main queue.
	DeadLettersOf string
	// DeclareApart declares instead, over a connection of the caller's: what the broker says to it costs no consumer.
	// Optional.
	DeclareApart func() error
	// FailedOf are the main queues whose rejected messages lie in Queue, by name; empty for all other queues. Each has a
	// Policy, a Plan and a Forwarder of its own, and no handler gets a message.
	FailedOf []*Queue
	// Missing is why nothing may wait to return to a main queue of FailedOf; nil if all is well. Optional.
	Missing func() error
	// Unsure tells whether a queue that is none of FailedOf may be one soon: a message of it that arrived then waits until
	// that is known, or until the subscription ends. Optional.
	Unsure func(queue string, arrived time.Time) bool
	// Forwarder takes the failed messages; nil under policy off.
	Forwarder *publish.QueueForwarder
	// Ended is called when a subscription that Subscribe has returned is over, before its messages' channel is closed.
	// Optional.
	Ended func()
}

// isFailed tells whether it is a failed queue.
func (s *Queue) isFailed() bool { return len(s.FailedOf) > 0 }

func (s *Queue) end() {
	if s.Ended != nil {
		s.Ended()
	}
}

// isUsable tells whether the queue can be consumed from although it could not be declared: somebody has made it anew
// with another type, or other arguments. Not where those bring a rejected message back, nor from a stream, which keeps
// what is acknowledged: RabbitMQ names the type of a stream before any other argument.
func (s *Queue) isUsable(err error) bool {
	var conflict *topology.ConflictError

	return errors.As(err, &conflict) && conflict.Kind == topology.KindQueue && conflict.Name == s.Name &&
		strings.HasPrefix(conflict.Argument, "x-") && conflict.Found != amqp091.QueueTypeStream &&
		!s.Policy.BrokerDriven()
}

// tell tells the run that has replayed a message, if one wants to know, what has become of it.
func (s *Queue) tell(canary string, outcome wire.Outcome, published *wire.State) {
	if s.Forwarder != nil {
		s.Forwarder.Report(canary, outcome, published)
	}
}

// broker is what is to be known of the one that delivers; zero if nothing is.
type broker struct {
	version   string
	frameSize int // 0 for no limit
	returns   codec.Returns
}

// arrive reads what a delivery carries.
func (s *Queue) arrive(
	d *amqp091.Delivery, now time.Time, from broker, logger watermill.LoggerAdapter,
) engine.Arrival {
	m := engine.Arriving{
		Headers: d.Headers, Expiration: d.Expiration, Timestamp: d.Timestamp,
		Redelivered: d.Redelivered, Deliveries: s.deaths(d, from.version),
	}
	if s.Policy.BrokerDriven() {
		m.Returned = s.returned(d, m.Deliveries, from)
	}
	if wire.Carries(d.Headers, s.Name) {
		m.Waited, m.IsRetryQueue = codec.NewestDeath(d.Headers), s.isRetryQueue
	}
	a := engine.Arrive(s.Name, &s.Policy, &m, now)
	s.isEarly(d, &m, now, &a)
	d.Priority = max(d.Priority, a.State.Arrival.Priority) // it may have been lower while it waited
	if a.Unknown {
		logger.Info("Message has retry headers of an unknown version; it starts at attempt 1", watermill.LogFields{
			"amqp_queue_name": s.Name, "version": codec.HeaderText(d.Headers[header.Version]),
		})
	}

	return a
}

// isEarly notes in an arrival that a message has come back before its delay was over.
func (s *Queue) isEarly(d *amqp091.Delivery, m *engine.Arriving, now time.Time, a *engine.Arrival) {
	if s.Forwarder == nil || a.Crash != nil {
		return
	}
	var early *publish.Early
	if delay, _ := d.Headers[header.Delay].(string); a.Returns > 0 {
		early = s.Forwarder.Back(rejection(d, a.Returns), now)
	} else if m.Waited != "" && s.isRetryQueue(m.Waited, delay) {
		early = s.Forwarder.Back(publish.Trip{
			Message: codec.Identity(d.Headers, d.MessageId), Count: a.State.Count,
			ID: codec.HeaderText(d.Headers[header.ID]),
		}, now)
	}
	if early != nil {
		a.CameEarly(early.Left, early.Due, early.Pause)
	}
	a.ByCopy = a.ByCopy || s.Forwarder.Undelayed()
}

// rejection is the wait of a message that the broker brings back by itself.
func rejection(d *amqp091.Delivery, failures int64) publish.Trip {
	return publish.Trip{Message: codec.Identity(d.Headers, d.MessageId), Count: int(min(failures, math.MaxInt32))}
}

// isRetryQueue reports whether name is this queue's retry queue for a delay. It knows those of other policies as well:
// what waits under an old one continues under the new.
func (s *Queue) isRetryQueue(name, delay string) bool {
	if _, err := config.ParseDelay(delay); err != nil {
		return false
	}

	return slices.Contains(s.Names.RetryQueues(s.Name, delay), name)
}
