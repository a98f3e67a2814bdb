package retry

import (
	"context"
	"time"
)

// Attempt tells a handler where its message stands.
type Attempt struct {
	// Number of this attempt, 1 for the first. Immediate tries are part of an attempt, postponing
	// uses none up.
	Number int
	// Try within this attempt, 1 for the first; more only with the policy's Immediate.
	Try int
	// Failures are the failed attempts before this one.
	Failures int
	// MaxRetries of the policy: Number goes up to MaxRetries + 1.
	MaxRetries int
	// Last is true when a failure now is final: the message goes to the dead-letter queue, or is
	// dropped under [config.ExpiryDrop]. No retry is left, or the wait for it would end after the
	// Deadline, however short jitter makes it. It is about a plain error; what the handler says
	// with RetryAfter or Permanent, or the policy says of the error, can end it otherwise.
	Last bool
	// Calls of a handler before this one, over all lives of the message: immediate tries, postponed
	// calls and what was before a replay included.
	Calls int
	// Replays is how often the message came back from the dead-letter queue.
	Replays int
	// Since is where the age of the message counts from: its timestamp, else its first delivery.
	Since time.Time
	// Deadline is when the message expires; zero if it does not.
	Deadline time.Time
	// FirstFailure is the time of the first failed call, zero before.
	FirstFailure time.Time
	// LastError is the error text of the last failed call, empty before.
	LastError string
	// History has the first failed call and the last nine, with the times and the texts of their
	// errors.
	History []FailedCall
	// Queue is the queue that the message was consumed from.
	Queue string
}

// Delivery is what the context of a message tells of it. The retrier puts it there.
type Delivery interface {
	// Attempt is false under policy "off".
	Attempt() (Attempt, bool)
	// Withdrawn tells whether the message was taken away from its handler: by a close that has
	// waited long enough, or a lost connection. The result of the handler then counts for nothing,
	// as the broker delivers the message again.
	Withdrawn() bool
}

type deliveryKey struct{}

// NewContext returns a context that carries d, such as for a unit test of a handler. Package
// retrytest plays whole lives of messages.
func NewContext(ctx context.Context, d Delivery) context.Context {
	return context.WithValue(ctx, deliveryKey{}, d)
}

// FromContext returns the delivery of the message whose context ctx is. It is nil for messages that
// do not come from a retrier.
func FromContext(ctx context.Context) Delivery {
	d, _ := ctx.Value(deliveryKey{}).(Delivery)
	return d
}

// AttemptFromContext tells where the message stands whose context ctx is. It is false for messages
// that do not come from a retrier, and under policy "off".
func AttemptFromContext(ctx context.Context) (Attempt, bool) {
	d := FromContext(ctx)
	if d == nil {
		return Attempt{}, false
	}

	return d.Attempt()
}
