// Package engine decides what happens to one message, and reports it.
//
//	failure ──► Classify ──► Decide ──► Verdict ──► Settlement ──► Delivery.Settle
//	                                       └──► events, log
//
// [Classify] and [Decide] are pure functions over a policy, what has happened, and what the message
// carries. An [Engine] asks them, asks the user's hooks before, and makes the [Settlement]: the
// verdict with the state that the copy of the message carries. It neither publishes nor
// acknowledges: a [Delivery] does, which the consumer implements, a stock subscriber's side, and
// package retrytest. So there is one owner of the acknowledgement, and no moment at which a message
// is in nobody's hands.
//
// It knows Watermill and no AMQP.
package engine
