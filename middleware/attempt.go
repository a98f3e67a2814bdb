package middleware

import (
	"context"
	"slices"
	"time"

	"github.com/amqpretry/watermill-retry/internal/wire"
)

// Attempt tells a handler where its message stands.
type Attempt struct {
	// Number of this attempt, 1 for the first. Immediate tries are part of an attempt, postponing uses none up.
	Number int
	// Try within this attempt, 1 for the first; more only with the policy's Immediate.
	Try int
	// Failures are the failed attempts before this one.
	Failures int
	// MaxRetries of the policy: Number goes up to MaxRetries + 1.
	MaxRetries int
	// Last is true when a failure now is final: the message goes to the dead-letter queue, or is dropped under [config.ExpiryDrop].
	// No retry is left, or the wait for it would end after the Deadline, however short jitter makes it. It is about a plain error; what
	// the handler says with RetryAfter or Permanent, or the policy says of the error, can end it otherwise.
	Last bool
	// Calls of a handler before this one, over all lives of the message: immediate tries, postponed calls and what was
	// before a replay included.
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
	// History has the first failed call and the last nine, with the times and the texts of their errors.
	History []FailedAttempt
	// Queue is the queue that the message was consumed from.
	Queue string
}

// FailedAttempt is one failed call in a message's history.
type FailedAttempt = wire.Attempt

// AttemptFromContext tells where the message stands whose context ctx is. It is false for messages that do not come from a
// plug, and under policy "off".
func AttemptFromContext(ctx context.Context) (Attempt, bool) {
	d := deliveryFrom(ctx)
	if d == nil || off(d) {
		return Attempt{}, false
	}

	return attemptOf(d, nowOf(d)), true
}

// Withdrawn tells whether the message whose context ctx is was taken away from its handler: by a close that has waited long enough, or
// a lost connection. What the handler then returns counts for nothing, as the broker delivers the message again. It is false for
// messages that do not come from a plug.
func Withdrawn(ctx context.Context) bool {
	d := deliveryFrom(ctx)
	return d != nil && d.Withdrawn()
}

// nowOf is the time by the clock of the delivery, if it has one of its own: that of a unit test.
func nowOf(d Delivery) time.Time {
	if clock, ok := d.(interface{ Now() time.Time }); ok {
		return clock.Now()
	}

	return time.Now()
}

// isFinal tells whether a plain error is the end of the message.
func isFinal(d Delivery, now time.Time) bool {
	s := d.State()
	const shortestJitter = 1 - 1e-9
	action := Decide(*d.Policy(), Case{
		Class: ClassError, Failures: s.Count, Tries: s.Tries, Now: now, Since: s.Since, Deadline: s.Deadline, Random: shortestJitter,
	}).Action

	return action == ActionDeadLetter || action == ActionDrop
}

func attemptOf(d Delivery, now time.Time) Attempt {
	s, policy := d.State(), d.Policy()
	retries := policy.MaxRetries()

	return Attempt{
		Number:       s.Count + 1,
		Try:          s.Tries + 1,
		Failures:     s.Count,
		MaxRetries:   retries,
		Last:         isFinal(d, now),
		Calls:        s.Attempts,
		Replays:      s.Replays,
		Since:        s.Since,
		Deadline:     s.Deadline,
		FirstFailure: s.FirstFailure,
		LastError:    s.Error,
		History:      slices.Clone(s.History),
		Queue:        d.Queue(),
	}
}
