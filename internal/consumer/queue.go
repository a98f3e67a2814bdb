package consumer

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/internal/codec"
	"github.com/amqpretry/watermill-retry/internal/connection"
	"github.com/amqpretry/watermill-retry/internal/engine"
	"github.com/amqpretry/watermill-retry/internal/header"
	"github.com/amqpretry/watermill-retry/internal/publish"
	"github.com/amqpretry/watermill-retry/internal/rabbitmq"
	"github.com/amqpretry/watermill-retry/internal/wire"
)

// Queue is a queue to consume from, with what its policy makes of it. Its names are pinned: a
// delivery does not say from which queue it came.
type Queue struct {
	Topic  string // empty for a failed queue of several main queues
	Name   string
	Policy config.Policy
	Plan   topology.Plan
	Names  topology.Names
	// Declare declares the main queue and the plan over a channel of a link; nil when nothing may
	// be declared.
	Declare func(link *connection.Link, channel *amqp091.Channel) error
	// DeadLettersOf is the main queue whose dead letters lie in Queue; empty for a main queue.
	DeadLettersOf string
	// DeclareApart declares instead, over a connection of the caller's: what the broker says to it
	// costs no consumer. Optional.
	DeclareApart func() error
	// FailedOf are the main queues whose rejected messages lie in Queue, by name; empty for all
	// other queues. Each has a Policy, a Plan and a Forwarder of its own, and no handler gets a
	// message.
	FailedOf []*Queue
	// Missing is why nothing may wait to return to a main queue of FailedOf; nil if all is well.
	// Optional.
	Missing func() error
	// Unsure reports whether a queue that is none of FailedOf may be one soon: a message of it that
	// arrived then waits until that is known, or until the subscription ends. Optional.
	Unsure func(queue string, arrived time.Time) bool
	// Forwarder takes the failed messages; nil under policy off.
	Forwarder *publish.QueueForwarder
	// Ended is called when a subscription that Subscribe has returned is over, before its messages'
	// channel is closed. Optional.
	Ended func()
}

// isFailed reports whether it is a failed queue.
func (q *Queue) isFailed() bool { return len(q.FailedOf) > 0 }

// declare declares over a channel, which others may use next.
func (q *Queue) declare(link *connection.Link, over *reused) error {
	if q.DeclareApart != nil {
		return q.DeclareApart()
	}
	channel, err := over.on(link)
	if err != nil {
		return fmt.Errorf("cannot open a channel: %w", err)
	}

	return q.Declare(link, channel)
}

// isUsable reports whether the queue can be consumed from although it could not be declared:
// somebody has made it anew with another type, or other arguments. Not where those bring a rejected
// message back, nor from a stream, which keeps what is acknowledged: RabbitMQ names the type of a
// stream before any other argument.
func (q *Queue) isUsable(err error) bool {
	var conflict *topology.ConflictError

	return errors.As(err, &conflict) && conflict.Kind == rabbitmq.KindQueue && conflict.Name == q.Name &&
		strings.HasPrefix(conflict.Argument, "x-") && conflict.Found != amqp091.QueueTypeStream &&
		!q.Policy.Strategy.ByBroker()
}

// report lets the run that has replayed a message know, if one wants to, what has become of it.
func (q *Queue) report(canary string, outcome wire.Outcome, published *wire.State) {
	if q.Forwarder != nil {
		q.Forwarder.Report(canary, outcome, published)
	}
}

// broker is what is to be known of the one that delivers; zero if nothing is.
type broker struct {
	version   string
	frameSize int // 0 for no limit
	returns   codec.Returns
}

// arrive reads what a delivery carries.
func (q *Queue) arrive(
	d *amqp091.Delivery, now time.Time, from broker, logger watermill.LoggerAdapter,
) engine.Arrival {
	m := engine.Arriving{
		Headers: d.Headers, Expiration: d.Expiration, Timestamp: d.Timestamp,
		Redelivered: d.Redelivered, Deliveries: q.deaths(d, from.version),
	}
	if q.Policy.Strategy.ByBroker() {
		m.Returned = q.returned(d, m.Deliveries, from)
	}
	if wire.Carries(d.Headers, q.Name) {
		m.Waited, m.IsRetryQueue = codec.NewestDeath(d.Headers), q.isRetryQueue
		m.SentNow = codec.SentNow(d.Headers)
	}
	a := engine.Arrive(q.Name, &q.Policy, &m, now)
	q.isEarly(d, &m, now, &a)
	q.complete(d, &a, logger)

	return a
}

