package retry

import (
	"fmt"
	"time"

	"github.com/amqpretry/watermill-retry/internal/mark"
)

// The marks that an error can carry: errors.Is matches them for every error that Permanent, Drop, Transient, RetryAfter
// or Postpone has marked.
var (
	ErrPermanent  = mark.ErrPermanent
	ErrDrop       = mark.ErrDrop
	ErrTransient  = mark.ErrTransient
	ErrRetryAfter = mark.ErrRetryAfter
	ErrPostponed  = mark.ErrPostponed
)

// Permanent marks err as one that no retry can help: the message goes to the dead-letter queue at once, with reason
// "permanent". The error keeps its text. Permanent(nil) is nil.
func Permanent(err error) error { return mark.New(err, mark.ErrPermanent, 0) }

// Drop marks err so that the message is acknowledged and reported, neither retried nor dead-lettered. The error keeps its
// text. Drop(nil) is nil.
func Drop(err error) error { return mark.New(err, mark.ErrDrop, 0) }

// Transient marks err as one to be retried as the policy says, whatever the policy's lists of errors and the error's
// own Retryable method say. The error keeps its text. Transient(nil) is nil.
func Transient(err error) error { return mark.New(err, mark.ErrTransient, 0) }

// RetryAfter marks err as one that is not worth a retry before d has passed, as a Retry-After header says it. The
// message waits in one delay of its policy, or in several one after the other: for d at least, and for the policy's
// MaxPostpone at most. It uses up one retry like any error. The error keeps its text. RetryAfter(d, nil) is nil.
//
//nolint:revive // it is named after the header of HTTP, and retry.After would be the retry's name
func RetryAfter(d time.Duration, err error) error { return mark.New(err, mark.ErrRetryAfter, d) }

// Postpone is the error of a handler that cannot handle its message yet: it waits as for [RetryAfter], and comes back
// without having used up an attempt, until its age is beyond the policy's MaxPostpone. Wrap it to say what it waits
// for:
//
//	return fmt.Errorf("the payment is not there yet: %w", retry.Postpone(time.Minute))
//
// Under a policy without retries there is nothing to wait in: the message goes to the dead-letter queue.
func Postpone(d time.Duration) error {
	return mark.New(fmt.Errorf("postponed for %s", d), mark.ErrPostponed, d)
}
