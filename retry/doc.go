// Package retry has the errors that a handler returns, and what a handler can read about its
// message: its attempt and its failures.
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
//  4. the policy's RetryOnly, where there is one: an error that is not in it is permanent, one that
//     is in it is not
//  5. Retryable() bool, as in many libraries: false is permanent
//  6. a panic, any other error: retried
//
// A handler that panics with an error counts as one that returned that error. The outputs of a
// failed handler are not published. The retrier recognizes a shutdown by the message's context from
// before the handler ran, never by the error: a handler may return context.Canceled for reasons of
// its own. docs/how-to/say-what-an-error-means.md lists all outcomes.
//
// # What a handler can read
//
// [AttemptFromContext] returns the number of the attempt and the last failure.
// [DeadLetterFromContext] returns why a message was dead-lettered, for a handler that consumes a
// dead-letter queue. OnEvent is called with an [Event] for everything that happens.
//
// The package imports Watermill's messages, but no router and no broker client: a library that only
// marks its errors can import it.
package retry
