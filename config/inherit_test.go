package config_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/config"
)

// What a topic's policy leaves out is the default's.
func TestTopicsInheritTheDefault(t *testing.T) {
	list, backoff := config.Policy{Delays: []time.Duration{sec, 5 * sec, time.Minute}}, config.Policy{
		Retries: 4, Backoff: config.Backoff{Kind: config.BackoffLinear, Initial: sec},
	}
	with := func(p config.Policy, change func(*config.Policy)) config.Policy {
		change(&p)
		return p
	}
	errs := []config.ErrorMatch{config.TypeName("*json.SyntaxError")}

	for name, test := range map[string]struct{ def, topic, want config.Policy }{
		"nothing said": {list, config.Policy{}, list},
		"retries, fewer than delays": {
			with(list, func(p *config.Policy) {
				p.MaxAge, p.ClassicQueues = time.Hour, true
			}), config.Policy{Retries: 2},
			config.Policy{Delays: []time.Duration{sec, 5 * sec}, MaxAge: time.Hour, ClassicQueues: true},
		},
		"retries, more than delays": {list, config.Policy{Retries: 5}, with(list, func(p *config.Policy) {
			p.Retries = 5
		})},
		"retries of a backoff": {backoff, config.Policy{Retries: 9}, with(backoff, func(p *config.Policy) {
			p.Retries = 9
		})},
		"retries of the built-in": {config.Policy{}, config.Policy{Retries: 2},
			config.Policy{Delays: []time.Duration{sec, 5 * sec}}},
		"delays instead of a backoff": {backoff, config.Policy{Delays: []time.Duration{time.Minute}},
			config.Policy{Delays: []time.Duration{time.Minute}}},
		"delays instead of more": {with(list, func(p *config.Policy) {
			p.Retries = 9
		}), config.Policy{Delays: []time.Duration{time.Minute}}, config.Policy{Delays: []time.Duration{time.Minute}}},
		"a backoff, with the default's retries": {
			with(list, func(p *config.Policy) { p.Retries = 9 }), config.Policy{Backoff: backoff.Backoff},
			with(backoff, func(p *config.Policy) { p.Retries = 9 }),
		},
		"each field": {
			with(list, func(p *config.Policy) {
				p.Immediate, p.Jitter, p.MaxAge, p.OnExpiry, p.MaxPostpone = 2, 0.5, time.Hour, config.ExpiryDrop,
					2*time.Hour
				p.RetryOnly, p.NeverRetry, p.ClassicQueues, p.Strategy, p.Protect, p.CrashLimit = errs, errs,
					true, config.StrategyShared, config.ProtectionPolicy, 7
			}),
			config.Policy{Delays: []time.Duration{sec}},
			config.Policy{
				Delays: []time.Duration{sec}, Immediate: 2, Jitter: 0.5, MaxAge: time.Hour, OnExpiry: config.ExpiryDrop,
				MaxPostpone: 2 * time.Hour,
				RetryOnly:   errs, NeverRetry: errs, ClassicQueues: true, Strategy: config.StrategyShared,
				Protect: config.ProtectionPolicy, CrashLimit: 7,
			},
		},
		"quorum queues by its own strategy": {
			config.Policy{ClassicQueues: true}, config.Policy{Strategy: config.StrategyShared},
			config.Policy{Strategy: config.StrategyShared},
		},
		"dead letters of the shared queues": {
			config.Policy{Strategy: config.StrategyShared, ClassicQueues: true},
			config.Policy{Mode: config.ModeDeadLetter},
			config.Policy{Mode: config.ModeDeadLetter, Strategy: config.StrategyShared},
		},
		"dead letters beside a ladder": {
			config.Policy{Strategy: config.StrategyLadder}, config.Policy{Mode: config.ModeDeadLetter},
			config.Policy{Mode: config.ModeDeadLetter},
		},
		"none of each": {
			with(list, func(p *config.Policy) {
				p.Immediate, p.Jitter, p.MaxAge, p.RetryOnly, p.NeverRetry = 2, 0.5, time.Hour, errs, errs
			}),
			config.Policy{Immediate: config.None, Jitter: config.None, MaxAge: config.None,
				RetryOnly: []config.ErrorMatch{}, NeverRetry: []config.ErrorMatch{}},
			list,
		},
		"none of the default's own": {
			config.Policy{}, config.Policy{Immediate: config.None, Jitter: config.None, MaxAge: config.None},
			config.Policy{},
		},
		"mode": {config.Policy{Mode: config.ModeDeadLetter, MaxAge: time.Hour},
			config.Policy{OnExpiry: config.ExpiryDrop}, config.Policy{
				Mode: config.ModeDeadLetter, MaxAge: time.Hour, OnExpiry: config.ExpiryDrop,
			}},
		"what the mode has no use for": {
			with(list, func(p *config.Policy) {
				p.Jitter, p.MaxPostpone, p.Immediate = 0.5, time.Hour, 1
			}), config.Policy{Mode: config.ModeDeadLetter},
			config.Policy{Mode: config.ModeDeadLetter, Immediate: 1},
		},
		"off": {
			with(list, func(p *config.Policy) {
				p.MaxAge, p.Immediate, p.NeverRetry, p.Protect = time.Hour, 1, errs, config.ProtectionArguments
			}),
			config.Policy{Mode: config.ModeOff},
			config.Policy{Mode: config.ModeOff, Protect: config.ProtectionArguments},
		},
		"a schedule where the default retries nothing": {config.Policy{Mode: config.ModeOff}, list, list},
	} {
		t.Run(name, func(t *testing.T) {
			policies := config.Policies{Default: test.def, Topics: map[string]config.Policy{"orders": test.topic}}
			require.NoError(t, policies.Validate())
			got := policies.For("orders")
			assert.True(t, test.want.Equal(got), "%+v", got)
			assert.True(t, test.def.Equal(policies.For("another")), "the default is as it was")
			require.NoError(t, got.Validate())
		})
	}
}

// What is wrong is told where somebody can correct it: once for the default, and with a topic what
// is wrong only there.
func TestInheritedErrorsAreToldOnce(t *testing.T) {
	policies := config.Policies{
		Default: config.Policy{Delays: []time.Duration{time.Hour}, Jitter: 2, Immediate: 99},
		Topics: map[string]config.Policy{
			"a": {MaxAge: time.Minute},
			"b": {Immediate: 99},
			"c": {Mode: config.ModeDeadLetter, Retries: 3},
		},
	}
	assert.EqualError(t, policies.Validate(),
		`Policies.Default.Immediate: out of bounds, as they hold up the messages behind: must be 0..10, got 99
Policies.Default.Jitter: out of bounds: must be 0..1, the part of each delay that is random, got 2
Policies.Topics["a"].MaxAge: over before the first retry, so that nothing is retried: must be more than the first delay, 1h0m0s; to retry nothing, use mode "dead-letter", got 1m0s
Policies.Topics["b"].Immediate: out of bounds, as they hold up the messages behind: must be 0..10, got 99
Policies.Topics["c"].Retries: ignored by the mode: must be left out with mode "dead-letter"; to retry, use mode "retry", got 3`)
}
