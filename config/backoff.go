package config

import (
	"math"
	"time"
)

// BackoffKind is the rule by which a [Backoff] grows.
type BackoffKind string

const (
	// BackoffConstant waits Initial each time: 5s -> 5s -> 5s.
	BackoffConstant BackoffKind = "constant"
	// BackoffLinear adds Step each time: 5s -> 10s -> 15s.
	BackoffLinear BackoffKind = "linear"
	// BackoffExponential multiplies by Factor each time: 5s -> 10s -> 20s.
	BackoffExponential BackoffKind = "exponential"
)

// Choices are all that it can be.
func (BackoffKind) Choices() []string {
	return texts(BackoffConstant, BackoffLinear, BackoffExponential)
}

// Backoff generates the delays of a [Policy], as many as it has Retries:
//
//	{Kind: BackoffConstant, Initial: 5s}                       5s -> 5s -> 5s -> 5s
//	{Kind: BackoffLinear, Initial: 5s}                         5s -> 10s -> 15s -> 20s
//	{Kind: BackoffLinear, Initial: 5s, Step: 1s}               5s -> 6s -> 7s -> 8s
//	{Kind: BackoffExponential, Initial: 1s}                    1s -> 2s -> 4s -> 8s
//	{Kind: BackoffExponential, Initial: 1s, Factor: 3, Max: 5s} 1s -> 3s -> 5s -> 5s
//
// Each distinct delay is a queue on the broker; [Policy.Jitter] adds none. Delays are rounded to
// whole milliseconds.
type Backoff struct {
	// Kind is required.
	Kind BackoffKind `yaml:"kind,omitempty" json:"kind,omitzero" koanf:"kind" mapstructure:"kind"`
	// Initial is the first delay, 1ms..10 years in whole milliseconds. Required.
	Initial time.Duration `yaml:"initial,omitempty" json:"initial,omitzero" koanf:"initial" mapstructure:"initial"`
	// Step is what each delay of a linear backoff is longer than the one before; 0 means Initial.
	Step time.Duration `yaml:"step,omitempty" json:"step,omitzero" koanf:"step" mapstructure:"step"`
	// Factor is by what each delay of an exponential backoff is multiplied, at least 1; 0 means 2.
	Factor float64 `yaml:"factor,omitempty" json:"factor,omitzero" koanf:"factor" mapstructure:"factor"`
	// Max caps the delays. 0 means no cap; then no delay may come out beyond 10 years.
	Max time.Duration `yaml:"max,omitempty" json:"max,omitzero" koanf:"max" mapstructure:"max"`
}

// defaultFactor is what [Backoff.Factor] is when it is 0.
const defaultFactor = 2.0

// IsZero tells whether nothing is set.
func (b Backoff) IsZero() bool { return b == Backoff{} }

func (b Backoff) withDefaults() Backoff {
	if b.Kind == BackoffLinear && b.Step == 0 {
		b.Step = b.Initial
	}
	if b.Kind == BackoffExponential && b.Factor == 0 {
		b.Factor = defaultFactor
	}
	return b
}

// delay before the given retry, 1 being the first.
func (b Backoff) delay(retry int) time.Duration { return b.capped(b.uncapped(retry)) }

// schedule lists the delays before retry 1 to n, in the time of one walk: a file can have thousands
// of policies with a thousand retries each.
func (b Backoff) schedule(n int) []time.Duration {
	delays := make([]time.Duration, n)
	if b = b.withDefaults(); b.Kind != BackoffExponential {
		for i := range delays {
			delays[i] = b.delay(i + 1)
		}
		return delays
	}
	ms := b.uncapped(1)
	for i := range delays {
		delays[i] = b.capped(ms)
		ms *= b.Factor // as uncapped does it
	}
	return delays
}

// capped makes a delay of milliseconds: always within 1ms..10 years, whatever the fields are.
func (b Backoff) capped(ms float64) time.Duration {
	limit := float64(MaxDelay / minDelay)
	if b.Max > 0 {
		limit = math.Min(limit, float64(b.Max/minDelay))
	}
	ms = math.Round(ms)
	// Written so that a NaN ends at the limit.
	if !(ms < limit) {
		ms = limit
	}
	return time.Duration(math.Max(ms, 1)) * minDelay
}

// uncapped is the delay in milliseconds, unrounded: maybe infinite.
func (b Backoff) uncapped(retry int) float64 {
	b = b.withDefaults()
	ms := float64(b.Initial) / float64(minDelay)
	switch b.Kind {
	case BackoffLinear:
		ms += float64(b.Step) / float64(minDelay) * float64(retry-1)
	case BackoffExponential:
		// Repeated multiplication, not math.Pow: it gives the same bits on every architecture, and
		// so the same queue names in a deployment of several.
		for range retry - 1 {
			ms *= b.Factor
		}
	}
	return ms
}

// Jittered is one of the policy's own delays, shortened by a random part as Jitter says: random is
// from 0 to 1.
func (p Policy) Jittered(delay time.Duration, random float64) time.Duration {
	if p.Jitter <= 0 {
		return delay
	}
	wait := delay - time.Duration(p.Jitter*random*float64(delay))
	if wait = max(wait.Round(minDelay), minDelay); p.Strategy == StrategyLadder {
		return p.DelayFor(wait)
	}

	return wait
}
