package config

import (
	"cmp"
	"math"
	"reflect"
	"slices"
	"time"
)

// Mode says how failures are treated.
type Mode string

const (
	// ModeRetry retries after the policy's delays; after the last one the message goes to the
	// dead-letter queue. The zero value means this.
	ModeRetry Mode = "retry"
	// ModeDeadLetter retries nothing: the first failure goes to the dead-letter queue.
	ModeDeadLetter Mode = "dead-letter"
	// ModeOff declares nothing and forwards nothing; only the marshaler stays, which decodes what
	// others retried. It is the first and the last step of a rolling adoption.
	ModeOff Mode = "off"
)

// Choices are all that it can be.
func (Mode) Choices() []string { return texts(ModeRetry, ModeDeadLetter, ModeOff) }

// Expiry says where a message goes whose deadline has passed.
type Expiry string

const (
	// ExpiryDeadLetter sends it to the dead-letter queue with the reason "expired". The zero value
	// means this.
	ExpiryDeadLetter Expiry = "dead-letter"
	// ExpiryDrop acknowledges it without a copy: for messages that are worth nothing when they are
	// late.
	ExpiryDrop Expiry = "drop"
)

// Choices are all that it can be.
func (Expiry) Choices() []string { return texts(ExpiryDeadLetter, ExpiryDrop) }

// Protection says what keeps a quorum main queue from dropping messages that reach its delivery
// limit (20 by default since RabbitMQ 4.0).
type Protection string

const (
	// ProtectionNone leaves the main queue as its own config says. The zero value means this.
	ProtectionNone Protection = "none"
	// ProtectionArguments declares the main queue with a delivery limit of 1000 and the dead-letter
	// queue behind it. For new quorum queues: the arguments of a queue that exists cannot be
	// changed.
	ProtectionArguments Protection = "arguments"
	// ProtectionPolicy says that an operator has set a policy of the broker to the same effect.
	// Nothing is declared, and nothing is warned about.
	ProtectionPolicy Protection = "policy"
)

// Choices are all that it can be.
func (Protection) Choices() []string {
	return texts(ProtectionNone, ProtectionArguments, ProtectionPolicy)
}

// Bounds and defaults of a [Policy].
const (
	// minDelay is the shortest delay, and the unit: every delay is a whole number of it.
	minDelay = time.Millisecond
	// MaxDelay is the longest delay that the broker accepts as a queue's TTL: 10 years of 365 days.
	MaxDelay = 315_360_000_000 * time.Millisecond
	// maxDistinctDelays bounds the retry queues of one main queue: each distinct delay is one.
	maxDistinctDelays = 64
	// maxRetries bounds [Policy.Retries].
	maxRetries = 1000
	// defaultCrashLimit is what [Policy.CrashLimit] is when it is 0.
	defaultCrashLimit = 10
	// maxCrashLimit stays below 20, the delivery limit of a quorum queue since RabbitMQ 4.0: the
	// broker drops beyond that.
	maxCrashLimit = 19
	// maxImmediate bounds [Policy.Immediate].
	maxImmediate = 10
	// defaultMaxPostpone is what [Policy.MaxPostpone] is when it is 0.
	defaultMaxPostpone = 24 * time.Hour
)

