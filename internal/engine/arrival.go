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
	// IsRetryQueue reports whether a name is that of the queue's retry queue for a delay. It is
	// asked of messages that carry this queue's headers only.
	IsRetryQueue func(name, delay string) bool
	// SentNow reports that an operator has ended its wait.
	SentNow bool
	// Redelivered reports that it was delivered before, and Deliveries how often without an answer:
	// what was never delivered was given its count by a publisher.
	Redelivered bool
	Deliveries  int64
	// Returned is asked for under broker-driven strategies only.
	Returned Returned
}

// Arrival is what a message turns out to be when it arrives.
type Arrival struct {
	State wire.State
	// Replay reports that it comes from the dead-letter queue.
	Replay bool
	// Unknown reports that its headers are of a version that nobody here knows. It is treated as
	// fresh.
	Unknown bool
	// Crash is why no handler, and no marshaler, may see it: its consumers die of it. Nil for all
	// others.
	Crash error
	// ByCopy reports that the broker cannot bring it back by itself.
	ByCopy bool
	// Returns are the failed attempts that the broker has counted, of those in State.
	Returns int64
	// Pause is how long it is kept before it goes to wait again, where it has come back too early.
	Pause time.Duration
}

// Arrive reads our headers by the rules of the wire format, and the broker's counters. Under policy
// off nothing is read.
func Arrive(queue string, policy *config.Policy, m *Arriving, now time.Time) (a Arrival) {
	if policy.Mode == config.ModeOff {
		return a
	}

	var kind wire.Kind
	a.State, kind = wire.Read(m.Headers, wire.Reading{
		Queue: queue, MaxRetries: policy.MaxRetries(), Death: m.Waited, IsRetryQueue: m.IsRetryQueue,
	})
	a.State.Queue = queue
	if m.SentNow {
		a.State.NotBefore = time.Time{}
	}
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

// Clean takes from the metadata of a replayed message what its death has left there. Only the queue
// tells whether it is a replay, and a marshaler does not know it.
func (a *Arrival) Clean(msg *message.Message) {
	if a.Replay {
		maps.DeleteFunc(msg.Metadata, func(key, _ string) bool { return header.IsPoison(key) })
	}
}

// ErrUnpublishable is what a message has failed of that was nacked although its handler has
// succeeded.
var ErrUnpublishable = errors.New("the handler succeeded, but its outputs could not be published")

// Returned is what the broker says of a message that it has brought back by itself, under a
// broker-driven strategy.
type Returned struct {
	// Failures are the failed attempts that it has counted since the message was published.
	Failures int64
	// Uncounted reports that the message was delivered before and is not counted: its queue is none
	// that counts.
	Uncounted bool
	// Foreign reports that the message has a past elsewhere, which would be taken for one here.
	Foreign bool
	// TooLarge reports that there is no room in a frame for what the broker would add.
	TooLarge bool
}

// mostReturns is from how many returns on a copy takes the place of a message that fails, with
// which the broker counts anew: it has a delivery limit of 20 by default since RabbitMQ 4.0, and an
// operator can set one that no client sees.
//
// Upstream: a quorum queue has a delivery limit of 20 by default.
const mostReturns = 18

// returned completes the arrival of a message that the broker may have brought back.
func (a *Arrival) returned(policy *config.Policy, m *Arriving, kind wire.Kind) {
	a.ByCopy = needsCopy(policy, m, kind, &a.State)
	if m.Returned.Foreign {
		return // its counters are those of another queue
	}

	a.Returns = m.Returned.Failures
	retries := policy.MaxRetries()
	failures := int(min(m.Returned.Failures, 1<<30))
	total := a.State.Count + failures
	a.State.Attempts += failures
	a.State.Count = min(total, retries)
	if !policy.Strategy.CountsReturns() {
		return
	}

	// When the last attempt has failed, the message is published to the dead-letter queue. So what
	// was returned more often was returned for other reasons: its consumers have died, or, before
	// RabbitMQ 4.3, have only closed.
	//
	// Upstream: a nack counts as a failed delivery.
	deaths := total - retries
	switch {
	case deaths >= policy.CrashLimit:
		a.Crash = fmt.Errorf("delivered %d times without an acknowledgement in its last attempt; the policy's "+
			"CrashLimit is %d", deaths, policy.CrashLimit)
	case m.Redelivered && m.Deliveries > mostReturns && total > 0:
		a.Crash = fmt.Errorf("delivered %d times without an acknowledgement", m.Deliveries)
		a.State.Count-- // this return is no further failure
	}
}

// needsCopy reports whether a message cannot be brought back by the broker: what is to be known of
// it then has no place but the headers of a copy.
func needsCopy(policy *config.Policy, m *Arriving, kind wire.Kind, s *wire.State) bool {
	switch {
	case m.Returned.Foreign, m.Returned.TooLarge, s.Canary != "":
		return true
	case policy.MaxAge > 0 && (m.Timestamp.Unix() <= 0 || kind == wire.Replay):
		return true // its age would begin anew with each delivery
	case m.Expiration != "":
		// In a cycle it is gone when the message comes back. Elsewhere the message would expire
		// while it waits: a dead letter of the broker's, which does not tell what it has failed of.
		return true
	case policy.Strategy == config.StrategyCycle:
		// Headers of ours are believed when it has waited: those of a copy that has waited again by
		// the broker would be counted twice, and forged ones would be taken for a copy's.
		return kind != wire.Replay && wire.Carries(m.Headers, s.Queue)
	default:
		return m.Returned.Uncounted || m.Deliveries >= mostReturns || isCopy(kind) && grows(policy)
	}
}

// grows reports whether the broker counts the steps of the delays: those of the strategy native
// that are not constant.
func grows(policy *config.Policy) bool {
	return policy.Strategy == config.StrategyNative && policy.Delay(1) < policy.Delay(policy.MaxRetries())
}

// isCopy reports whether a message is a copy, that has failed before.
func isCopy(kind wire.Kind) bool { return kind == wire.Retry || kind == wire.Clamped }
