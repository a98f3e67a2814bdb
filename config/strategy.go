package config

import (
	"strconv"
	"time"
)

// Strategy says how failed messages come back. The first three are copies: the consumer publishes
// one, and acknowledges the message when the broker has confirmed it. With the others the broker
// brings the message itself back, and a copy does what it cannot do. Dead-letter queues and tools
// are the same under each strategy.
type Strategy string

const (
	// StrategyQueues publishes a copy to a retry queue of the main queue's own, one for each
	// distinct delay. A wait that an error asks for takes one or more of these delays. The zero
	// value means this.
	StrategyQueues Strategy = "queues"
	// StrategyShared does so with one set of retry queues for all main queues with this strategy:
	// fewer queues on the broker, and what blocks one of them blocks it for all.
	StrategyShared Strategy = "shared"
	// StrategyLadder publishes a copy to a [Ladder], where it waits for just its own delay, rounded
	// up to the ladder's unit.
	StrategyLadder Strategy = "ladder"
	// StrategyCycle rejects the message: by the dead-letter exchange of its queue the broker sends
	// it to the retry queue, and from there back. The policy has one delay. The number of failures
	// is the broker's: x-death.
	StrategyCycle Strategy = "cycle"
	// StrategyRedelivery gives the message back, and the broker delivers it again at once. The
	// number of failures is the broker's: x-delivery-count. The policy's delays hold for what is
	// brought back by a copy.
	StrategyRedelivery Strategy = "redelivery"
	// StrategyNative gives the message back, and the broker delivers it again after a delay: the
	// delayed retry of quorum queues, from RabbitMQ 4.3 on. The delays of the policy are constant,
	// or grow by the first one.
	StrategyNative Strategy = "native"
)

// Choices are all that it can be.
func (Strategy) Choices() []string {
	return texts(StrategyQueues, StrategyShared, StrategyLadder, StrategyCycle, StrategyRedelivery, StrategyNative)
}

// ByBroker tells whether the broker itself brings failed messages back. The main queue needs
// arguments for it.
func (s Strategy) ByBroker() bool { return s == StrategyCycle || s.CountsReturns() }

// CountsReturns tells whether each return of a message to its queue is a failed attempt, whatever
// the reason. The broker does not report the difference.
func (s Strategy) CountsReturns() bool { return s == StrategyRedelivery || s == StrategyNative }

// NativeDelays are what the broker makes the policy's delays of: min, 2*min, 3*min and so on, max
// at the longest. ok is false if it cannot.
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

// refusal is a field that a strategy cannot have, or a value of it, and what the field must be.
type refusal struct{ field, value, wanted string }

var (
	notRandom = refusal{"Jitter", "", `left out, or the strategy "queues": the broker's delays are not random`}
	unguarded = refusal{"Protect", `"none"`, `left out for "arguments": the main queue needs arguments`}

	refusals = map[Strategy][]refusal{
		StrategyLadder: {{"ClassicQueues", "", `left out, or the strategy "queues": a ladder has quorum queues only`}},
		StrategyCycle: {notRandom, unguarded, {"Protect", `"policy"`, `left out for "arguments": a client cannot see ` +
			"a policy of the broker, and without it each rejected message would be lost"}},
		StrategyRedelivery: {notRandom, unguarded},
		StrategyNative:     {notRandom, unguarded},
	}
)

// validateStrategy refuses what the strategy cannot do.
func (p Policy) validateStrategy(e *problems) {
	if p.mode() != ModeRetry {
		return
	}
	given := map[string]string{"Protect": strconv.Quote(string(p.Protect))}
	if p.ClassicQueues {
		given["ClassicQueues"] = "true"
	}
	if p.Jitter != 0 && p.Jitter != None {
		given["Jitter"] = number(p.Jitter)
	}
	before := len(e.errs)
	for _, r := range refusals[p.Strategy] {
		if found := given[r.field]; found != "" && (r.value == "" || r.value == found) {
			e.add(r.field, "not possible with the strategy "+string(p.Strategy), r.wanted, found)
		}
	}
	if len(e.errs) == before && p.MaxRetries() > 0 {
		p.validateStrategyDelays(e)
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
			e.add(field, "the strategy cycle has one delay, as a queue has one dead-letter exchange",
				"one delay, such as 30s, and Retries for how often it repeats", durations(found))
		}
	case StrategyNative:
		if _, _, ok := p.NativeDelays(); !ok {
			e.add(field, "the strategy native has delays that are constant or grow by the first one",
				"such as 10s, 10s, 10s, or 10s, 20s, 30s; a Backoff of the kind constant or linear, without another "+
					`Step; or the strategy "queues"`, durations(p.Schedule()))
		}
	}
}
