package engine_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/internal/engine"
	"github.com/amqpretry/watermill-retry/retry"
)

var (
	twoRetries = config.Policy{Delays: []time.Duration{time.Second, 5 * time.Second}}.WithDefaults()
	noRetries  = config.Policy{Mode: config.ModeDeadLetter}.WithDefaults()
)

func again(count int, delay time.Duration) retry.Verdict {
	return retry.Verdict{Action: retry.ActionRetry, Count: count, Delay: delay}
}

func dead(reason retry.Reason) retry.Verdict {
	return retry.Verdict{Action: retry.ActionDeadLetter, Reason: reason}
}

func TestDecide(t *testing.T) {
	requeue, drop := retry.Verdict{Action: retry.ActionRequeue}, retry.Verdict{Action: retry.ActionDrop}

	for name, test := range map[string]struct {
		policy   config.Policy
		failures int
		class    retry.Class
		want     retry.Verdict
	}{
		"first failure":       {twoRetries, 0, retry.ClassError, again(1, time.Second)},
		"second failure":      {twoRetries, 1, retry.ClassError, again(2, 5*time.Second)},
		"last failure":        {twoRetries, 2, retry.ClassError, dead("exhausted")},
		"beyond the policy":   {twoRetries, 1000, retry.ClassError, dead("exhausted")},
		"dead-letter at once": {noRetries, 0, retry.ClassError, dead("exhausted")},

		"panic":               {twoRetries, 0, retry.ClassPanic, again(1, time.Second)},
		"last panic":          {twoRetries, 2, retry.ClassPanic, dead("panic")},
		"crashed":             {twoRetries, 1, retry.ClassCrashed, again(2, 5*time.Second)},
		"last crash":          {twoRetries, 2, retry.ClassCrashed, dead("crashed")},
		"unpublishable":       {twoRetries, 0, retry.ClassUnpublishable, again(1, time.Second)},
		"last unpublishable":  {twoRetries, 2, retry.ClassUnpublishable, dead("unpublishable")},
		"panic, no retries":   {noRetries, 0, retry.ClassPanic, dead("panic")},
		"unknown class":       {twoRetries, 0, "", again(1, time.Second)},
		"permanent":           {twoRetries, 0, retry.ClassPermanent, dead("permanent")},
		"permanent, later":    {twoRetries, 2, retry.ClassPermanent, dead("permanent")},
		"undecodable":         {twoRetries, 0, retry.ClassUndecodable, dead("undecodable")},
		"drop":                {twoRetries, 0, retry.ClassDrop, drop},
		"drop, later":         {twoRetries, 2, retry.ClassDrop, drop},
		"shutdown":            {twoRetries, 0, retry.ClassShutdown, requeue},
		"shutdown, later":     {twoRetries, 2, retry.ClassShutdown, requeue},
		"shutdown, no retry":  {noRetries, 0, retry.ClassShutdown, requeue},
		"drop, no retries":    {noRetries, 0, retry.ClassDrop, drop},
		"crashed, no retries": {noRetries, 0, retry.ClassCrashed, dead("crashed")},
	} {
		t.Run(name, func(t *testing.T) {
			assert.Equal(t, test.want,
				engine.Decide(&test.policy, engine.Case{Failures: test.failures, Class: test.class}))
		})
	}
}

func anyPolicy() *rapid.Generator[config.Policy] {
	delay := rapid.Map(rapid.Int64Range(1, 1e6), func(ms int64) time.Duration {
		return time.Duration(ms) * time.Millisecond
	})

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
			p.Backoff = config.Backoff{Kind: config.BackoffExponential, Initial: delay.Draw(t, "initial"),
				Max: 1e6 * time.Millisecond}
		}

		return p.WithDefaults()
	})
}

// The life of a message whose handler always fails.
func TestEveryPolicyEnds(t *testing.T) {
	failing := []retry.Class{
		retry.ClassError, retry.ClassPanic, retry.ClassCrashed, retry.ClassUnpublishable,
	}

	rapid.Check(t, func(t *rapid.T) {
		policy := anyPolicy().Draw(t, "policy")

		attempts, failures := 0, 0
		for {
			verdict := engine.Decide(&policy, engine.Case{Failures: failures, Class: rapid.SampledFrom(failing).Draw(t,
				"class")})
			attempts++

			if verdict.Action == retry.ActionDeadLetter {
				require.NotEmpty(t, verdict.Reason)
				break
			}
			require.Equal(t, again(failures+1, policy.Delay(failures+1)), verdict)
			require.LessOrEqual(t, verdict.Count, policy.MaxRetries())
			require.Positive(t, verdict.Delay)

			failures = verdict.Count
		}
		require.Equal(t, policy.MaxRetries()+1, attempts, "the handler runs once more than there are retries")
	})
}

