// Package middleware decides what happens to one message: its router middlewares Retry and Poison turn what a handler
// returns into a verdict, and leave it on the message for whoever owns the broker's acknowledgement.
//
//	        ┌────────────────────── Retry.Middleware ──────────────────────┐
//	msg ──► │ handler ──► error, panic ──► classify ──► decide ──► verdict │ ──► settled by the consumer
//	        └──────────────────────────────────────────────────────────────┘
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
// [Classify] has the order in which these, the policy's lists of errors and a decision function outrank each other, and
// docs/outcomes.md has a table of what happens when.
//
// The outputs of a failed handler are not published. A shutdown is told by the message's context as it was before the
// handler ran, never by the error: a handler may return context.Canceled for reasons of its own.
//
// # Why it is safe
//
// The middleware itself neither publishes nor acknowledges with the plug's own consumer: it returns at once, and the consumer
// acknowledges the original only when the broker has confirmed the copy. So there is one owner of the acknowledgement and
// no moment at which a message is in nobody's hands. Deciding is a pure function (Decide) over the policy, the failures
// so far and the class of this one.
//
// The package knows Watermill and no AMQP. It is put to work by the plug: see package amqpretry.
package middleware
