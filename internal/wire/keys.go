// Package wire owns the header keys of wire format version 1 and their codec: the only place where a key is spelled.
//
// It is a leaf: functions over values, without a broker and without Watermill. Header tables are map[string]any, the
// underlying type of an AMQP table.
package wire

import "strings"

// Version is the wire format that this package writes. A message that carries another one is treated as fresh, so it changes
// only with what an older reader would misread. What only adds keys keeps the version: older ones carry them along, see
// State.Unknown.
const Version = "1"

// Prefix starts each of our own keys. Never "x-": headers exchanges skip such keys, and brokers from 4.0 rewrite them.
const Prefix = "amqpretry-"

// The keys of wire format version 1. All values are strings.
const (
	KeyVersion      = Prefix + "v"
	KeyID           = Prefix + "id" // new for every publish: matches a returned message to its publish
	KeyCount        = Prefix + "count"
	KeyDelay        = Prefix + "delay"
	KeyAttempts     = Prefix + "attempts"
	KeyQueue        = Prefix + "queue"
	KeyTopic        = Prefix + "topic"
	KeyHandler      = Prefix + "handler"
	KeyHost         = Prefix + "host"
	KeyExchange     = Prefix + "exchange"
	KeyRoutingKey   = Prefix + "routing-key"
	KeyExpiration   = Prefix + "expiration"
	KeyUserID       = Prefix + "user-id"
	KeyCC           = Prefix + "cc"
	KeyOpt          = Prefix + "opt" // the x-opt-* headers that it first arrived with
	KeyUUID         = Prefix + "uuid"
	KeyFirstFailure = Prefix + "first-failure"
	KeyLastFailure  = Prefix + "last-failure"
	KeySince        = Prefix + "since"      // where its age counts from
	KeyDeadline     = Prefix + "deadline"   // when it expires
	KeyNotBefore    = Prefix + "not-before" // until when it goes on waiting, where that is longer than any delay
	KeyHandled      = Prefix + "handled"    // by which its handler has succeeded, and a middleware outside of it has not
	KeyReason       = Prefix + "reason"
	KeyError        = Prefix + "error"
	KeyErrorType    = Prefix + "error-type"
	KeyHistory      = Prefix + "history"
	KeyReplays      = Prefix + "replays"
	KeyReplay       = Prefix + "replay"  // the run that has replayed it last
	KeyCanary       = Prefix + "canary"  // whom to tell what becomes of it
	KeyEdits        = Prefix + "edits"   // what was changed before replays
	KeyRemoved      = Prefix + "removed" // names of the message's own headers that left no room (reason too-large)
)

// known are the keys above.
var known = map[string]bool{
	KeyVersion: true, KeyID: true, KeyCount: true, KeyDelay: true, KeyAttempts: true, KeyQueue: true, KeyTopic: true,
	KeyHandler: true, KeyHost: true, KeyExchange: true, KeyRoutingKey: true, KeyExpiration: true, KeyUserID: true, KeyCC: true,
	KeyOpt: true, KeyUUID: true, KeyFirstFailure: true, KeyLastFailure: true, KeySince: true, KeyDeadline: true, KeyNotBefore: true,
	KeyHandled: true, KeyReason: true, KeyError: true, KeyErrorType: true, KeyHistory: true, KeyReplays: true, KeyReplay: true, KeyEdits: true,
	KeyRemoved: true, KeyCanary: true,
}

// KeyRetire is no header: it is in the binding that marks a retry queue as being retired, and no message carries it.
const KeyRetire = Prefix + "retire"

// Watermill's own poison keys, written beside ours on a dead letter so that its tools work on the dead-letter queue.
// They are spelled here because this package is a leaf; a test holds them against Watermill's constants.
const (
	KeyPoisonReason     = "reason_poisoned"
	KeyPoisonTopic      = "topic_poisoned"
	KeyPoisonHandler    = "handler_poisoned"
	KeyPoisonSubscriber = "subscriber_poisoned"
)

// CountDead is the count of a message in the dead-letter queue.
const CountDead = -1

// IsOwn reports whether key belongs to this wire format.
func IsOwn(key string) bool { return strings.HasPrefix(key, Prefix) }

// IsPoison reports whether key is one of Watermill's poison keys.
func IsPoison(key string) bool {
	switch key {
	case KeyPoisonReason, KeyPoisonTopic, KeyPoisonHandler, KeyPoisonSubscriber:
		return true
	}

	return false
}

// The broker's own headers. They must not be republished: 3.10 believes a client's x-death in its cycle detection and
// drops the message, a copied CC routes the copy again, and counts would be shown as if they were the broker's.
const (
	KeyDeath         = "x-death"
	KeyDeliveryCount = "x-delivery-count"
	KeyAcquiredCount = "x-acquired-count"
	KeyBrokerCC      = "CC"
	KeyBrokerBCC     = "BCC"
)

// IsBroker reports whether key is written by the broker (or steers it) and must not be republished.
func IsBroker(key string) bool {
	switch key {
	case KeyDeath, KeyDeliveryCount, KeyAcquiredCount, KeyBrokerCC, KeyBrokerBCC:
		return true
	}

	return IsOpt(key) || strings.HasPrefix(key, "x-first-death-") || strings.HasPrefix(key, "x-last-death-")
}
