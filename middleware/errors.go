package middleware

import (
	"errors"
	"fmt"
)

// ErrPermanent is matched by errors.Is for every error that Permanent has marked.
var ErrPermanent = errors.New("permanent error")

// ErrDrop is matched by errors.Is for every error that Drop has marked.
var ErrDrop = errors.New("dropped message")

// Permanent marks err as one that no retry can help: the message goes to the dead-letter queue at once, with reason
// "permanent". The error keeps its text. Permanent(nil) is nil.
func Permanent(err error) error { return mark(err, ErrPermanent) }

// Drop marks err as one after which the message is wanted no more: it is acknowledged and reported, neither retried nor
// dead-lettered. The error keeps its text. Drop(nil) is nil.
func Drop(err error) error { return mark(err, ErrDrop) }

// marked is an error with a mark on it. The outermost mark of a chain counts.
type marked struct {
	error
	mark error
}

func mark(err, mark error) error {
	if err == nil {
		return nil
	}

	return &marked{err, mark}
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
