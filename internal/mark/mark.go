// Package mark is how an error carries what a handler says of it.
package mark

import (
	"errors"
	"time"
)

// The kinds of marks: what is said of an error.
var (
	ErrPermanent  = errors.New("permanent error")
	ErrDrop       = errors.New("dropped message")
	ErrTransient  = errors.New("transient error")
	ErrRetryAfter = errors.New("retry after a time")
	ErrPostponed  = errors.New("postponed message")
)

// Error is an error with a mark on it. The outermost mark of a chain counts.
type Error struct {
	error
	Kind  error
	After time.Duration // of RetryAfter and Postponed
}

// New marks an error; nil stays nil.
func New(err error, kind error, after time.Duration) error {
	if err == nil {
		return nil
	}

	return &Error{err, kind, after}
}

// Unwrap gives the error without the mark.
func (e *Error) Unwrap() error { return e.error }

// Is tells whether target is the kind of the mark.
func (e *Error) Is(target error) bool { return target == e.Kind }

// Of is the outermost mark of an error; nil if there is none.
func Of(err error) *Error {
	var marked *Error
	errors.As(err, &marked)

	return marked
}
