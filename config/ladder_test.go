package config_test

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/amqpretry/watermill-retry/config"
)

func TestLadder(t *testing.T) {
	retries, schedules := config.RetryLadder(), config.ScheduleLadder()
	assert.Equal(t, 27*time.Hour+46*time.Minute+39900*time.Millisecond, retries.Longest())
	assert.Equal(t, (100_000_000-1)*time.Second, schedules.Longest())
	assert.Equal(t, retries, config.Ladder{}.WithDefaults())
	assert.Equal(t, retries.Longest(), config.Ladder{}.Longest())
	assert.Equal(t, config.Ladder{Prefix: "amqpretry.delay", Unit: time.Minute, Radix: 10, Levels: 6},
		config.Ladder{Unit: time.Minute}.WithDefaults())

	for wait, want := range map[time.Duration][]int{
		37 * time.Second:         {0, 0, 0, 3, 7, 0},
		12300 * time.Millisecond: {0, 0, 0, 1, 2, 3},
		0:                        {0, 0, 0, 0, 0, 1},
		-time.Hour:               {0, 0, 0, 0, 0, 1},
		time.Millisecond:         {0, 0, 0, 0, 0, 1},
		101 * time.Millisecond:   {0, 0, 0, 0, 0, 2},
		math.MaxInt64:            {9, 9, 9, 9, 9, 9},
		math.MinInt64:            {0, 0, 0, 0, 0, 1},
	} {
		assert.Equal(t, want, retries.Digits(wait), wait)
	}
}

// The digits of a delay wait for just that delay, which is never shorter than what was asked for,
// and at most a unit longer.
func TestLadderWaits(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ladder := anyLadder(t)
		if ladder.Validate() != nil {
			return
		}
		wanted := time.Duration(rapid.Int64Range(0, int64(ladder.Longest())).Draw(t, "wanted"))
		got := ladder.RoundUp(wanted)
		require.GreaterOrEqual(t, got, wanted)
		require.LessOrEqual(t, got, max(wanted, 1)+ladder.Unit-1)

		digits, waits := ladder.Digits(wanted), time.Duration(0)
		require.Len(t, digits, ladder.Levels)
		for i, digit := range digits {
			require.Less(t, digit, ladder.Radix)
			waits += ladder.TTL(ladder.Levels-1-i, digit)
		}
		require.Equal(t, got, waits)
	})
}

func anyLadder(t *rapid.T) config.Ladder {
	return config.Ladder{
		Unit: rapid.SampledFrom([]time.Duration{time.Millisecond, 7 * time.Millisecond, time.Second, time.Hour}).
			Draw(t, "unit"),
		Radix: rapid.IntRange(2, 16).Draw(t, "radix"), Levels: rapid.IntRange(1, 32).Draw(t, "levels"),
	}
}

func TestLadderValidate(t *testing.T) {
	for want, ladder := range map[string]config.Ladder{
		"": {Prefix: "a", Unit: time.Millisecond, Radix: 2, Levels: 30},
		`Prefix: names that begin with amq. are the broker's own: must be valid UTF-8 of at most 100 bytes without * ` +
			`and #, which does not begin with amq., got "amq.delay"`: {Prefix: "amq.delay"},
		"Unit: out of bounds: must be 1ms..1h in whole milliseconds, or left out, got 1.5ms": {Unit: 1500 * time.
			Microsecond},
		"Radix: out of bounds: must be 2..16, or left out, got 17":  {Radix: 17},
		"Levels: out of bounds: must be 1..32, or left out, got -1": {Levels: -1},
		"Levels: too many queues, (radix - 1) for each level: must be at most 128 queues, got 135": {Radix: 16,
			Levels: 9, Unit: time.Millisecond},
		"Levels: the longest delay is too long: must be lower, or Unit or Radix lower: no delay can be longer than " +
			"87600h (10 years), got 999999h0m0s": {Unit: time.Hour},
	} {
		if err := ladder.Validate(); want == "" {
			assert.NoError(t, err)
		} else {
			assert.EqualError(t, err, want)
		}
	}
}

func TestExactPolicy(t *testing.T) {
	exact := config.Policy{Strategy: config.StrategyLadder,
		Delays: []time.Duration{time.Second, 1234 * time.Millisecond}}
	require.NoError(t, exact.Validate())
	assert.Equal(t, []time.Duration{time.Second, 1300 * time.Millisecond}, exact.Schedule(), "rounded up to the unit")
	assert.Equal(t, 1300*time.Millisecond, exact.Delay(2))
	assert.Equal(t, 37*time.Second, exact.DelayFor(37*time.Second), "any delay is there")
	assert.Equal(t, exact.Ladder.Longest(), exact.DelayFor(1000*time.Hour))

	growing := config.Policy{Strategy: config.StrategyLadder, Retries: 200, Backoff: config.Backoff{
		Kind: config.BackoffLinear, Initial: time.Second,
	}}
	require.NoError(t, growing.Validate(), "delays need no queue each")
	assert.Len(t, growing.DistinctDelays(), 200)

	for want, policy := range map[string]config.Policy{
		`Delays[1]: longer than the longest delay of the ladder: must be at most 27h46m39.9s, or Ladder.Levels ` +
			`higher, got 28h0m0s`: {Strategy: config.StrategyLadder, Delays: []time.Duration{1000, 28 * time.Hour}},
		`Backoff: longer than the longest delay of the ladder`: {Strategy: config.StrategyLadder, Retries: 3,
			Backoff: config.Backoff{Kind: config.BackoffConstant, Initial: 28 * time.Hour}},
		`Ladder.Levels: the default delays are longer than the longest delay of the ladder: must be higher, or Delays ` +
			`given; the longest default delay is 10m0s, got 9.9s`: {Strategy: config.StrategyLadder,
			Ladder: config.Ladder{Levels: 2}},
		`Ladder.Radix: out of bounds`: {Ladder: config.Ladder{Radix: 1}},
	} {
		assert.ErrorContains(t, policy.Validate(), want)
		var fault *config.FieldError
		assert.ErrorAs(t, policy.Validate(), &fault)
	}
}

func TestExactPolicyInherits(t *testing.T) {
	queues := config.Policy{ClassicQueues: true, Strategy: config.StrategyShared,
		Ladder: config.Ladder{Prefix: "ours"}}
	policies := config.Policies{Default: queues, Topics: map[string]config.Policy{
		"exact": {Strategy: config.StrategyLadder, Ladder: config.Ladder{Levels: 5}},
	}}
	require.NoError(t, policies.Validate(), "what the mode has no use for is not taken")
	exact := policies.For("exact")
	assert.False(t, exact.ClassicQueues)
	assert.Equal(t, config.Ladder{Prefix: "ours", Unit: 100 * time.Millisecond, Radix: 10, Levels: 5}, exact.Ladder)
	assert.Equal(t, config.StrategyShared, policies.For("another").Strategy)

	assert.True(t, exact.Equal(exact.WithDefaults()))
	assert.False(t, exact.Equal(policies.For("another")))
	other := exact
	other.Ladder.Levels = 4
	assert.False(t, exact.Equal(other), "another ladder")
	a, b := queues, queues
	b.Ladder = config.Ladder{}
	assert.True(t, a.Equal(b), "retry queues have no use for a ladder")
}
