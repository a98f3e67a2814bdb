package engine

import (
	"errors"
	"slices"
	"time"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/retry"
)

// Classify returns what a failure asks for under a policy. happened is what it was:
// [retry.ClassError] for whatever a handler returned or panicked with, else one of the classes
// without a handler's error. after is what RetryAfter or Postpone asks for, else 0. The first of
// these that applies:
//
//  1. the outermost mark on err: Permanent, Drop, Transient, RetryAfter, Postpone; also on errors
//     that no handler returned
//  2. what happened, where that is no handler's error
//  3. the policy's NeverRetry: permanent
//  4. the policy's RetryOnly, where there is one: an error that is not in it is permanent, one that
//     is in it is not
//  5. Retryable() bool, as in many libraries: false is permanent
//  6. a panic, any other error: retried
//
// A handler that panics with an error is taken at that error's word. It is a pure function.
func Classify(policy *config.Policy, happened retry.Class, err error) (class retry.Class, after time.Duration) {
	var m *retry.MarkedError
	if errors.As(err, &m) {
		switch {
		case m.Is(retry.ErrDrop):
			return retry.ClassDrop, 0
		case m.Is(retry.ErrPermanent):
			return retry.ClassPermanent, 0
		case m.Is(retry.ErrPostponed):
			return retry.ClassPostponed, max(m.After, 1)
		case m.Is(retry.ErrRetryAfter):
			after = max(m.After, 1) // none is no wish, 0 is: as soon as possible
		}
	}

	switch {
	case happened == retry.ClassUndecodable && m != nil: // it is to be tried again all the same
		return retry.ClassError, after
	case happened != retry.ClassError:
		return happened, after
	case m == nil && !isRetryable(policy, err):
		return retry.ClassPermanent, 0
	case errors.As(err, new(*retry.PanicError)):
		return retry.ClassPanic, after
	default:
		return retry.ClassError, after
	}
}

func isRetryable(policy *config.Policy, err error) bool {
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
