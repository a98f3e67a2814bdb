package engine

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/internal/wire"
	"github.com/amqpretry/watermill-retry/retry"
)

// way is how a message goes that is to wait so long, if the broker takes no time.
func way(policy config.Policy, wait time.Duration) (hops []time.Duration) {
	for wait > 0 {
		hop := Hop(&policy, wait)
		hops = append(hops, hop)
		wait -= hop
	}

	return hops
}

func TestWays(t *testing.T) {
	const ms, second, minute = time.Millisecond, time.Second, time.Minute
	repeated := func(n int, d time.Duration) (all []time.Duration) {
		for range n {
			all = append(all, d)
		}

		return all
	}
	delays := func(d ...time.Duration) config.Policy { return config.Policy{Delays: d} }

	for name, test := range map[string]struct {
		policy config.Policy
		wait   time.Duration
		want   []time.Duration
	}{
		"the same":      {config.Default(), 5 * second, repeated(1, 5*second)},
		"a little less": {config.Default(), 4 * second, repeated(1, 5*second)},
		"much less":     {config.Default(), 3 * second, repeated(3, second)},
		"less than all": {config.Default(), ms, repeated(1, second)},
		"two":           {config.Default(), 6 * second, []time.Duration{5 * second, second}},
		"three": {config.Default(), 12 * second, []time.Duration{5 * second, 5 * second, second,
			second}},
		"half a long one": {config.Default(), 5 * minute, []time.Duration{2 * minute, 2 * minute, 30 * second,
			30 * second}},
		"longer than all": {config.Default(), 25 * minute, []time.Duration{10 * minute, 10 * minute, 2 * minute,
			2 * minute, 30 * second, 30 * second}},
		"no sooner by two":     {delays(100*ms, 200*ms), 150 * ms, repeated(1, 200*ms)},
		"too many":             {delays(ms, time.Hour), minute, repeated(1, time.Hour)},
		"one short delay":      {delays(300 * ms), 3500 * ms, repeated(12, 300*ms)},
		"as often as it takes": {delays(10 * ms), 10 * second, repeated(1000, 10*ms)},
		"in any order":         {delays(minute, 10*second), 20 * second, repeated(2, 10*second)},
	} {
		assert.Equal(t, test.want, way(test.policy, test.wait), name)
	}
	assert.Zero(t, Hop(&config.Policy{Mode: config.ModeDeadLetter}, second))
}

// No way is shorter than asked for, none is later than the one delay that would do, and only waits
// beyond all delays go often.
func TestNoWayIsTooShort(t *testing.T) {
	delay := rapid.Map(rapid.Int64Range(1, 1e6), func(ms int64) time.Duration {
		return time.Duration(ms) * time.Millisecond
	})
	rapid.Check(t, func(t *rapid.T) {
		policy := config.Policy{Delays: rapid.SliceOfN(delay, 1, 6).Draw(t, "delays")}
		longest := policy.DelayFor(config.MaxDelay)
		wait := time.Duration(rapid.Int64Range(1, 3*int64(longest)).Draw(t, "wait"))

		hops, total := way(policy, wait), time.Duration(0)
		for _, hop := range hops {
			total += hop
		}
		require.GreaterOrEqual(t, total, wait)
		if wait <= longest {
			require.LessOrEqual(t, total, policy.DelayFor(wait), "%v", hops)
			require.LessOrEqual(t, len(hops), mostHops*len(policy.Delays), "%v", hops)
		}
	})
}

// A message that comes back before its time waits on, however short its delays are.
func TestEarlyWaitsOn(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	s := &wire.State{Count: 1, Since: now.Add(-time.Minute), LastFailure: now.Add(-time.Second),
		NotBefore: now.Add(2 * time.Second)}
	v, ok := early(&config.Policy{Delays: []time.Duration{10 * time.Millisecond}}, s, now)
	assert.True(t, ok)
	assert.Equal(t, retry.Verdict{Action: retry.ActionPostpone, Count: 1, Delay: 10 * time.Millisecond,
		NotBefore: s.NotBefore}, v)

	_, ok = early(&config.Policy{Mode: config.ModeDeadLetter}, s, now)
	assert.False(t, ok, "there is nothing to wait in")
}

// The time is written in whole milliseconds.
func TestNotBeforeIsNotCut(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 999, time.UTC)
	v := Decide(&config.Policy{Delays: []time.Duration{time.Second}}, Case{Class: retry.ClassError, After: time.Minute,
		Now: now})
	assert.False(t, v.NotBefore.Truncate(time.Millisecond).Before(now.Add(time.Minute)))
}
