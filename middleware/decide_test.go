package middleware_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/middleware"
)

var (
	twoRetries = config.Policy{Delays: []time.Duration{time.Second, 5 * time.Second}}.WithDefaults()
	noRetries  = config.Policy{Mode: config.ModeDeadLetter}.WithDefaults()
)

func retry(count int, delay time.Duration) middleware.Verdict {
	return middleware.Verdict{Action: middleware.ActionRetry, Count: count, Delay: delay}
}

func dead(reason middleware.Reason) middleware.Verdict {
	return middleware.Verdict{Action: middleware.ActionDeadLetter, Reason: reason}
}

func TestDecide(t *testing.T) {
	requeue, drop := middleware.Verdict{Action: middleware.ActionRequeue}, middleware.Verdict{Action: middleware.ActionDrop}

	for name, test := range map[string]struct {
		policy   config.Policy
		failures int
		class    middleware.Class
		want     middleware.Verdict
	}{
		"first failure":       {twoRetries, 0, middleware.ClassError, retry(1, time.Second)},
		"second failure":      {twoRetries, 1, middleware.ClassError, retry(2, 5*time.Second)},
		"last failure":        {twoRetries, 2, middleware.ClassError, dead("exhausted")},
		"beyond the policy":   {twoRetries, 1000, middleware.ClassError, dead("exhausted")},
		"dead-letter at once": {noRetries, 0, middleware.ClassError, dead("exhausted")},

		"panic":               {twoRetries, 0, middleware.ClassPanic, retry(1, time.Second)},
		"last panic":          {twoRetries, 2, middleware.ClassPanic, dead("panic")},
		"crashed":             {twoRetries, 1, middleware.ClassCrashed, retry(2, 5*time.Second)},
		"last crash":          {twoRetries, 2, middleware.ClassCrashed, dead("crashed")},
		"unpublishable":       {twoRetries, 0, middleware.ClassUnpublishable, retry(1, time.Second)},
		"last unpublishable":  {twoRetries, 2, middleware.ClassUnpublishable, dead("unpublishable")},
		"panic, no retries":   {noRetries, 0, middleware.ClassPanic, dead("panic")},
		"unknown class":       {twoRetries, 0, "", retry(1, time.Second)},
		"permanent":           {twoRetries, 0, middleware.ClassPermanent, dead("permanent")},
		"permanent, later":    {twoRetries, 2, middleware.ClassPermanent, dead("permanent")},
		"undecodable":         {twoRetries, 0, middleware.ClassUndecodable, dead("undecodable")},
		"drop":                {twoRetries, 0, middleware.ClassDrop, drop},
		"drop, later":         {twoRetries, 2, middleware.ClassDrop, drop},
		"shutdown":            {twoRetries, 0, middleware.ClassShutdown, requeue},
		"shutdown, later":     {twoRetries, 2, middleware.ClassShutdown, requeue},
		"shutdown, no retry":  {noRetries, 0, middleware.ClassShutdown, requeue},
		"drop, no retries":    {noRetries, 0, middleware.ClassDrop, drop},
		"crashed, no retries": {noRetries, 0, middleware.ClassCrashed, dead("crashed")},
	} {
		t.Run(name, func(t *testing.T) {
			assert.Equal(t, test.want, middleware.Decide(test.policy, test.failures, test.class))
		})
	}
}

func anyPolicy() *rapid.Generator[config.Policy] {
	delay := rapid.Map(rapid.Int64Range(1, 1e6), func(ms int64) time.Duration { return time.Duration(ms) * time.Millisecond })

	return rapid.Custom(func(t *rapid.T) config.Policy {
		p := config.Policy{Retries: rapid.IntRange(0, 40).Draw(t, "retries")}

		switch rapid.IntRange(0, 3).Draw(t, "kind") {
		case 0:
			p.Mode, p.Retries = config.ModeDeadLetter, 0
		case 1:
			p.Delays = rapid.SliceOfN(delay, 1, 20).Draw(t, "delays")
			if p.Retries > 0 {
				p.Retries += len(p.Delays) // fewer would leave delays that nothing uses
			}
		case 2:
			p.Retries++
			p.Backoff = config.Backoff{Kind: config.BackoffExponential, Initial: delay.Draw(t, "initial"), Max: 1e6 * time.Millisecond}
		}

		return p.WithDefaults()
	})
}

// The life of a message whose handler always fails.
func TestEveryPolicyEnds(t *testing.T) {
	failing := []middleware.Class{
		middleware.ClassError, middleware.ClassPanic, middleware.ClassCrashed, middleware.ClassUnpublishable,
	}

	rapid.Check(t, func(t *rapid.T) {
		policy := anyPolicy().Draw(t, "policy")

		attempts, failures := 0, 0
		for {
			verdict := middleware.Decide(policy, failures, rapid.SampledFrom(failing).Draw(t, "class"))
			attempts++

			if verdict.Action == middleware.ActionDeadLetter {
				require.NotEmpty(t, verdict.Reason)
				break
			}
			require.Equal(t, retry(failures+1, policy.Delay(failures+1)), verdict)
			require.LessOrEqual(t, verdict.Count, policy.MaxRetries())
			require.Positive(t, verdict.Delay)

			failures = verdict.Count
		}
		require.Equal(t, policy.MaxRetries()+1, attempts, "the handler runs once more than there are retries")
	})
}

func TestVerdictString(t *testing.T) {
	assert.Equal(t, "retry 2 after 5s", retry(2, 5*time.Second).String())
	assert.Equal(t, "dead-letter (exhausted)", dead("exhausted").String())
	assert.Equal(t, "drop", middleware.Verdict{Action: middleware.ActionDrop}.String())
	assert.Equal(t, "requeue", middleware.Verdict{Action: middleware.ActionRequeue}.String())
}
