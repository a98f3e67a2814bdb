package config

import (
	"math"
	"slices"
	"time"
)

// Mode says how failures are treated.
type Mode string

const (
	// ModeRetry retries after the policy's delays; after the last one the message goes to the dead-letter queue.
	// The zero value means this.
	ModeRetry Mode = "retry"
	// ModeDeadLetter retries nothing: the first failure goes to the dead-letter queue.
	ModeDeadLetter Mode = "dead-letter"
	// ModeOff declares nothing and forwards nothing; only the marshaler stays, which decodes what others retried.
	// It is the first and the last step of a rolling adoption.
	ModeOff Mode = "off"
)

// QueueType is the type of the retry queues. It is independent of the main queue's type.
type QueueType string

const (
	// QueueTypeQuorum keeps waiting messages replicated and hands them back at least once. The zero value means this.
	QueueTypeQuorum QueueType = "quorum"
	// QueueTypeClassic is lighter, and loses waiting messages when the target queue is unavailable as they expire.
	QueueTypeClassic QueueType = "classic"
)

// Bounds and defaults of a [Policy].
const (
	// MinDelay is the shortest delay, and the unit: every delay is a whole number of it.
	MinDelay = time.Millisecond
	// MaxDelay is the longest delay that the broker accepts as a queue's TTL: 10 years of 365 days.
	MaxDelay = 315_360_000_000 * time.Millisecond
	// MaxDistinctDelays bounds the retry queues of one main queue: each distinct delay is one.
	MaxDistinctDelays = 64
	// MaxRetries bounds [Policy.Retries].
	MaxRetries = 1000
	// DefaultCrashLimit is what [Policy.CrashLimit] is when it is 0.
	DefaultCrashLimit = 10
	// MaxCrashLimit stays below 20, the delivery limit of a quorum queue since RabbitMQ 4.0: the broker drops beyond that.
	MaxCrashLimit = 19
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
// The handler runs once more than there are retries.
type Policy struct {
	// Mode defaults to ModeRetry.
	Mode Mode
	// Retries is how often a failed message comes back, 1..1000. 0 means once per delay; with a Backoff it must be set.
	// More than there are Delays: the last delay repeats. It never means "for ever": see ModeDeadLetter for none.
	Retries int
	// Delays are the waits before retry 1, 2, …, each 1ms..10 years in whole milliseconds, in any order.
	// Exclusive with Backoff.
	Delays []time.Duration
	// Backoff generates the delays instead.
	Backoff Backoff
	// QueueType of the retry queues; defaults to QueueTypeQuorum.
	QueueType QueueType
	// CrashLimit is the broker's delivery count at which a delivery counts as a failed attempt although no handler
	// lived to report one: 1..19, default 10. Only quorum queues count deliveries.
	CrashLimit int
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
		Mode:       ModeRetry,
		Retries:    len(defaultDelays),
		Delays:     slices.Clone(defaultDelays),
		QueueType:  QueueTypeQuorum,
		CrashLimit: DefaultCrashLimit,
	}
}

// IsZero tells whether nothing is set. A zero policy means the default.
func (p Policy) IsZero() bool {
	return p.Mode == "" && p.Retries == 0 && len(p.Delays) == 0 && p.Backoff.IsZero() && p.QueueType == "" && p.CrashLimit == 0
}

// WithDefaults returns a copy in which everything that was left out is filled in; a zero Policy becomes [Default].
// It shares no memory with p, and what p says wrongly stays wrong: see [Policy.Validate].
func (p Policy) WithDefaults() Policy {
	p.Delays = slices.Clone(p.delays())
	p.Mode = p.mode()
	if p.QueueType == "" {
		p.QueueType = QueueTypeQuorum
	}
	if p.CrashLimit == 0 {
		p.CrashLimit = DefaultCrashLimit
	}
	if p.Mode == ModeRetry && p.Retries == 0 {
		p.Retries = len(p.Delays)
	}
	p.Backoff = p.Backoff.withDefaults()
	return p
}

func (p Policy) mode() Mode {
	if p.Mode == "" {
		return ModeRetry
	}
	return p.Mode
}

// delays are the explicit delays, or the default's when a retrying policy has neither a list nor a backoff.
// The result is shared: read only.
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
	// Clamped so that no method allocates or loops without bound on a policy that was never validated.
	return max(0, min(n, MaxRetries))
}

// Delay is the wait before the given retry, 1 being the first. Beyond the last retry it is the last one's, before the
// first the first one's. It is 0 only for a policy that retries nothing.
func (p Policy) Delay(retry int) time.Duration {
	n := p.MaxRetries()
	if n == 0 {
		return 0
	}
	retry = max(1, min(retry, n))
	delays := p.delays()
	if len(delays) == 0 {
		return p.Backoff.delay(retry)
	}
	return delays[min(retry, len(delays))-1]
}

// Schedule lists the wait before retry 1, 2, …, [Policy.MaxRetries]. It is empty for the modes dead-letter and off.
func (p Policy) Schedule() []time.Duration {
	schedule := make([]time.Duration, p.MaxRetries())
	for i := range schedule {
		schedule[i] = p.Delay(i + 1)
	}
	return schedule
}

// DistinctDelays lists each delay of the schedule once, shortest first: one retry queue each.
func (p Policy) DistinctDelays() []time.Duration {
	delays := p.Schedule()
	slices.Sort(delays)
	return slices.Compact(delays)
}

// TotalWait is how long a message that never succeeds waits in all, before it goes to the dead-letter queue: the sum
// of the schedule. The time in handlers and in the main queue comes on top. A sum beyond 292 years stays at that.
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

// Equal tells whether both policies treat every message alike, however they are written down.
func (p Policy) Equal(o Policy) bool {
	p, o = p.WithDefaults(), o.WithDefaults()
	if p.Mode != o.Mode {
		return false
	}
	switch p.Mode {
	case ModeOff:
		return true
	case ModeDeadLetter: // no retry queues, whose type could differ
		return p.CrashLimit == o.CrashLimit
	default:
		return p.CrashLimit == o.CrashLimit && p.QueueType == o.QueueType && slices.Equal(p.Schedule(), o.Schedule())
	}
}
