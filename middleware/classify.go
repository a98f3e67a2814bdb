package middleware

import "errors"

// Class is the kind of a failure, as far as deciding needs to know it.
type Class string

// The classes of failures.
const (
	ClassError         Class = "error"         // the handler returned an error
	ClassPanic         Class = "panic"         // the handler panicked
	ClassPermanent     Class = "permanent"     // the error says that no retry can help
	ClassDrop          Class = "drop"          // the error says that the message is wanted no more
	ClassShutdown      Class = "shutdown"      // not a failure: the message was taken away from the handler
	ClassCrashed       Class = "crashed"       // the broker counted too many deliveries without an answer
	ClassUndecodable   Class = "undecodable"   // the marshaler rejected it; no handler was called
	ClassUnpublishable Class = "unpublishable" // the handler succeeded, its outputs could not be published
)

// Classify tells what err asks for. The first that applies, from the outside of the error chain inwards:
//
//  1. a mark: Permanent, Drop
//  2. Retryable() bool: false is permanent, true an error like any other
//  3. a panic
//  4. any other error
//
// A handler that panics with a marked error is taken at its word.
func Classify(err error) Class {
	if m := (*marked)(nil); errors.As(err, &m) {
		if m.Is(ErrDrop) {
			return ClassDrop
		}

		return ClassPermanent
	}

	var r interface{ Retryable() bool }
	if errors.As(err, &r) && !r.Retryable() {
		return ClassPermanent
	}

	if p := (*PanicError)(nil); errors.As(err, &p) {
		return ClassPanic
	}

	return ClassError
}
