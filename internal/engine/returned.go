package engine

import (
	"fmt"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/internal/wire"
)

// Returned is what the broker tells of a message that it has brought back by itself, under a broker-driven strategy.
type Returned struct {
	// Failures are the failed attempts that it has counted since the message was published.
	Failures int64
	// Uncounted tells that the message was delivered before and is not counted: its queue is none that counts.
	Uncounted bool
	// Foreign tells that the message has a past elsewhere, which would be taken for one here.
	Foreign bool
	// TooLarge tells that there is no room in a frame for what the broker would add.
	TooLarge bool
}

// mostReturns is from how many returns on a copy takes the place of a message that fails, with which the broker counts
// anew: it has a delivery limit of 20 by default since RabbitMQ 4.0, and an operator can set one that no client sees.
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

	// When the last attempt has failed, the message is published to the dead-letter queue. So what was returned more
	// often was returned for other reasons: its consumers have died, or, before RabbitMQ 4.3, have only closed.
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

// needsCopy tells whether a message cannot be brought back by the broker: what is to be known of it then has no place
// but the headers of a copy.
func needsCopy(policy *config.Policy, m *Arriving, kind wire.Kind, s *wire.State) bool {
	switch {
	case m.Returned.Foreign, m.Returned.TooLarge, s.Canary != "":
		return true
	case policy.MaxAge > 0 && (m.Timestamp.Unix() <= 0 || kind == wire.Replay):
		return true // its age would begin anew with each delivery
	case m.Expiration != "":
		// In a cycle it is gone when the message comes back. Elsewhere the message would expire while it waits: a dead
		// letter of the broker's, which does not tell what it has failed of.
		return true
	case policy.Strategy == config.StrategyCycle:
		// Headers of ours are believed when it has waited: those of a copy that has waited again by the broker would be
		// counted twice, and forged ones would be taken for a copy's.
		return kind != wire.Replay && wire.Carries(m.Headers, s.Queue)
	default:
		return m.Returned.Uncounted || m.Deliveries >= mostReturns || isCopy(kind) && grows(policy)
	}
}

// grows tells whether the broker counts the steps of the delays: those of the strategy native that are not constant.
func grows(policy *config.Policy) bool {
	return policy.Strategy == config.StrategyNative && policy.Delay(1) < policy.Delay(config.MaxRetries)
}

// isCopy tells whether a message is a copy, that has failed before.
func isCopy(kind wire.Kind) bool { return kind == wire.Retry || kind == wire.Clamped }
