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
			assert.Equal(t, test.want, middleware.Decide(test.policy, middleware.Case{Failures: test.failures, Class: test.class}))
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
			verdict := middleware.Decide(policy, middleware.Case{Failures: failures, Class: rapid.SampledFrom(failing).Draw(t, "class")})
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
	postponed := func(count int, delay time.Duration) middleware.Verdict {
		return middleware.Verdict{Action: middleware.ActionPostpone, Count: count, Delay: delay}
	}
	now1 := middleware.Verdict{Action: middleware.ActionRetryNow}
	drop := middleware.Verdict{Action: middleware.ActionDrop, Reason: "expired"}
	later := func(v middleware.Verdict, d time.Duration) middleware.Verdict { v.NotBefore = in(d); return v }
	wait := func(v middleware.Verdict, d time.Duration) middleware.Verdict { v.Wait = d; return v }
	const (
		failed, asks = middleware.ClassError, middleware.ClassPostponed
		second       = time.Second
	)
	type c = middleware.Case

	for name, test := range map[string]struct {
		policy config.Policy
		c      middleware.Case
		want   middleware.Verdict
	}{
		"retry after 0":                {plain, c{Class: failed, After: 1}, retry(1, second)},
		"retry after 1s":               {plain, c{Class: failed, After: second}, retry(1, second)},
		"retry after a little more":    {plain, c{Class: failed, After: second + 1, Now: now}, later(retry(1, second), second+time.Millisecond)},
		"retry after 5s":               {plain, c{Class: failed, After: 5 * second, Failures: 1}, retry(2, 5*second)},
		"retry after 6s":               {plain, c{Class: failed, After: 6 * second, Now: now}, later(retry(1, 5*second), 6*second)},
		"retry after 25s":              {plain, c{Class: failed, After: 25 * second}, retry(1, 30*second)},
		"retry after a minute":         {plain, c{Class: failed, After: time.Minute, Now: now}, later(retry(1, 30*second), time.Minute)},
		"retry after, many short hops": {config.Policy{Delays: []time.Duration{300 * time.Millisecond}}, c{Class: failed, After: 3500 * time.Millisecond, Now: now}, later(retry(1, 300*time.Millisecond), 3500*time.Millisecond)},
		"retry after, beyond bounds":   {hour, c{Class: failed, After: 5 * time.Hour, Now: now}, later(retry(1, 30*second), time.Hour)},
		"retry after, none left":       {plain, c{Class: failed, After: second, Failures: 3}, dead("exhausted")},
		"retry after, no retries":      {noRetries, c{Class: failed, After: second}, dead("exhausted")},
		"retry after is no immediate":  {immediate, c{Class: failed, After: second}, retry(1, second)},
		"retry after has no jitter":    {jitter, c{Class: failed, After: second, Random: 0.9}, retry(1, second)},

		"immediate":                    {immediate, c{Class: failed}, now1},
		"immediate, second":            {immediate, c{Class: failed, Tries: 1}, now1},
		"immediate, used up":           {immediate, c{Class: failed, Tries: 2}, retry(1, second)},
		"immediate, for a panic":       {immediate, c{Class: middleware.ClassPanic}, now1},
		"immediate, not later":         {immediate, c{Class: failed, Failures: 1}, retry(2, 30*second)},
		"immediate, not for outputs":   {immediate, c{Class: middleware.ClassUnpublishable}, retry(1, second)},
		"immediate, not for crashes":   {immediate, c{Class: middleware.ClassCrashed}, retry(1, second)},
		"immediate, not for permanent": {immediate, c{Class: middleware.ClassPermanent}, dead("permanent")},
		"immediate, impossible":        {immediate, c{Class: failed, Tries: config.MaxImmediate}, retry(1, second)},

		"postponed":                   {plain, c{Class: asks, After: 2 * second, Now: now, Since: now}, later(postponed(0, second), 2*second)},
		"postponed, later":            {plain, c{Class: asks, After: 1, Failures: 2, Now: now, Since: now}, postponed(2, second)},
		"postponed, last attempt":     {plain, c{Class: asks, After: second, Failures: 3, Now: now, Since: now}, postponed(3, second)},
		"postponed for a minute":      {plain, c{Class: asks, After: time.Minute, Now: now, Since: now}, later(postponed(0, 30*second), time.Minute)},
		"postponed, no retries":       {noRetries, c{Class: asks, After: second, Now: now}, dead("exhausted")},
		"postponed up to its age":     {hour, c{Class: asks, After: second, Now: in(time.Hour - second), Since: now}, postponed(0, second)},
		"postponed beyond its age":    {hour, c{Class: asks, After: second, Now: in(time.Hour - second + 1), Since: now}, dead("postponed-too-long")},
		"postponed beyond, by delay":  {hour, c{Class: asks, After: 25 * second, Now: in(time.Hour - 29*second), Since: now}, dead("postponed-too-long")},
		"postponed, a day by default": {plain, c{Class: asks, After: second, Now: in(24 * time.Hour), Since: now}, dead("postponed-too-long")},
		"postponed, age unknown":      {hour, c{Class: asks, After: second, Now: now}, postponed(0, second)},
		"postponed, then expired":     {hour, c{Class: asks, After: 2 * time.Hour, Now: now, Since: now, Deadline: in(second)}, dead("expired")},

		"expired":                   {plain, c{Class: middleware.ClassExpired}, dead("expired")},
		"expired, dropped":          {dropping, c{Class: middleware.ClassExpired}, drop},
		"the wait ends before":      {plain, c{Class: failed, Now: now, Deadline: in(second + 1)}, retry(1, second)},
		"the wait ends with it":     {plain, c{Class: failed, Now: now, Deadline: in(second)}, dead("expired")},
		"the wait outlives":         {dropping, c{Class: failed, Now: now, Deadline: in(second)}, drop},
		"retry after outlives":      {plain, c{Class: failed, After: time.Minute, Now: now, Deadline: in(time.Minute)}, dead("expired")},
		"an immediate try does not": {immediate, c{Class: failed, Now: now, Deadline: in(1)}, now1},
		"exhausted before expired":  {plain, c{Class: failed, Failures: 3, Now: now, Deadline: now}, dead("exhausted")},
		"permanent before expired":  {plain, c{Class: middleware.ClassPermanent, Now: now, Deadline: now}, dead("permanent")},

		"jitter, none by chance":  {jitter, c{Class: failed, Random: 0}, retry(1, second)},
		"jitter":                  {jitter, c{Class: failed, Random: 0.5}, wait(retry(1, second), 750*time.Millisecond)},
		"jitter, most":            {jitter, c{Class: failed, Failures: 1, Random: 0.9999999999}, wait(retry(2, 30*second), 15*second)},
		"jitter makes it in time": {jitter, c{Class: failed, Random: 0.5, Now: now, Deadline: in(751 * time.Millisecond)}, wait(retry(1, second), 750*time.Millisecond)},
	} {
		t.Run(name, func(t *testing.T) { assert.Equal(t, test.want, middleware.Decide(test.policy, test.c)) })
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

		v := middleware.Decide(policy, middleware.Case{
			Class: middleware.ClassError, Failures: failures, Random: rapid.Float64Range(0, 0.999999999).Draw(t, "random"),
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
