package config_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/config"
)

func TestStrategyIsValidated(t *testing.T) {
	one := []time.Duration{30 * time.Second}
	for wanted, policy := range map[string]config.Policy{
		`Strategy: unknown: must be one of queues, shared, ladder, cycle, redelivery, native, got ` +
			`"copy"`: {Strategy: "copy"},
		`Strategy: ignored by the mode: must be left out with mode "dead-letter"`: {
			Mode: config.ModeDeadLetter, Strategy: config.StrategyNative},
		`Strategy: ignored by the mode: must be left out with mode "dead-letter"; to retry, use mode "retry", got ` +
			`"ladder"`: {Mode: config.ModeDeadLetter, Strategy: config.StrategyLadder},
		`Strategy: ignored by the mode: must be left out with mode "off"`: {
			Mode: config.ModeOff, Strategy: config.StrategyShared},
		`ClassicQueues: not possible with the strategy ladder: must be left out, or the strategy "queues": a ladder ` +
			`has quorum queues only, got true`: {Strategy: config.StrategyLadder, ClassicQueues: true},
		`Jitter: not possible with the strategy cycle`: {
			Strategy: config.StrategyCycle, Delays: one, Jitter: 0.5},
		`Protect: not possible with the strategy redelivery: must be left out for "arguments": the main queue needs ` +
			`arguments, got "none"`: {Strategy: config.StrategyRedelivery, Protect: config.ProtectionNone},
		`Protect: not possible with the strategy cycle: must be left out for "arguments": a client ` +
			`cannot ` +
			`see a policy`: {Strategy: config.StrategyCycle, Delays: one, Protect: config.ProtectionPolicy},
		`Delays: the strategy cycle has one delay, as a queue has one dead-letter exchange: must be one ` +
			`delay, such as 30s, and Retries for how often it repeats, got 5 delays`: {Strategy: config.StrategyCycle},
		`Backoff: the strategy cycle has one delay`: {Strategy: config.StrategyCycle, Retries: 3,
			Backoff: config.Backoff{Kind: config.BackoffLinear, Initial: time.Second}},
		`Delays: the strategy native has delays that are constant or grow by the first one: must be such as`: {
			Strategy: config.StrategyNative},
		`Backoff: the strategy native`: {Strategy: config.StrategyNative, Retries: 3,
			Backoff: config.Backoff{Kind: config.BackoffExponential, Initial: time.Second}},
	} {
		assert.ErrorContains(t, policy.Validate(), wanted)
	}
	for name, policy := range map[string]config.Policy{
		"cycle": {Strategy: config.StrategyCycle, Delays: one, Retries: 5},
		"cycle constant": {Strategy: config.StrategyCycle, Retries: 5,
			Backoff: config.Backoff{Kind: config.BackoffConstant, Initial: time.Second}},
		"redelivery":  {Strategy: config.StrategyRedelivery},
		"by a policy": {Strategy: config.StrategyRedelivery, Protect: config.ProtectionPolicy},
		"native":      {Strategy: config.StrategyNative, Delays: one, Retries: 5, Protect: config.ProtectionPolicy},
	} {
		require.NoError(t, policy.Validate(), name)
		require.NoError(t, policy.WithDefaults().Validate(), name)
		assert.True(t, policy.Strategy.ByBroker(), name)
	}
	assert.False(t, config.Policy{}.Strategy.ByBroker())
	assert.False(t, config.Default().Strategy.ByBroker())
}

func TestNativeDelays(t *testing.T) {
	const s = time.Second
	linear := func(retries int, most time.Duration) config.Policy {
		return config.Policy{Retries: retries, Backoff: config.Backoff{Kind: config.BackoffLinear, Initial: s,
			Max: most}}
	}
	for name, test := range map[string]struct {
		policy            config.Policy
		shortest, longest time.Duration // zero if it is not possible
	}{
		"constant":        {config.Policy{Delays: []time.Duration{s}, Retries: 4}, s, s},
		"a list":          {config.Policy{Delays: []time.Duration{s, 2 * s, 3 * s}}, s, 3 * s},
		"a capped list":   {config.Policy{Delays: []time.Duration{10 * s, 15 * s, 15 * s}}, 10 * s, 15 * s},
		"linear":          {linear(4, 0), s, 4 * s},
		"capped":          {linear(9, 3*s), s, 3 * s},
		"grows otherwise": {config.Policy{Delays: []time.Duration{s, 3 * s}}, s, 3 * s},
		// one step, and not of s: below
		"falls":       {config.Policy{Delays: []time.Duration{2 * s, s}}, 0, 0},
		"the default": {config.Policy{}, 0, 0},
		"no retries":  {config.Policy{Mode: config.ModeDeadLetter}, 0, 0},
		"longest possible": {config.Policy{Delays: []time.Duration{config.MaxDelay}, Retries: 1000},
			config.MaxDelay, config.MaxDelay},
	} {
		if name == "grows otherwise" {
			test.shortest, test.longest = 0, 0
		}
		shortest, longest, ok := test.policy.NativeDelays()
		assert.Equal(t, test.longest > 0, ok, name)
		assert.Equal(t, []time.Duration{test.shortest, test.longest}, []time.Duration{shortest, longest}, name)
		test.policy.Strategy = config.StrategyNative
		assert.Equal(t, ok, test.policy.Validate() == nil, name)
	}
}

func TestStrategyIsInherited(t *testing.T) {
	one := []time.Duration{time.Second}
	policies := config.Policies{Default: config.Policy{Strategy: config.StrategyRedelivery,
		Protect: config.ProtectionPolicy},
		Topics: map[string]config.Policy{
			"plain": {Retries: 2},
			"dead":  {Mode: config.ModeDeadLetter},
			"cycle": {Strategy: config.StrategyCycle, Delays: one},
			"copy":  {Strategy: config.StrategyQueues},
		}}
	require.NoError(t, policies.Validate())
	assert.Equal(t, config.StrategyRedelivery, policies.For("plain").Strategy)
	assert.Equal(t, config.ProtectionPolicy, policies.For("plain").Protect)
	assert.Equal(t, config.StrategyQueues, policies.For("dead").Strategy)
	assert.Equal(t, config.ProtectionArguments, policies.For("cycle").Protect,
		"nobody can see whether there is a policy")
	assert.Equal(t, config.StrategyQueues, policies.For("copy").Strategy)

	unprotected := config.Policies{Default: config.Default(), Topics: map[string]config.Policy{
		"orders": {Strategy: config.StrategyRedelivery}}}
	require.NoError(t, unprotected.Validate())
	assert.Equal(t, config.ProtectionArguments, unprotected.For("orders").Protect)
	assert.Equal(t, config.ProtectionNone, config.Policy{}.WithDefaults().Protect)
}

func TestStrategiesAreDifferentPolicies(t *testing.T) {
	redelivery := config.Policy{Strategy: config.StrategyRedelivery}
	assert.False(t, redelivery.Equal(config.Policy{Protect: config.ProtectionArguments}))
	assert.False(t, config.Policy{CrashLimit: 5}.Equal(config.Policy{}))
	assert.False(t, redelivery.IsZero())
}
