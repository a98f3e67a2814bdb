package engine

import (
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/internal/header"
	"github.com/amqpretry/watermill-retry/internal/wire"
)

// Arriving is a message as it is delivered, by the broker's word.
type Arriving struct {
	Headers    map[string]any
	Expiration string
	Timestamp  time.Time
	// Waited is the retry queue that it comes from; empty if it comes from none.
	Waited string
	// IsRetryQueue reports whether a name is that of the queue's retry queue for a delay. It is asked of messages that
	// carry this queue's headers only.
	IsRetryQueue func(name, delay string) bool
	// Redelivered tells that it was delivered before, and Deliveries how often without an answer: what was never
	// delivered was given its count by a publisher.
	Redelivered bool
	Deliveries  int64
	// Returned is asked for under broker-driven strategies only.
	Returned Returned
}

// Arrival is what a message turns out to be when it arrives.
type Arrival struct {
	State wire.State
	// Replay tells that it comes from the dead-letter queue.
	Replay bool
	// Unknown tells that its headers are of a version that nobody here knows. It is treated as fresh.
	Unknown bool
	// Crash is why no handler, and no marshaler, may see it: its consumers die of it. Nil for all others.
	Crash error
	// ByCopy tells that the broker cannot bring it back by itself.
	ByCopy bool
	// Returns are the failed attempts that the broker has counted, of those in State.
	Returns int64
	// Pause is how long it is kept before it goes to wait again, where it has come back too early.
	Pause time.Duration
}

// Arrive reads our headers by the rules of the wire format, and the broker's counters. Under policy off nothing is
// read.
func Arrive(queue string, policy *config.Policy, m *Arriving, now time.Time) (a Arrival) {
	if policy.Mode == config.ModeOff {
		return a
	}

	var kind wire.Kind
	a.State, kind = wire.Read(m.Headers, wire.Reading{
		Queue: queue, MaxRetries: policy.MaxRetries(), Death: m.Waited, IsRetryQueue: m.IsRetryQueue,
	})
	a.State.Queue = queue
	a.State.SetAge(wire.Age{
		Expiration: m.Expiration, Timestamp: m.Timestamp, Kind: kind, MaxAge: policy.MaxAge, Longest: config.MaxDelay,
		Now: now,
	})
	a.Replay, a.Unknown = kind == wire.Replay, kind == wire.UnknownVersion
	if policy.Strategy.ByBroker() {
		a.returned(policy, m, kind)
	}
	counted := policy.Strategy.CountsReturns() && !m.Returned.Foreign // each is an attempt
	if m.Redelivered && m.Deliveries >= int64(policy.CrashLimit) && !counted {
		a.Crash = fmt.Errorf("delivered %d times without an acknowledgement; the policy's CrashLimit is %d",
			m.Deliveries, policy.CrashLimit)
	}

	return a
}

// CameEarly makes a message wait for the rest of its delay, by a copy.
func (a *Arrival) CameEarly(left, due time.Time, pause time.Duration) {
	a.State.NotBefore = later(a.State.NotBefore, due)
	a.State.LastFailure = later(a.State.LastFailure, left) // it is not to wait longer than MaxPostpone from then on
	a.ByCopy, a.Pause = true, pause
}

// Clean takes from the metadata of a replayed message what its death has left there. Only the queue tells whether it is
// a replay, and a marshaler does not know it.
func (a *Arrival) Clean(msg *message.Message) {
	if a.Replay {
		maps.DeleteFunc(msg.Metadata, func(key, _ string) bool { return header.IsPoison(key) })
	}
}

// ErrUnpublishable is what a message has failed of that was nacked although its handler has succeeded.
var ErrUnpublishable = errors.New("the handler succeeded, but its outputs could not be published")
