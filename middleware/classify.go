package middleware

import (
	"errors"
	"slices"
	"time"

	"github.com/amqpretry/watermill-retry/config"
)

// Class is the kind of a failure, as far as deciding needs to know it.
type Class string

// The classes of failures.
const (
	ClassError         Class = "error"         // the handler returned an error
	ClassPanic         Class = "panic"         // the handler panicked
	ClassPermanent     Class = "permanent"     // no retry can help
	ClassDrop          Class = "drop"          // the message is wanted no more
	ClassPostponed     Class = "postponed"     // not a failure: the handler wants the message later
	ClassExpired       Class = "expired"       // the message has outlived its deadline; no handler was called
	ClassShutdown      Class = "shutdown"      // not a failure: the message was taken away from the handler
	ClassCrashed       Class = "crashed"       // the broker counted too many deliveries without an answer
	ClassUndecodable   Class = "undecodable"   // the marshaler rejected it; no handler was called
	ClassUnpublishable Class = "unpublishable" // the handler succeeded, its outputs could not be published
)

// Classify tells what a failure asks for under a policy. happened is what it was: [ClassError] for whatever a handler
// returned or panicked with, else one of the classes without a handler's error. after is what RetryAfter or Postpone asks
// for, else 0. The first of these that applies:
//
//  1. the outermost mark on err: Permanent, Drop, Transient, RetryAfter, Postpone; also on errors that no handler returned
//  2. what happened, where that is no handler's error
//  3. the policy's NeverRetry: permanent
//  4. the policy's RetryOnly, where there is one: an error that is not in it is permanent, one that is in it is not
//  5. Retryable() bool, as in many libraries: false is permanent
//  6. a panic, any other error: retried
//
// A handler that panics with an error is taken at that error's word. It is a pure function.
func Classify(policy config.Policy, happened Class, err error) (class Class, after time.Duration) {
	m := (*marked)(nil)
	if errors.As(err, &m) {
		switch {
		case m.Is(ErrDrop):
			return ClassDrop, 0
		case m.Is(ErrPermanent):
			return ClassPermanent, 0
		case m.Is(ErrPostponed):
			return ClassPostponed, max(m.after, 1)
		case m.Is(ErrRetryAfter):
			after = max(m.after, 1) // none is no wish, 0 is: as soon as possible
		}
	}

	switch {
	case happened == ClassUndecodable && m != nil: // it is to be tried again all the same
		return ClassError, after
	case happened != ClassError:
		return happened, after
	case m == nil && !isRetryable(policy, err):
		return ClassPermanent, 0
	case errors.As(err, new(*PanicError)):
		return ClassPanic, after
	default:
		return ClassError, after
	}
}

func isRetryable(policy config.Policy, err error) bool {
	matches := func(m config.ErrorMatch) bool { return m.Match(err) }
	if slices.ContainsFunc(policy.NeverRetry, matches) {
		return false
	}
	if len(policy.RetryOnly) > 0 {
		return slices.ContainsFunc(policy.RetryOnly, matches)
	}

	var r interface{ Retryable() bool }

	return !errors.As(err, &r) || r.Retryable()
}
