package middleware

import (
	"context"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/internal/wire"
)

// Delivery is the broker's side of a message, as the plug that received it shows it to the middleware. Only plugs of this
// module implement it.
type Delivery interface {
	// Owner tells the plugs of one router apart.
	Owner() any
	// Queue is the queue that the message was consumed from.
	Queue() string
	// The following are those of Standing. They go without copies: each message has a goroutine of its own, whose stack is to stay small.
	Policy() *config.Policy
	Narrow(policy config.Policy)
	State() *wire.State
	Advance(s wire.State)
	Begin(at time.Time, attempt *Event) bool
	End() (began time.Time, attempt *Event, ok bool)
	// Enter and Leave tell that a middleware has the message in hand. A handler may ack or nack it by itself: that is carried
	// out when the last has left, and what the middleware says counts.
	Enter()
	Leave()
	// Withdrawn reports whether the message was taken away from its handler: a close that has waited long enough, or a lost
	// connection. What the handler then returns is no failure.
	Withdrawn() bool
	// Succeeded notes that the handler succeeded: if the message is nacked all the same, outside a shutdown, its outputs
	// could not be published, and that is a failed attempt.
	Succeeded()
	// Settle hands over what is to happen. With the plug's own consumer it returns at once and the consumer acts; on a
	// stock subscriber it returns when the copy is confirmed. After an error the message must be nacked.
	Settle(ctx context.Context, s Settlement) error
}

// Settlement is a verdict with what is needed to carry it out.
type Settlement struct {
	Verdict Verdict
	// State is what the copy carries, for a retry and a dead letter.
	State wire.State

	failure failure
}

// Done tells what was carried out: for a retry and a dead letter once the broker has confirmed the copy, which may have
// become a dead letter because it was too large; for a drop when the message is acknowledged.
func (s Settlement) Done(verdict Verdict) {
	s.failure.settle(carriedOut(verdict.Action), verdict, nil)
}

// Abandoned tells that the copy was given up, and why: the broker delivers the message again.
func (s Settlement) Abandoned(err error) {
	s.failure.settle(EventAbandoned, s.Verdict, err)
}

type deliveryKey struct{}

// WithDelivery returns a context that carries the delivery of a message.
func WithDelivery(ctx context.Context, d Delivery) context.Context {
	return context.WithValue(ctx, deliveryKey{}, d)
}

// HasDelivery tells whether a context carries a delivery of this owner already.
func HasDelivery(ctx context.Context, owner any) bool {
	d := deliveryFrom(ctx)
	return d != nil && d.Owner() == owner
}

func deliveryOf(msg *message.Message) Delivery {
	return deliveryFrom(msg.Context())
}

func deliveryFrom(ctx context.Context) Delivery {
	d, _ := ctx.Value(deliveryKey{}).(Delivery)
	return d
}

// off reports whether the policy leaves the message alone: then a handler sees what it would see without us.
func off(d Delivery) bool { return d.Policy().Mode == config.ModeOff }
