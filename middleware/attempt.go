package middleware

import (
	"context"
	"time"
)

// Attempt tells a handler where its message stands.
type Attempt struct {
	// Number of this attempt, 1 for the first.
	Number int
	// Failures before this attempt.
	Failures int
	// MaxRetries of the policy: Number goes up to MaxRetries + 1.
	MaxRetries int
	// Last is true when a failure of this attempt goes to the dead-letter queue.
	Last bool
	// Replays is how often the message came back from the dead-letter queue.
	Replays int
	// FirstFailure is the time of the first failed attempt, zero before.
	FirstFailure time.Time
	// LastError is the error text of the attempt before, empty for the first.
	LastError string
	// Queue is the queue that the message was consumed from.
	Queue string
}

// AttemptFromContext tells where the message stands whose context ctx is. It is false for messages that do not come from a
// plug, and under policy "off".
func AttemptFromContext(ctx context.Context) (Attempt, bool) {
	d := deliveryFrom(ctx)
	if d == nil || off(d) {
		return Attempt{}, false
	}

	s, limit := d.State(), d.Policy().MaxRetries()

	return Attempt{
		Number:       s.Count + 1,
		Failures:     s.Count,
		MaxRetries:   limit,
		Last:         s.Count >= limit,
		Replays:      s.Replays,
		FirstFailure: s.FirstFailure,
		LastError:    s.Error,
		Queue:        d.Queue(),
	}, true
}
