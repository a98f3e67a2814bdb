package engine

import (
	"context"
	"time"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/internal/wire"
	"github.com/amqpretry/watermill-retry/retry"
)

// Delivery is the broker's side of a message, as the retrier that received it shows it to the middleware. Only retriers
// of this module implement it.
type Delivery interface {
	// Engine that decides over it, which tells the retriers of one router apart.
	Engine() *Engine
	// Queue is the queue that the message was consumed from.
	Queue() string
	// The following are those of Progress. They go without copies: each message has a goroutine of its own, whose stack
	// is to stay small.
	Policy() *config.Policy
	Narrow(policy config.Policy)
	State() *wire.State
	Advance(s wire.State)
	Remember(origin any)
	Origin() any
	Begin(at time.Time, call *retry.Event) bool
	End() (began time.Time, call *retry.Event, ok bool)
	// Enter and Leave tell that a middleware has the message in hand. A handler may ack or nack it by itself: that is
	// carried out when the last has left, and what the middleware says counts.
	Enter(handler string)
	Leave()
	// Withdrawn reports whether the message was taken away from its handler: a close that has waited long enough, or a
	// lost connection. What the handler then returns is no failure.
	Withdrawn() bool
	// NeedsCopy tells that only a copy can bring the message back, whatever the strategy of its policy.
	NeedsCopy() bool
	// Succeeded notes that the handler succeeded: if the message is nacked all the same, outside a shutdown, its
	// outputs could not be published, and that is a failed attempt.
	Succeeded()
	// Settle hands over what is to happen. With the retrier's own consumer it returns at once and the consumer acts; on
	// a stock subscriber it returns when the copy is confirmed. After an error the message must be nacked.
	Settle(ctx context.Context, s Settlement) error
}

// Settlement is a verdict with what is needed to carry it out.
type Settlement struct {
	Verdict retry.Verdict
	// State is what the copy carries, for a retry and a dead letter.
	State wire.State

	failure failure
}

// Done tells what was carried out: for a retry and a dead letter once the broker has confirmed the copy, which may have
// become a dead letter because it was too large; for a drop when the message is acknowledged.
func (s Settlement) Done(verdict retry.Verdict) {
	s.failure.settle(carriedOut(verdict.Action), verdict, nil)
}

// Abandoned tells that the copy was given up, and why: the broker delivers the message again.
func (s Settlement) Abandoned(err error) {
	s.failure.settle(retry.EventAbandoned, s.Verdict, err)
}