// complete gives a delivery the priority that it had before it waited.
func (q *Queue) complete(d *amqp091.Delivery, a *engine.Arrival, logger watermill.LoggerAdapter) {
	d.Priority = max(d.Priority, a.State.Arrival.Priority)
	if a.Unknown {
		logger.Info("Message has retry headers of an unknown version; it starts at attempt 1", watermill.LogFields{
			"amqp_queue_name": q.Name, "version": codec.HeaderText(d.Headers[header.Version]),
		})
	}
}

// isEarly notes in an arrival that a message has come back before its delay was over.
func (q *Queue) isEarly(d *amqp091.Delivery, m *engine.Arriving, now time.Time, a *engine.Arrival) {
	if q.Forwarder == nil || a.Crash != nil {
		return
	}
	var early *publish.Early
	if delay, _ := d.Headers[header.Delay].(string); a.Returns > 0 {
		early = q.Forwarder.Back(rejection(d, a.Returns), now)
	} else if m.Waited != "" && !m.SentNow && q.isRetryQueue(m.Waited, delay) {
		early = q.Forwarder.Back(publish.Trip{
			Message: codec.Identity(d.Headers, d.MessageId), Count: a.State.Count,
			ID: codec.HeaderText(d.Headers[header.ID]),
		}, now)
	}
	if early != nil {
		a.CameEarly(early.Left, early.Due, early.Pause)
	}
	a.ByCopy = a.ByCopy || q.Forwarder.Undelayed()
}

// rejection is the wait of a message that the broker brings back by itself.
func rejection(d *amqp091.Delivery, failures int64) publish.Trip {
	return publish.Trip{Message: codec.Identity(d.Headers, d.MessageId), Count: int(min(failures, math.MaxInt32))}
}

// isRetryQueue reports whether name is this queue's retry queue for a delay. It knows those of
// other policies as well: what waits under an old one continues under the new.
func (q *Queue) isRetryQueue(name, delay string) bool {
	if _, err := config.ParseDelay(delay); err != nil {
		return false
	}

	return slices.Contains(q.Names.RetryQueues(q.Name, delay), name)
}

// deaths is how many consumers may have died of a delivery: how often it was delivered without an
// answer, as far as the broker tells. RabbitMQ 4.0 to 4.2 count the rejections of the strategy
// cycle as well, and the counts travel along. More of those than a policy allows are none of ours,
// so as to hide no death.
func (q *Queue) deaths(d *amqp091.Delivery, version string) int64 {
	count := codec.DeliveryCount(d.Headers)
	if q.Policy.Strategy != config.StrategyCycle || !rabbitmq.CountsRejections(version) {
		return count
	}
	rejections, _ := codec.Rejections(d.Headers, q.Name)

	return max(0, count-min(rejections, int64(q.Policy.MaxRetries())+1))
}

// returned is what the broker says of a message that it has brought back by itself.
func (q *Queue) returned(d *amqp091.Delivery, deliveries int64, from broker) engine.Returned {
	r := engine.Returned{TooLarge: !from.returns.Fits(d, from.frameSize)}
	if q.Policy.Strategy == config.StrategyCycle {
		var ok bool
		r.Failures, ok = codec.Rejections(d.Headers, q.Name)
		r.Foreign = !ok

		return r
	}

	// A copy has died in its retry queue, with the counts of a new message.
	r.Foreign = codec.HasDied(d.Headers) && !wire.Carries(d.Headers, q.Name)
	r.Uncounted = d.Redelivered && !codec.IsCounted(d.Headers)
	if d.Redelivered { // else its publisher has written it
		r.Failures = deliveries
	}

	return r
}
