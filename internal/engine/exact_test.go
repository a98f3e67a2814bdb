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

func TestDecideExact(t *testing.T) {
	const second = time.Second
	now := time.Date(2026, 1, 2, 3, 4, 5, 678e6, time.UTC)
	policy := config.Policy{Strategy: config.StrategyLadder, Delays: []time.Duration{second, 10 * second},
		MaxPostpone: 100 * time.Hour}
	jitter := policy
	jitter.Jitter = 0.8
	longest := policy.Ladder.Longest()
	again := func(count int, delay time.Duration) retry.Verdict {
		return retry.Verdict{Action: retry.ActionRetry, Count: count, Delay: delay}
	}
	const failed = retry.ClassError

	for name, test := range map[string]struct {
		policy config.Policy
		c      Case
		want   retry.Verdict
	}{
		"the policy's delay":      {policy, Case{Class: failed, Failures: 1}, again(2, 10*second)},
		"what the error asks for": {policy, Case{Class: failed, After: 37 * second}, again(1, 37*second)},
		"to the unit": {policy, Case{Class: failed, After: 1234 * time.Millisecond},
			again(1, 1300*time.Millisecond)},
		"as soon as possible": {policy, Case{Class: failed, After: 1}, again(1, 100*time.Millisecond)},
		"beyond the longest it goes on": {policy, Case{Class: failed, After: 30 * time.Hour, Now: now},
			retry.Verdict{Action: retry.ActionRetry, Count: 1, Delay: longest, NotBefore: now.Add(30 * time.Hour)}},
		"postponed": {policy, Case{Class: retry.ClassPostponed, After: 90 * second, Failures: 1, Now: now},
			retry.Verdict{Action: retry.ActionPostpone, Count: 1, Delay: 90 * second}},
		"jitter, none by chance":       {jitter, Case{Class: failed}, again(1, second)},
		"jitter is a delay of its own": {jitter, Case{Class: failed, Random: 0.5}, again(1, 600*time.Millisecond)},
		"jitter is not for what is asked for": {jitter, Case{Class: failed, After: second, Random: 0.9},
			again(1, second)},
		"in time by jitter": {jitter, Case{Class: failed, Random: 0.5, Now: now,
			Deadline: now.Add(700 * time.Millisecond)}, again(1, 600*time.Millisecond)},
		"too late by rounding up": {policy, Case{Class: failed, After: 1234 * time.Millisecond, Now: now,
			Deadline: now.Add(1250 * time.Millisecond)},
			retry.Verdict{Action: retry.ActionDeadLetter, Reason: retry.ReasonExpired}},
	} {
		assert.Equal(t, test.want, Decide(&test.policy, test.c), name)
	}

	v, found := early(&policy, &wire.State{Since: now, NotBefore: now.Add(2*time.Hour + 1)}, now)
	assert.True(t, found)
	assert.Equal(t, 2*time.Hour+100*time.Millisecond, v.Delay, "the rest in one")
}

// Whatever is asked for: one wait is enough up to the longest delay, never short, and longer by
// less than a unit.
func TestDecideExactWaits(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		policy := config.Policy{Strategy: config.StrategyLadder, MaxPostpone: 1000 * time.Hour, Ladder: config.Ladder{
			Unit:   rapid.SampledFrom([]time.Duration{10 * time.Millisecond, time.Second}).Draw(t, "unit"),
			Radix:  rapid.IntRange(2, 16).Draw(t, "radix"),
			Levels: rapid.IntRange(1, 5).Draw(t, "levels"),
		}}
		require.NoError(t, config.Policy{Strategy: config.StrategyLadder,
			Delays: []time.Duration{10 * time.Millisecond},
			Ladder: policy.Ladder}.Validate())
		unit, longest := policy.Ladder.Unit, policy.Ladder.Longest()
		after := time.Duration(rapid.Int64Range(1, int64(2*longest)).Draw(t, "after"))
		v := Decide(&policy, Case{Class: retry.ClassError, After: after, Now: time.Unix(0, 0)})
		if after <= longest {
			require.GreaterOrEqual(t, v.Delay, after)
			require.Less(t, v.Delay, after+unit)
			require.Zero(t, v.NotBefore)
		} else {
			require.Equal(t, longest, v.Delay)
			require.False(t, v.NotBefore.Before(time.Unix(0, 0).Add(after)))
		}
	})
}