// Policy says what happens to a message whose handler fails. Its zero value is [Default].
//
// The delays are either an explicit list:
//
//	Policy{Delays: []time.Duration{time.Second, 5 * time.Second}}             // 1s -> 5s
//	Policy{Delays: []time.Duration{time.Second, 5 * time.Second}, Retries: 4} // 1s -> 5s -> 5s -> 5s
//
// or generated:
//
//	Policy{Retries: 4, Backoff: Backoff{Kind: BackoffExponential, Initial: time.Second}} // 1s -> 2s -> 4s -> 8s
//
// or, with neither, those of [Default]:
//
//	Policy{Retries: 3} // 1s -> 5s -> 30s
//
// The handler runs once more than there are retries, and once more for each immediate try.
//
// Everything but Protect and a Strategy of the broker, which are about the main queue, is free to
// change at any time, also while versions with different policies run side by side.
type Policy struct {
	// Mode defaults to ModeRetry.
	Mode Mode `yaml:"mode,omitempty" json:"mode,omitzero" koanf:"mode" mapstructure:"mode"`
	// Retries is how often a failed message comes back, 1..1000. 0 means once per delay; with a
	// Backoff it must be set. More than there are Delays: the last delay repeats. It never means
	// "for ever": see ModeDeadLetter for none.
	Retries int `yaml:"retries,omitempty" json:"retries,omitzero" koanf:"retries" mapstructure:"retries"`
	// Delays are the waits before retry 1, 2, …, each 1ms..10 years in whole milliseconds, in any
	// order. Exclusive with Backoff.
	Delays []time.Duration `yaml:"delays,omitempty" json:"delays,omitzero" koanf:"delays" mapstructure:"delays"`
	// Backoff generates the delays instead.
	Backoff Backoff `yaml:"backoff,omitempty" json:"backoff,omitzero" koanf:"backoff" mapstructure:"backoff"`
	// Immediate is how often a failed handler is called again at once, in the same process, before
	// the first delayed retry: 0..10, default 0. They hold up the messages behind, like a slow
	// handler does, and belong to the first attempt: only when the last of them has failed does the
	// attempt count as failed. A mode without retries has them, too.
	Immediate int `yaml:"immediate,omitempty" json:"immediate,omitzero" koanf:"immediate" mapstructure:"immediate"`
	// Jitter shortens each of the policy's own delays by a random part: with 0.2 a delay of 30s is
	// 24s to 30s. 0..1, default 0. No queue is added. With StrategyLadder it spreads bursts as
	// well. In retry queues it spreads sporadic failures only: a message never overtakes one that
	// went into the same retry queue before it, so of a burst most come back near the end of the
	// delay.
	Jitter float64 `yaml:"jitter,omitempty" json:"jitter,omitzero" koanf:"jitter" mapstructure:"jitter"`
	// MaxAge is the age at which a message expires: it is handled no more, and no wait begins that
	// would last longer. It counts from the message's timestamp property, else from its first
	// delivery. It must be longer than the first delay. 0 means that only the message's own
	// expiration, if it has one, sets a deadline.
	MaxAge time.Duration `yaml:"max_age,omitempty" json:"max_age,omitzero" koanf:"max_age" mapstructure:"max_age"`
	// OnExpiry says where a message goes that has expired, by MaxAge or its own expiration.
	// Defaults to ExpiryDeadLetter.
	OnExpiry Expiry `yaml:"on_expiry,omitempty" json:"on_expiry,omitzero" koanf:"on_expiry" mapstructure:"on_expiry"`
	// MaxPostpone is the age up to which a message can be postponed, which uses up no attempt; then
	// it goes to the dead-letter queue. Counts as MaxAge does. It is also the longest wait that an
	// error can ask for. Default 24h.
	MaxPostpone time.Duration `yaml:"max_postpone,omitempty" json:"max_postpone,omitzero" koanf:"max_postpone" mapstructure:"max_postpone"`
	// RetryOnly, if not empty, are the errors that are retried; every other one goes to the
	// dead-letter queue at once.
	RetryOnly []ErrorMatch `yaml:"retry_only,omitempty" json:"retry_only,omitzero" koanf:"retry_only" mapstructure:"retry_only"`
	// NeverRetry are errors that go to the dead-letter queue at once, also when RetryOnly has them.
	NeverRetry []ErrorMatch `yaml:"never_retry,omitempty" json:"never_retry,omitzero" koanf:"never_retry" mapstructure:"never_retry"`
	// Strategy says how failed messages come back; defaults to StrategyQueues. To change from or to
	// a strategy of the broker, see [Strategy.ByBroker], is to change the arguments of the main
	// queue.
	Strategy Strategy `yaml:"strategy,omitempty" json:"strategy,omitzero" koanf:"strategy" mapstructure:"strategy"`
	// ClassicQueues makes the retry queues classic ones instead of quorum queues: lighter, but they
	// lose messages when the target queue is unavailable as they expire, or the broker is killed
	// just then. The main queue's type does not matter.
	ClassicQueues bool `yaml:"classic_queues,omitempty" json:"classic_queues,omitzero" koanf:"classic_queues" mapstructure:"classic_queues"`
	// Ladder is what messages wait in with StrategyLadder; defaults to RetryLadder. All that use
	// one share its queues.
	Ladder Ladder `yaml:"ladder,omitempty" json:"ladder,omitzero" koanf:"ladder" mapstructure:"ladder"`
	// Protect keeps a quorum main queue from dropping messages by itself; defaults to
	// ProtectionNone. With a strategy of the broker it says who gives the main queue what the
	// strategy needs, and defaults to ProtectionArguments.
	Protect Protection `yaml:"protect,omitempty" json:"protect,omitzero" koanf:"protect" mapstructure:"protect"`
	// CrashLimit is the broker's delivery count at which a delivery counts as a failed attempt
	// although no handler lived to report one: 1..19, default 10. Only quorum queues count
	// deliveries. With the strategies redelivery and native each return is an attempt, and this
	// holds for the last one only.
	CrashLimit int `yaml:"crash_limit,omitempty" json:"crash_limit,omitzero" koanf:"crash_limit" mapstructure:"crash_limit"`
}

