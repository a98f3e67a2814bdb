package retry

import (
	"errors"
	"fmt"
	"time"
)

// The marks that an error can carry: errors.Is matches them for every error that Permanent, Drop,
// Transient, RetryAfter or Postpone has marked.
var (
	ErrPermanent  = errors.New("permanent error")
	ErrDrop       = errors.New("dropped message")
	ErrTransient  = errors.New("transient error")
	ErrRetryAfter = errors.New("retry after a time")
	ErrPostponed  = errors.New("postponed message")
)

// MarkedError is an error with a mark on it. The outermost mark of a chain counts: errors.As finds
// it.
type MarkedError struct {
	error
	// Mark is one of ErrPermanent, ErrDrop, ErrTransient, ErrRetryAfter and ErrPostponed.
	Mark error
	// After is the time that RetryAfter or Postpone asks for.
	After time.Duration
}

// Unwrap returns the error without the mark.
func (e *MarkedError) Unwrap() error { return e.error }

// Is tells whether target is the mark.
func (e *MarkedError) Is(target error) bool { return target == e.Mark }

// marked marks an error; nil stays nil.
func marked(err, mark error, after time.Duration) error {
	if err == nil {
		return nil
	}

	return &MarkedError{err, mark, after}
}

// Permanent marks err as one that no retry can help: the message goes to the dead-letter queue at
// once, with reason "permanent". The error keeps its text. Permanent(nil) is nil.
func Permanent(err error) error { return marked(err, ErrPermanent, 0) }

// Drop marks err so that the message is acknowledged and reported, neither retried nor
// dead-lettered. The error keeps its text. Drop(nil) is nil.
func Drop(err error) error { return marked(err, ErrDrop, 0) }

// Transient marks err as one to be retried as the policy says, whatever the policy's lists of
// errors and the error's own Retryable method say. The error keeps its text. Transient(nil) is nil.
func Transient(err error) error { return marked(err, ErrTransient, 0) }

// RetryAfter marks err as one that is not worth a retry before d has passed, as a Retry-After
// header says it. The message waits in one delay of its policy, or in several one after the other:
// for d at least, and for the policy's MaxPostpone at most. It uses up one retry like any error.
// The error keeps its text. RetryAfter(d, nil) is nil.
//
//nolint:revive // it is named after the header of HTTP, and retry.After would be the retry's name
func RetryAfter(d time.Duration, err error) error { return marked(err, ErrRetryAfter, d) }

// Postpone is the error of a handler that cannot handle its message yet: it waits as for
// [RetryAfter], and comes back without having used up an attempt, until its age is beyond the
// policy's MaxPostpone. Wrap it to say what it waits for:
//
//	return fmt.Errorf("the payment is not there yet: %w", retry.Postpone(time.Minute))
//
// Under a policy without retries there is nothing to wait in: the message goes to the dead-letter
// queue.
func Postpone(d time.Duration) error {
	return marked(fmt.Errorf("postponed for %s", d), ErrPostponed, d)
}
