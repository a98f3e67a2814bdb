package config

import (
	"cmp"
	"time"
)

// None says, in the policy of a topic, that there is to be none of what the Default has: as
// Immediate, Jitter or MaxAge.
const None = -1

// over is the policy with what it leaves out taken from another one: field by field, but for the
// schedule, which is the delays with their number, and for the strategy, which is with the type of
// its queues. What its mode has no use for is not taken. Who says when to retry wants to, whatever
// the mode of the other one.
func (p Policy) over(d Policy) Policy {
	if p.Mode == "" && (p.Retries != 0 || len(p.Delays) > 0 || !p.Backoff.IsZero()) {
		p.Mode = ModeRetry // it says how
	}
	p.Mode = cmp.Or(p.Mode, d.Mode)
	p = p.strategyOver(d)
	p.Protect = cmp.Or(p.Protect, p.protectOf(d))
	if p.mode() == ModeOff {
		return p
	}

	p.CrashLimit = cmp.Or(p.CrashLimit, d.CrashLimit)
	p.Immediate = cmp.Or(p.Immediate, d.Immediate)
	p.MaxAge = cmp.Or(p.MaxAge, d.MaxAge)
	p.OnExpiry = cmp.Or(p.OnExpiry, d.OnExpiry)
	if p.RetryOnly == nil {
		p.RetryOnly = d.RetryOnly
	}
	if p.NeverRetry == nil {
		p.NeverRetry = d.NeverRetry
	}
	if p.mode() == ModeDeadLetter {
		return p
	}

	p.Jitter = cmp.Or(p.Jitter, d.Jitter)
	p.MaxPostpone = cmp.Or(p.MaxPostpone, d.MaxPostpone)

	return p.scheduleOver(d)
}

// strategyOver takes the strategy of another policy, with the type of its retry queues, where it
// says none. Without retries only shared queues make a difference: dead letters go through no
// exchange of the queue's own.
func (p Policy) strategyOver(d Policy) Policy {
	if p.mode() == ModeRetry {
		p.Ladder = p.Ladder.Or(d.Ladder)
	}
	switch {
	case p.Strategy != "":
	case p.mode() == ModeRetry:
		p.Strategy, p.ClassicQueues = d.Strategy, p.ClassicQueues || d.ClassicQueues
	case p.mode() == ModeDeadLetter && d.Strategy == StrategyShared:
		p.Strategy = StrategyShared
	}

	return p
}

// scheduleOver takes the delays of another policy where it says none, as many of them as it says,
// and the number of retries where it has a backoff of its own, which has no end by itself.
func (p Policy) scheduleOver(d Policy) Policy {
	switch {
	case len(p.Delays) > 0:
	case !p.Backoff.IsZero():
		p.Retries = cmp.Or(p.Retries, d.Retries)
	default:
		p.Delays, p.Backoff = d.Delays, d.Backoff
		if p.Retries > 0 && p.Retries < len(p.Delays) {
			p.Delays = p.Delays[:p.Retries]
		}
		p.Retries = cmp.Or(p.Retries, d.Retries)
	}

	return p
}

// withoutNone has the zero value in place of None.
func (p Policy) withoutNone() Policy {
	p.Immediate, p.Jitter, p.MaxAge = orZero(p.Immediate), orZero(p.Jitter), orZero(p.MaxAge)

	return p
}

func orZero[T int | float64 | time.Duration](value T) T {
	if value == None {
		return 0
	}

	return value
}

// protectOf is the protection that another policy has, if it is one that goes with the strategy.
func (p Policy) protectOf(d Policy) Protection {
	if p.Strategy.ByBroker() && (d.Protect == ProtectionNone || p.Strategy == StrategyCycle) {
		return ""
	}

	return d.Protect
}