func TestVerdictString(t *testing.T) {
	assert.Equal(t, "retry 2 after 5s", again(2, 5*time.Second).String())
	assert.Equal(t, "dead-letter (exhausted)", dead("exhausted").String())
	assert.Equal(t, "drop", retry.Verdict{Action: retry.ActionDrop}.String())
	assert.Equal(t, "requeue", retry.Verdict{Action: retry.ActionRequeue}.String())
}

// What beside the delays decides.
func TestDecideOverCases(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	in := func(d time.Duration) time.Time { return now.Add(d) }
	with := func(change func(*config.Policy)) config.Policy {
		p := config.Policy{Delays: []time.Duration{time.Second, 30 * time.Second, 5 * time.Second}}
		change(&p)
		return p.WithDefaults()
	}
	plain := with(func(*config.Policy) {})
	immediate := with(func(p *config.Policy) { p.Immediate = 2 })
	jitter := with(func(p *config.Policy) { p.Jitter = 0.5 })
	dropping := with(func(p *config.Policy) { p.OnExpiry = config.ExpiryDrop })
	hour := with(func(p *config.Policy) { p.MaxPostpone = time.Hour })
	postponed := func(count int, delay time.Duration) retry.Verdict {
		return retry.Verdict{Action: retry.ActionPostpone, Count: count, Delay: delay}
	}
	now1 := retry.Verdict{Action: retry.ActionRetryNow}
	drop := retry.Verdict{Action: retry.ActionDrop, Reason: "expired"}
	later := func(v retry.Verdict, d time.Duration) retry.Verdict { v.NotBefore = in(d); return v }
	wait := func(v retry.Verdict, d time.Duration) retry.Verdict { v.Wait = d; return v }
	const (
		failed, asks = retry.ClassError, retry.ClassPostponed
		second       = time.Second
	)
	type c = engine.Case

	for name, test := range map[string]struct {
		policy config.Policy
		c      engine.Case
		want   retry.Verdict
	}{
		"retry after 0":  {plain, c{Class: failed, After: 1}, again(1, second)},
		"retry after 1s": {plain, c{Class: failed, After: second}, again(1, second)},
		"retry after a little more": {plain, c{Class: failed, After: second + 1, Now: now},
			later(again(1, second), second+time.Millisecond)},
		"retry after 5s": {plain, c{Class: failed, After: 5 * second, Failures: 1}, again(2, 5*second)},
		"retry after 6s": {plain, c{Class: failed, After: 6 * second, Now: now},
			later(again(1, 5*second), 6*second)},
		"retry after 25s": {plain, c{Class: failed, After: 25 * second}, again(1, 30*second)},
		"retry after a minute": {plain, c{Class: failed, After: time.Minute, Now: now},
			later(again(1, 30*second), time.Minute)},
		"retry after, many short hops": {config.Policy{Delays: []time.Duration{300 * time.Millisecond}},
			c{Class: failed, After: 3500 * time.Millisecond, Now: now}, later(again(1, 300*time.Millisecond),
				3500*time.Millisecond)},
		"retry after, beyond bounds": {hour, c{Class: failed, After: 5 * time.Hour, Now: now},
			later(again(1, 30*second), time.Hour)},
		"retry after, none left":      {plain, c{Class: failed, After: second, Failures: 3}, dead("exhausted")},
		"retry after, no retries":     {noRetries, c{Class: failed, After: second}, dead("exhausted")},
		"retry after is no immediate": {immediate, c{Class: failed, After: second}, again(1, second)},
		"retry after has no jitter":   {jitter, c{Class: failed, After: second, Random: 0.9}, again(1, second)},

		"immediate":                    {immediate, c{Class: failed}, now1},
		"immediate, second":            {immediate, c{Class: failed, Tries: 1}, now1},
		"immediate, used up":           {immediate, c{Class: failed, Tries: 2}, again(1, second)},
		"immediate, for a panic":       {immediate, c{Class: retry.ClassPanic}, now1},
		"immediate, not later":         {immediate, c{Class: failed, Failures: 1}, again(2, 30*second)},
		"immediate, not for outputs":   {immediate, c{Class: retry.ClassUnpublishable}, again(1, second)},
		"immediate, not for crashes":   {immediate, c{Class: retry.ClassCrashed}, again(1, second)},
		"immediate, not for permanent": {immediate, c{Class: retry.ClassPermanent}, dead("permanent")},
		"immediate, impossible":        {immediate, c{Class: failed, Tries: 10}, again(1, second)},

		"postponed": {plain, c{Class: asks, After: 2 * second, Now: now, Since: now},
			later(postponed(0, second), 2*second)},
		"postponed, later": {plain, c{Class: asks, After: 1, Failures: 2, Now: now, Since: now},
			postponed(2, second)},
		"postponed, last attempt": {plain, c{Class: asks, After: second, Failures: 3, Now: now, Since: now},
			postponed(3, second)},
		"postponed for a minute": {plain, c{Class: asks, After: time.Minute, Now: now, Since: now},
			later(postponed(0, 30*second), time.Minute)},
		"postponed, no retries": {noRetries, c{Class: asks, After: second, Now: now}, dead("exhausted")},
		"postponed up to its age": {hour, c{Class: asks, After: second, Now: in(time.Hour - second), Since: now},
			postponed(0, second)},
		"postponed beyond its age": {hour, c{Class: asks, After: second, Now: in(time.Hour - second + 1),
			Since: now}, dead("postponed-too-long")},
		"postponed beyond, by delay": {hour, c{Class: asks, After: 25 * second, Now: in(time.Hour - 29*second),
			Since: now}, dead("postponed-too-long")},
		"postponed, a day by default": {plain, c{Class: asks, After: second, Now: in(24 * time.Hour), Since: now},
			dead("postponed-too-long")},
		"postponed, age unknown": {hour, c{Class: asks, After: second, Now: now}, postponed(0, second)},
		"postponed, then expired": {hour, c{Class: asks, After: 2 * time.Hour, Now: now, Since: now,
			Deadline: in(second)}, dead("expired")},

		"expired":               {plain, c{Class: retry.ClassExpired}, dead("expired")},
		"expired, dropped":      {dropping, c{Class: retry.ClassExpired}, drop},
		"the wait ends before":  {plain, c{Class: failed, Now: now, Deadline: in(second + 1)}, again(1, second)},
		"the wait ends with it": {plain, c{Class: failed, Now: now, Deadline: in(second)}, dead("expired")},
		"the wait outlives":     {dropping, c{Class: failed, Now: now, Deadline: in(second)}, drop},
		"retry after outlives": {plain, c{Class: failed, After: time.Minute, Now: now, Deadline: in(time.Minute)},
			dead("expired")},
		"an immediate try does not": {immediate, c{Class: failed, Now: now, Deadline: in(1)}, now1},
		"exhausted before expired":  {plain, c{Class: failed, Failures: 3, Now: now, Deadline: now}, dead("exhausted")},
		"permanent before expired": {plain, c{Class: retry.ClassPermanent, Now: now, Deadline: now},
			dead("permanent")},

		"jitter, none by chance": {jitter, c{Class: failed, Random: 0}, again(1, second)},
		"jitter": {jitter, c{Class: failed, Random: 0.5},
			wait(again(1, second), 750*time.Millisecond)},
		"jitter, most": {jitter, c{Class: failed, Failures: 1, Random: 0.9999999999},
			wait(again(2, 30*second), 15*second)},
		"jitter makes it in time": {jitter, c{Class: failed, Random: 0.5, Now: now,
			Deadline: in(751 * time.Millisecond)}, wait(again(1, second), 750*time.Millisecond)},
	} {
		t.Run(name, func(t *testing.T) { assert.Equal(t, test.want, engine.Decide(&test.policy, test.c)) })
	}
}

func TestJitterStaysWithinTheDelay(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		policy := anyPolicy().Draw(t, "policy")
		if policy.MaxRetries() == 0 {
			return
		}
		policy.Jitter = rapid.Float64Range(0, 1).Draw(t, "jitter")
		failures := rapid.IntRange(0, policy.MaxRetries()-1).Draw(t, "failures")

		v := engine.Decide(&policy, engine.Case{
			Class: retry.ClassError, Failures: failures, Random: rapid.Float64Range(0, 0.999999999).Draw(t, "random"),
		})
		require.Equal(t, policy.Delay(failures+1), v.Delay, "jitter adds no queue")
		if v.Wait != 0 {
			require.Less(t, v.Wait, v.Delay)
			require.GreaterOrEqual(t, v.Wait, time.Millisecond)
			require.GreaterOrEqual(t, float64(v.Wait), float64(v.Delay)*(1-policy.Jitter)-float64(time.Millisecond))
			require.Zero(t, v.Wait%time.Millisecond)
		}
	})
}
