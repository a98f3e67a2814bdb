package config

import (
	"fmt"
	"slices"
	"strconv"
	"time"
)

// Strategy says who brings a failed message back. The fields of the policy, the dead-letter queue and the tools are the
// same under each strategy. A copy does what the broker cannot do.
type Strategy string

const (
	// StrategyCopy publishes a copy to a retry queue, and acknowledges the message when the broker has confirmed it.
	// The zero value means this.
	StrategyCopy Strategy = "copy"
	// StrategyCycle rejects the message: by the dead-letter exchange of its queue the broker sends it to the retry
	// queue, and from there back. The policy has one delay. The number of failures is the broker's: x-death.
	StrategyCycle Strategy = "dead-letter-cycle"
	// StrategyRedelivery gives the message back, and the broker delivers it again at once. The number of failures is
	// the broker's: x-delivery-count. The policy's delays hold for what is brought back by a copy.
	StrategyRedelivery Strategy = "redelivery"
	// StrategyNative gives the message back, and the broker delivers it again after a delay: the delayed retry of
	// quorum queues, from RabbitMQ 4.3 on. The delays of the policy are constant, or grow by the first one.
	StrategyNative Strategy = "native"
)

// Choices are all that it can be.
func (Strategy) Choices() []string {
	return texts(StrategyCopy, StrategyCycle, StrategyRedelivery, StrategyNative)
}

// BrokerDriven tells whether it is the broker that brings failed messages back: with a policy that retries, by any
// strategy but copy.
func (p Policy) BrokerDriven() bool {
	return p.mode() == ModeRetry && p.Strategy != "" && p.Strategy != StrategyCopy
}

// CountsReturns tells whether each return of a message to its queue is a failed attempt, whatever the reason. The
// broker does not report the difference.
func (p Policy) CountsReturns() bool {
	return p.BrokerDriven() && (p.Strategy == StrategyRedelivery || p.Strategy == StrategyNative)
}

// NativeDelays are what the broker makes the policy's delays of: min, 2*min, 3*min and so on, max at the longest. ok is
// false if it cannot.
func (p Policy) NativeDelays() (shortest, longest time.Duration, ok bool) {
	schedule := p.Schedule()
	if len(schedule) == 0 {
		return 0, 0, false
	}
	shortest, longest = schedule[0], schedule[len(schedule)-1]
	for i, delay := range schedule {
		wanted := longest
		if times := time.Duration(i + 1); shortest <= longest/times { // else the product may be too large
			wanted = shortest * times
		}
		if delay != wanted {
			return 0, 0, false
		}
	}

	return shortest, longest, true
}

// IsLinear tells whether the delays of the strategy native grow: the broker counts their steps.
func (p Policy) IsLinear() bool {
	shortest, longest, ok := p.NativeDelays()
	return ok && p.Strategy == StrategyNative && shortest < longest
}

// validateStrategy refuses what a broker-driven strategy cannot do.
func (p Policy) validateStrategy(e *problems) {
	if p.Strategy == "" || p.Strategy == StrategyCopy || !slices.Contains(p.Strategy.Choices(), string(p.Strategy)) {
		return
	}
	if p.mode() != ModeRetry {
		e.add("Strategy", "ignored by the mode", fmt.Sprintf("left out with mode %q; to retry, use mode %q", p.Mode,
			ModeRetry), strconv.Quote(string(p.Strategy)))
		return
	}
	given := len(e.errs)
	if p.DelayMode == DelayExact {
		e.add("DelayMode", "not possible with the strategy "+string(p.Strategy), fmt.Sprintf("%q, or the strategy %q",
			DelayTiers, StrategyCopy), strconv.Quote(string(p.DelayMode)))
	}
	if p.Jitter != 0 && p.Jitter != None {
		e.add("Jitter", "not possible with the strategy "+string(p.Strategy),
			fmt.Sprintf("left out, or the strategy %q: "+
				"the broker's delays are not random", StrategyCopy), number(p.Jitter))
	}
	p.validateStrategyProtect(e)
	if len(e.errs) > given || p.MaxRetries() == 0 {
		return
	}
	p.validateStrategyDelays(e)
}

// validateStrategyProtect refuses a main queue without what the strategy needs.
func (p Policy) validateStrategyProtect(e *problems) {
	switch {
	case p.Protect == ProtectionNone:
		e.add("Protect", "not possible with the strategy "+string(p.Strategy), fmt.Sprintf("left out for %q: the main "+
			"queue needs arguments", ProtectionArguments), strconv.Quote(string(p.Protect)))
	case p.Protect == ProtectionPolicy && p.Strategy == StrategyCycle:
		e.add("Protect", "not possible with the strategy "+string(p.Strategy), fmt.Sprintf("left out for %q: a client "+
			"cannot see a policy of the broker, and without it each rejected message would be lost",
			ProtectionArguments), strconv.Quote(string(p.Protect)))
	}
}

func (p Policy) validateStrategyDelays(e *problems) {
	field, found := "Delays", p.DistinctDelays()
	if !p.Backoff.IsZero() {
		field = "Backoff"
	}
	switch p.Strategy {
	case StrategyCycle:
		if len(found) > 1 {
			e.add(field, "the strategy dead-letter-cycle has one delay, as a queue has one dead-letter exchange",
				"one delay, such as 30s, and Retries for how often it repeats", durations(found))
		}
	case StrategyNative:
		if _, _, ok := p.NativeDelays(); !ok {
			e.add(field, "the strategy native has delays that are constant or grow by the first one",
				"such as 10s, 10s, 10s, or 10s, 20s, 30s; a Backoff of the kind constant or linear, without "+
					"another Step; "+
					"or the strategy copy", durations(p.Schedule()))
		}
	case StrategyCopy, StrategyRedelivery:
	}
}