// defaultDelays is shared and never handed out: callers get copies.
var defaultDelays = []time.Duration{time.Second, 5 * time.Second, 30 * time.Second, 2 * time.Minute, 10 * time.Minute}

// Default is the policy that the zero value stands for: retries after
//
//	1s -> 5s -> 30s -> 2m -> 10m -> dead-letter queue
//
// on quorum retry queues, 12m36s of waiting in the worst case.
func Default() Policy {
	return Policy{
		Mode:        ModeRetry,
		Retries:     len(defaultDelays),
		Delays:      slices.Clone(defaultDelays),
		OnExpiry:    ExpiryDeadLetter,
		MaxPostpone: defaultMaxPostpone,
		Strategy:    StrategyQueues,
		Protect:     ProtectionNone,
		CrashLimit:  defaultCrashLimit,
	}
}

// IsZero tells whether nothing is set. A zero policy means the default.
func (p Policy) IsZero() bool {
	return p.Mode == "" && p.Retries == 0 && len(p.Delays) == 0 && p.Backoff.IsZero() &&
		p.Immediate == 0 && p.Jitter == 0 && p.MaxAge == 0 && p.OnExpiry == "" && p.MaxPostpone == 0 &&
		len(p.RetryOnly) == 0 && len(p.NeverRetry) == 0 &&
		p.Strategy == "" && !p.ClassicQueues && p.Ladder.IsZero() && p.Protect == "" && p.CrashLimit == 0
}

// WithDefaults returns a copy in which everything that was left out is filled in; a zero Policy
// becomes [Default]. It shares no memory with p, and what p says wrongly stays wrong: see
// [Policy.Validate].
func (p Policy) WithDefaults() Policy {
	p = p.withoutNone()
	p.Delays = slices.Clone(p.delays())
	p.RetryOnly, p.NeverRetry = slices.Clone(p.RetryOnly), slices.Clone(p.NeverRetry)
	p.Mode = p.mode()
	p.OnExpiry = cmp.Or(p.OnExpiry, ExpiryDeadLetter)
	if p.Mode == ModeRetry {
		p.MaxPostpone = cmp.Or(p.MaxPostpone, defaultMaxPostpone)
	}
	p.Strategy = cmp.Or(p.Strategy, StrategyQueues)
	if p.Strategy == StrategyLadder {
		p.Ladder = p.Ladder.WithDefaults()
	}
	if p.Strategy.ByBroker() {
		p.Protect = cmp.Or(p.Protect, ProtectionArguments)
	}
	p.Protect = cmp.Or(p.Protect, ProtectionNone)
	p.CrashLimit = cmp.Or(p.CrashLimit, defaultCrashLimit)
	if p.Mode == ModeRetry && p.Retries == 0 {
		p.Retries = len(p.Delays)
	}
	p.Backoff = p.Backoff.withDefaults()
	return p
}

func (p Policy) mode() Mode { return cmp.Or(p.Mode, ModeRetry) }

// delays are the explicit delays, or the default's when a retrying policy has neither a list nor a
// backoff. The result is shared: read only.
func (p Policy) delays() []time.Duration {
	if len(p.Delays) > 0 || p.mode() != ModeRetry || !p.Backoff.IsZero() {
		return p.Delays
	}
	if p.Retries > 0 && p.Retries < len(defaultDelays) {
		return defaultDelays[:p.Retries]
	}
	return defaultDelays
}

