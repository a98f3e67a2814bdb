// Package header has the header keys of wire format version 1: the only place where one is spelled.
package header

import "strings"

// FormatVersion is the wire format that is written. A message that carries another one is treated
// as fresh, so it changes only with what an older reader would misread. What only adds keys keeps
// the version: older ones carry them along, see wire.State.Unknown.
const FormatVersion = "1"

// Prefix starts each of our own keys. Never "x-": headers exchanges skip such keys, and brokers
// from 4.0 rewrite them.
const Prefix = "amqpretry-"

// The keys of wire format version 1. All values are strings.
const (
	Version      = Prefix + "v"
	ID           = Prefix + "id" // new for every publish: matches a returned message to its publish
	Count        = Prefix + "count"
	Delay        = Prefix + "delay"
	Attempts     = Prefix + "attempts"
	Queue        = Prefix + "queue"
	Topic        = Prefix + "topic"
	Handler      = Prefix + "handler"
	Host         = Prefix + "host"
	Exchange     = Prefix + "exchange"
	RoutingKey   = Prefix + "routing-key"
	Expiration   = Prefix + "expiration"
	UserID       = Prefix + "user-id"
	CC           = Prefix + "cc"
	Priority     = Prefix + "priority" // that it first arrived with, where it is lower while it waits
	Opt          = Prefix + "opt"      // the x-opt-* headers that it first arrived with
	UUID         = Prefix + "uuid"
	FirstFailure = Prefix + "first-failure"
	LastFailure  = Prefix + "last-failure"
	Since        = Prefix + "since"      // where its age counts from
	Deadline     = Prefix + "deadline"   // when it expires
	NotBefore    = Prefix + "not-before" // until when it goes on waiting, where that is longer than any delay
	Due          = Prefix + "due"        // when its present wait ends
	Handled      = Prefix + "handled"    // by which its handler has succeeded, and a middleware outside of it has not
	Reason       = Prefix + "reason"
	Error        = Prefix + "error"
	ErrorType    = Prefix + "error-type"
	History      = Prefix + "history"
	Replays      = Prefix + "replays"
	Replay       = Prefix + "replay"  // the run that has replayed it last
	Canary       = Prefix + "canary"  // whom to tell what becomes of it
	Edits        = Prefix + "edits"   // what was changed before replays
	Parked       = Prefix + "parked"  // who has parked or unparked it, when and why
	Trace        = Prefix + "trace"   // W3C traceparent of the last traced call
	Removed      = Prefix + "removed" // names of the message's own headers that left no room (reason too-large)
)

// Known are the keys above.
var Known = map[string]bool{
	Version: true, ID: true, Count: true, Delay: true, Attempts: true, Queue: true, Topic: true,
	Handler: true, Host: true, Exchange: true, RoutingKey: true, Expiration: true, UserID: true, CC: true,
	Priority: true,
	Opt:      true, UUID: true, FirstFailure: true, LastFailure: true, Since: true, Deadline: true, NotBefore: true,
	Handled: true, Reason: true, Error: true, ErrorType: true, History: true, Replays: true, Replay: true, Edits: true,
	Parked: true, Removed: true, Canary: true, Trace: true, Due: true,
}

// Retire is no header: it is in the binding that marks a retry queue as being retired, and no
// message carries it.
const Retire = Prefix + "retire"

// Watermill's own poison keys, written beside ours on a dead letter so that its tools work on the
// dead-letter queue. They are spelled here because this package is a leaf; a test holds them
// against Watermill's constants.
const (
	PoisonReason     = "reason_poisoned"
	PoisonTopic      = "topic_poisoned"
	PoisonHandler    = "handler_poisoned"
	PoisonSubscriber = "subscriber_poisoned"
)

// MaxWaitingPriority is the highest priority of a message that waits for an exact delay. RabbitMQ
// 4.0 treats all up to it alike in a quorum queue; with higher ones beside them, it would hold up
// messages without a priority by as much as they wait.
//
// Upstream: a message of a high priority holds up those of a low one whose delay is over; no issue
// known, measured; RabbitMQ 4.0 to 4.2; TestExact_Priority; remove when RabbitMQ 4.2 is no longer
// supported.
const MaxWaitingPriority = 4

// CountDead is the count of a message in the dead-letter queue.
const CountDead = -1

// IsOwn reports whether key belongs to this wire format.
func IsOwn(key string) bool { return strings.HasPrefix(key, Prefix) }

// IsPoison reports whether key is one of Watermill's poison keys.
func IsPoison(key string) bool {
	switch key {
	case PoisonReason, PoisonTopic, PoisonHandler, PoisonSubscriber:
		return true
	}

	return false
}

// The broker's own headers. They must not be republished: 3.10 believes a client's x-death in its
// cycle detection and drops the message, a copied CC routes the copy again, and counts would be
// shown as if they were the broker's.
//
// Upstream: x-death of a publisher is believed.
const (
	Death         = "x-death"
	DeliveryCount = "x-delivery-count"
	AcquiredCount = "x-acquired-count"
	BrokerCC      = "CC"
	BrokerBCC     = "BCC"

	FirstDeath       = "x-first-death-" // prefix of the following, and of exchange
	FirstDeathQueue  = FirstDeath + "queue"
	FirstDeathReason = FirstDeath + "reason"
	LastDeath        = "x-last-death-" // prefix of the same three; RabbitMQ 3.13 and later
)

// IsBroker reports whether key is written by the broker (or steers it) and must not be republished.
//
// Upstream: x-death of a publisher is believed; rabbitmq/rabbitmq-server#10709,
// rabbitmq/rabbitmq-server#11339; RabbitMQ 3.10 to 3.13; TestP4_ForgedHeadersAreFresh,
// TestPublishStripsOurHeaders, TestNoHotLoopForeignHeaders; remove when RabbitMQ 3.13 is no longer
// supported.
func IsBroker(key string) bool {
	switch key {
	case Death, DeliveryCount, AcquiredCount, BrokerCC, BrokerBCC:
		return true
	}

	return IsOpt(key) || strings.HasPrefix(key, FirstDeath) || strings.HasPrefix(key, LastDeath)
}

// IsOpt reports whether key is an x-opt-* header. A publisher may set them and a handler sees them,
// but no copy carries them: by x-opt-delivery-time, RabbitMQ 4.4 and later hold a message back
// until a time. That would delay a retry and hide a dead letter, and a time that is too far away
// stops the queue for good.
//
// Upstream: a far x-opt-delivery-time stops a quorum queue for good; no issue known, measured;
// RabbitMQ 4.4 (development builds); TestCopiesKeepOptHeadersAside,
// TestHandlersSeeOptHeadersAtEveryAttempt; remove when no release accepts such a time.
func IsOpt(key string) bool { return strings.HasPrefix(key, "x-opt-") }

// Integer returns the value of a header or of an argument that has one of AMQP's integer types. The
// broker compares their values and not their widths.
func Integer(v any) (int64, bool) {
	switch n := v.(type) {
	case int:
		return int64(n), true
	case int8:
		return int64(n), true
	case int16:
		return int64(n), true
	case int32:
		return int64(n), true
	case int64:
		return n, true
	case uint8:
		return int64(n), true
	case uint16:
		return int64(n), true
	case uint32:
		return int64(n), true
	default:
		return 0, false
	}
}
