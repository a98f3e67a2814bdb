package middleware

import (
	"errors"
	"fmt"
	"time"
)

// The marks that an error can carry: errors.Is matches them for every error that Permanent, Drop, Transient, RetryAfter or
// Postpone has marked.
var (
	ErrPermanent  = errors.New("permanent error")
	ErrDrop       = errors.New("dropped message")
	ErrTransient  = errors.New("transient error")
	ErrRetryAfter = errors.New("retry after a time")
	ErrPostponed  = errors.New("postponed message")
)

// Permanent marks err as one that no retry can help: the message goes to the dead-letter queue at once, with reason
// "permanent". The error keeps its text. Permanent(nil) is nil.
func Permanent(err error) error { return mark(err, ErrPermanent, 0) }

// Drop marks err as one after which the message is wanted no more: it is acknowledged and reported, neither retried nor
// dead-lettered. The error keeps its text. Drop(nil) is nil.
func Drop(err error) error { return mark(err, ErrDrop, 0) }

// Transient marks err as one to be retried as the policy says, whatever the policy's lists of errors and the error's own
// Retryable method say. The error keeps its text. Transient(nil) is nil.
func Transient(err error) error { return mark(err, ErrTransient, 0) }

// RetryAfter marks err as one that is not worth a retry before d has passed, as a Retry-After header says it. The message
// waits in one delay of its policy, or in several one after the other: for d at least, and for the policy's MaxPostpone at
// most. It uses up one retry like any error. The error keeps its text. RetryAfter(d, nil) is nil.
func RetryAfter(d time.Duration, err error) error { return mark(err, ErrRetryAfter, d) }

// Postpone is the error of a handler that cannot handle its message yet: it waits as for [RetryAfter], and comes back
// without having used up an attempt, until its age is beyond the policy's MaxPostpone. Wrap it to say what it waits for:
//
//	return fmt.Errorf("the payment is not there yet: %w", middleware.Postpone(time.Minute))
//
// Under a policy without retries there is nothing to wait in: the message goes to the dead-letter queue.
func Postpone(d time.Duration) error {
	return mark(fmt.Errorf("postponed for %s", d), ErrPostponed, d)
}

// marked is an error with a mark on it. The outermost mark of a chain counts.
type marked struct {
	error
	mark  error
	after time.Duration
}

func mark(err, mark error, after time.Duration) error {
	if err == nil {
		return nil
	}

	return &marked{err, mark, after}
}

func (m *marked) Unwrap() error { return m.error }

func (m *marked) Is(target error) bool { return target == m.mark }

// PanicError is the error of an attempt whose handler panicked.
type PanicError struct {
	// Value is what the handler panicked with.
	Value any
	// Stack is the stack of the panic. It becomes part of the error text only on request, because it can show what a
	// dead letter should not.
	Stack []byte
	// ShowStack puts the stack into the error text.
	ShowStack bool
}

func (e *PanicError) Error() string {
	if e.ShowStack {
		return fmt.Sprintf("handler panicked: %v\n%s", e.Value, e.Stack)
	}

	return fmt.Sprintf("handler panicked: %v", e.Value)
}

// Unwrap gives the error that the handler panicked with, if it was one.
func (e *PanicError) Unwrap() error {
	err, _ := e.Value.(error)
	return err
}

// errGoexit is the error of an attempt whose handler ended its goroutine, as testing.T.FailNow does.
var errGoexit = errors.New("handler ended its goroutine with runtime.Goexit")