// MaxRetries is the effective number of retries: 0 for the modes dead-letter and off.
func (p Policy) MaxRetries() int {
	if p.mode() != ModeRetry {
		return 0
	}
	n := p.Retries
	if n == 0 {
		n = len(p.delays())
	}
	// Clamped so that no method allocates or loops without bound on a policy that was never
	// validated.
	return max(0, min(n, maxRetries))
}

// Delay is the wait before the given retry, 1 being the first. Beyond the last retry it is the last
// one's, before the first the first one's. With StrategyLadder it is rounded up to the ladder's
// unit. It is 0 only for a policy that retries nothing.
func (p Policy) Delay(retry int) time.Duration {
	n := p.MaxRetries()
	if n == 0 {
		return 0
	}
	retry = max(1, min(retry, n))
	delays := p.delays()
	if len(delays) == 0 {
		return p.available(p.Backoff.delay(retry))
	}
	return p.available(delays[min(retry, len(delays))-1])
}

// available is a delay as messages can wait for it.
func (p Policy) available(delay time.Duration) time.Duration {
	if p.Strategy == StrategyLadder {
		return p.Ladder.RoundUp(delay)
	}
	return delay
}

// Schedule lists the wait before retry 1, 2, …, [Policy.MaxRetries]. It is empty for the modes
// dead-letter and off.
func (p Policy) Schedule() []time.Duration {
	n := p.MaxRetries()
	if n > 0 && len(p.delays()) == 0 {
		schedule := p.Backoff.schedule(n)
		for i, delay := range schedule {
			schedule[i] = p.available(delay)
		}
		return schedule
	}
	schedule := make([]time.Duration, n)
	for i := range schedule {
		schedule[i] = p.Delay(i + 1)
	}
	return schedule
}

// DistinctDelays lists each delay of the schedule once, shortest first: one retry queue each, where
// the strategy has them.
func (p Policy) DistinctDelays() []time.Duration {
	delays := p.Schedule()
	slices.Sort(delays)
	return slices.Compact(delays)
}

// TotalWait is how long a message that never succeeds waits in all, before it goes to the
// dead-letter queue: the sum of the schedule. The time in handlers and in the main queue comes on
// top, and so do waits that errors ask for. A sum beyond 292 years stays at that.
func (p Policy) TotalWait() time.Duration {
	var total time.Duration
	for _, delay := range p.Schedule() {
		if delay > math.MaxInt64-total {
			return math.MaxInt64
		}
		total += delay
	}
	return total
}

// DelayFor is the shortest available delay that is not shorter than wanted, or the longest where
// there is none: one of the policy's delays, or with StrategyLadder any of the ladder. It is 0 only
// for a policy that retries nothing.
func (p Policy) DelayFor(wanted time.Duration) time.Duration {
	if p.Strategy == StrategyLadder {
		return p.Ladder.RoundUp(wanted)
	}
	var found, longest time.Duration
	for retry := range p.MaxRetries() {
		d := p.Delay(retry + 1)
		longest = max(longest, d)
		if d >= wanted && (found == 0 || d < found) {
			found = d
		}
	}
	return cmp.Or(found, longest)
}

// Equal tells whether both policies treat every message alike, however they are written down.
func (p Policy) Equal(o Policy) bool {
	a, b := p.meaning(), o.meaning()
	if !slices.EqualFunc(a.RetryOnly, b.RetryOnly, ErrorMatch.same) || !slices.EqualFunc(a.NeverRetry, b.NeverRetry,
		ErrorMatch.same) {
		return false
	}
	a.RetryOnly, a.NeverRetry, b.RetryOnly, b.NeverRetry = nil, nil, nil, nil
	return reflect.DeepEqual(a, b)
}

// meaning is the policy without what its mode ignores, and with its schedule in place of what it
// was made from.
func (p Policy) meaning() Policy {
	p = p.WithDefaults()
	if p.Mode == ModeOff {
		return Policy{Mode: ModeOff, Protect: p.Protect}
	}
	p.Delays, p.Backoff, p.Retries = p.Schedule(), Backoff{}, 0
	if p.Strategy != StrategyLadder {
		p.Ladder = Ladder{}
	}
	return p
}
