// Package retry is what a handler says of its message, and what it may ask about it.
//
// # What a handler returns
//
//	nil                        acknowledged, once its outputs are published
//	any error, a panic         a failed attempt: retried after the policy's delay, at the end dead-lettered
//	Permanent(err)             dead-lettered at once
//	Drop(err)                  acknowledged and reported, neither retried nor dead-lettered
//	RetryAfter(d, err)         a failed attempt: retried after d or more
//	Postpone(d)                back after d or more, without having used up an attempt
//	Transient(err)             a failed attempt, whatever the policy's lists of errors say
//	Retryable() bool in chain  true: a failed attempt; false: as Permanent
//	anything, in a shutdown    given back to the queue; nothing is counted
//
// The first of these that applies decides:
//
//  1. the outermost mark on the error: Permanent, Drop, Transient, RetryAfter, Postpone
//  2. what happened, where no handler returned an error: see [Class]
//  3. the policy's NeverRetry: permanent
//  4. the policy's RetryOnly, where there is one: an error that is not in it is permanent, one that is in it is not
//  5. Retryable() bool, as in many libraries: false is permanent
//  6. a panic, any other error: retried
//
// A handler that panics with an error is taken at that error's word. The outputs of a failed handler are not published.
// A shutdown is told by the message's context as it was before the handler ran, never by the error: a handler may
// return context.Canceled for reasons of its own. docs/reference/outcomes.md has a table of what happens when.
//
// # What a handler can ask
//
// [AttemptFromContext] tells which attempt this is and what failed before, [DeadLetterFromContext] why a dead letter
// has failed, where a handler is fed from a dead-letter queue. [Event] is what a program is told of everything that
// happens.
//
// The package knows Watermill's messages, and neither a router nor a broker: a library that only marks its errors can
// import it.
package retry
