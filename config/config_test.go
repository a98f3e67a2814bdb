package config_test

import (
	"io/fs"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/amqpretry/watermill-retry/config"
)

const (
	ms   = time.Millisecond
	sec  = time.Second
	year = 365 * 24 * time.Hour
)

func TestSchedule(t *testing.T) {
	for name, test := range map[string]struct {
		policy config.Policy
		want   []time.Duration
	}{
		"zero": {config.Policy{}, []time.Duration{sec, 5 * sec, 30 * sec, 2 * time.Minute,
			10 * time.Minute}},
		"fewer retries": {config.Policy{Retries: 3}, []time.Duration{sec, 5 * sec, 30 * sec}},
		"more retries": {config.Policy{Retries: 6}, []time.Duration{sec, 5 * sec, 30 * sec, 2 * time.Minute,
			10 * time.Minute, 10 * time.Minute}},
		"one per delay": {config.Policy{Delays: []time.Duration{3 * sec, sec}}, []time.Duration{3 * sec, sec}},
		"last repeats": {config.Policy{Retries: 4, Delays: []time.Duration{sec, 2 * sec}},
			[]time.Duration{sec, 2 * sec, 2 * sec, 2 * sec}},
		"constant": {config.Policy{Retries: 3, Backoff: config.Backoff{Kind: config.BackoffConstant,
			Initial: 5 * sec}}, []time.Duration{5 * sec, 5 * sec, 5 * sec}},
		"linear": {config.Policy{Retries: 4, Backoff: config.Backoff{Kind: config.BackoffLinear,
			Initial: 5 * sec}}, []time.Duration{5 * sec, 10 * sec, 15 * sec, 20 * sec}},
		"linear step": {config.Policy{Retries: 3, Backoff: config.Backoff{Kind: config.BackoffLinear,
			Initial: 5 * sec, Step: sec}}, []time.Duration{5 * sec, 6 * sec, 7 * sec}},
		"linear cap": {config.Policy{Retries: 3, Backoff: config.Backoff{Kind: config.BackoffLinear,
			Initial: 5 * sec, Max: 9 * sec}}, []time.Duration{5 * sec, 9 * sec, 9 * sec}},
		"exponential": {config.Policy{Retries: 4, Backoff: config.Backoff{Kind: config.BackoffExponential,
			Initial: sec}}, []time.Duration{sec, 2 * sec, 4 * sec, 8 * sec}},
		"exponential cap": {config.Policy{Retries: 4, Backoff: config.Backoff{Kind: config.BackoffExponential,
			Initial: sec, Factor: 3, Max: 5 * sec}}, []time.Duration{sec, 3 * sec, 5 * sec, 5 * sec}},
		"rounded": {config.Policy{Retries: 4, Backoff: config.Backoff{Kind: config.BackoffExponential,
			Initial: 1 * ms, Factor: 1.5}}, []time.Duration{1 * ms, 2 * ms, 2 * ms, 3 * ms}},
		"dead-letter":       {config.Policy{Mode: config.ModeDeadLetter}, []time.Duration{}},
		"off":               {config.Policy{Mode: config.ModeOff}, []time.Duration{}},
		"only a queue type": {config.Policy{ClassicQueues: true, Retries: 1}, []time.Duration{sec}},
	} {
		t.Run(name, func(t *testing.T) {
			require.NoError(t, test.policy.Validate())
			assert.Equal(t, test.want, test.policy.Schedule())
			assert.Equal(t, len(test.want), test.policy.MaxRetries())
			assert.Equal(t, test.want, test.policy.WithDefaults().Schedule())
		})
	}
}

func TestLongestSchedule(t *testing.T) {
	policy := config.Policy{Retries: 1000, Backoff: config.Backoff{Kind: config.BackoffExponential,
		Initial: sec, Max: config.MaxDelay}}
	require.NoError(t, policy.Validate())
	assert.Equal(t, 10*year, policy.Delay(1000))
	assert.Equal(t, time.Duration(math.MaxInt64), policy.TotalWait(), "the sum is 9700 years and must not overflow")
}

func TestDelay(t *testing.T) {
	policy := config.Policy{Retries: 3, Delays: []time.Duration{sec, 2 * sec}}
	for retry, want := range map[int]time.Duration{-1: sec, 0: sec, 1: sec, 2: 2 * sec, 3: 2 * sec, 4: 2 * sec,
		math.MaxInt: 2 * sec} {
		assert.Equal(t, want, policy.Delay(retry), retry)
	}
	growing := config.Policy{Retries: 3, Backoff: config.Backoff{Kind: config.BackoffLinear, Initial: sec}}
	assert.Equal(t, 3*sec, growing.Delay(99), "beyond the last retry it does not grow on")
	assert.Zero(t, config.Policy{Mode: config.ModeDeadLetter}.Delay(1))
	assert.Zero(t, testing.AllocsPerRun(10, func() { _ = growing.Delay(3); _ = policy.Delay(3) }))
}

func TestBackoffThatWasNeverValidatedStaysWithinBounds(t *testing.T) {
	for _, b := range []config.Backoff{
		{Kind: config.BackoffExponential, Initial: sec, Factor: math.NaN()},
		{Kind: config.BackoffExponential, Initial: sec, Factor: math.Inf(1)},
		{Kind: config.BackoffExponential, Factor: math.Inf(1)},
	} {
		delay := config.Policy{Retries: 3, Backoff: b}.Delay(3)
		assert.Equal(t, config.MaxDelay, delay, "%+v", b)
	}
}

func TestDistinctDelays(t *testing.T) {
	policy := config.Policy{Retries: 5, Delays: []time.Duration{5 * sec, sec, 5 * sec, sec}}
	assert.Equal(t, []time.Duration{sec, 5 * sec}, policy.DistinctDelays())
	assert.Equal(t, []time.Duration{5 * sec, sec, 5 * sec, sec}, policy.Delays, "the policy is not sorted with it")
	assert.Equal(t, 5*sec+sec+5*sec+sec+sec, policy.TotalWait())
}

func TestDefaultIsTheZeroPolicy(t *testing.T) {
	assert.Equal(t, config.Default(), config.Policy{}.WithDefaults())
	assert.True(t, config.Policy{}.IsZero())
	assert.True(t, config.Policy{Delays: []time.Duration{}}.IsZero())
	assert.False(t, config.Default().IsZero())
	assert.Equal(t, 12*time.Minute+36*sec, config.Default().TotalWait())

	config.Default().Delays[0] = time.Hour
	config.Policy{}.WithDefaults().Delays[0] = time.Hour
	assert.Equal(t, sec, config.Default().Delays[0], "callers cannot change the default")

	mine := config.Policy{Delays: []time.Duration{sec}}
	mine.WithDefaults().Delays[0] = time.Hour
	assert.Equal(t, sec, mine.Delays[0], "a copy shares nothing")
}

func TestDelayFor(t *testing.T) {
	p := config.Policy{Delays: []time.Duration{sec, 30 * sec, 5 * sec}}
	for wanted, want := range map[time.Duration]time.Duration{
		-1: sec, 0: sec, 1: sec, sec: sec, sec + 1: 5 * sec, 6 * sec: 30 * sec, 30 * sec: 30 * sec, 31 * sec: 30 * sec,
		math.MaxInt64: 30 * sec,
	} {
		assert.Equal(t, want, p.DelayFor(wanted), wanted)
	}
	assert.Zero(t, config.Policy{Mode: config.ModeDeadLetter}.DelayFor(sec))
	assert.Equal(t, 4*sec, config.Policy{Retries: 5, Backoff: config.Backoff{Kind: config.BackoffExponential,
		Initial: sec}}.DelayFor(3*sec))
}

func TestEqual(t *testing.T) {
	list := config.Policy{Delays: []time.Duration{sec, 2 * sec}}
	assert.True(t, config.Policy{}.Equal(config.Default()))
	assert.True(t, list.Equal(config.Policy{Mode: config.ModeRetry, Retries: 2,
		Backoff: config.Backoff{Kind: config.BackoffLinear, Initial: sec}}), "one schedule, two spellings")
	assert.True(t, config.Policy{Mode: config.ModeOff}.Equal(config.Policy{Mode: config.ModeOff, CrashLimit: 3}))
	for _, other := range []config.Policy{
		{}, {Delays: []time.Duration{2 * sec, sec}}, {Retries: 3, Delays: list.Delays},
		{Delays: list.Delays, ClassicQueues: true},
		{Delays: list.Delays, CrashLimit: 9}, {Mode: config.ModeDeadLetter}, {Mode: config.ModeOff},
		{Delays: list.Delays, Immediate: 1}, {Delays: list.Delays, Jitter: 0.1}, {Delays: list.Delays, MaxAge: sec},
		{Delays: list.Delays, OnExpiry: config.ExpiryDrop}, {Delays: list.Delays, MaxPostpone: sec},
		{Delays: list.Delays, Strategy: config.StrategyShared},
		{Delays: list.Delays, Protect: config.ProtectionPolicy},
		{Delays: list.Delays, NeverRetry: []config.ErrorMatch{config.Is(fs.ErrExist)}},
		{Delays: list.Delays, RetryOnly: []config.ErrorMatch{config.As[*fs.PathError]()}},
	} {
		assert.False(t, list.Equal(other), "%+v", other)
	}
	assert.False(t, config.Policy{Mode: config.ModeDeadLetter}.Equal(config.Policy{Mode: config.ModeDeadLetter,
		CrashLimit: 9}))
	assert.False(t, config.Policy{Mode: config.ModeOff}.Equal(config.Policy{Mode: config.ModeOff,
		Protect: config.ProtectionArguments}))

	full := config.Policy{
		Delays: list.Delays, Immediate: 1, Jitter: 0.5, MaxAge: sec, OnExpiry: config.ExpiryDrop, MaxPostpone: sec,
		Strategy: config.StrategyShared,
		Protect:  config.ProtectionPolicy, NeverRetry: []config.ErrorMatch{config.Is(fs.ErrExist)},
		RetryOnly: []config.ErrorMatch{config.As[*fs.PathError]()},
	}
	assert.True(t, full.Equal(full.WithDefaults()))
	assert.False(t, full.Equal(list))
	assert.True(t, list.Equal(config.Policy{Delays: list.Delays, MaxPostpone: 24 * time.Hour,
		NeverRetry: []config.ErrorMatch{}}))
	swapped := full
	swapped.NeverRetry, swapped.RetryOnly = full.RetryOnly, full.NeverRetry
	assert.False(t, full.Equal(swapped))
}

// fieldErrors are the parts of a joined error, as text.
func fieldErrors(t *testing.T, err error) (texts []string) {
	t.Helper()
	if err == nil {
		return nil
	}
	joined, ok := err.(interface{ Unwrap() []error })
	require.True(t, ok)
	for _, e := range joined.Unwrap() {
		var field *config.FieldError
		require.ErrorAs(t, e, &field)
		assert.NotEmpty(t, field.Path)
		assert.NotEmpty(t, field.Wanted)
		assert.NotEmpty(t, field.Found)
		texts = append(texts, e.Error())
	}
	return texts
}

func TestValidate(t *testing.T) {
	many := func(n int) (delays []time.Duration) {
		for i := range n {
			delays = append(delays, time.Duration(i+1)*sec)
		}
		return delays
	}
	exponential := config.Backoff{Kind: config.BackoffExponential, Initial: sec}
	with := func(change func(*config.Backoff)) config.Policy {
		b := exponential
		change(&b)
		return config.Policy{Retries: 3, Backoff: b}
	}
	for name, test := range map[string]struct {
		policy config.Policy
		want   []string
	}{
		"zero":     {config.Policy{}, nil},
		"shortest": {config.Policy{Delays: []time.Duration{ms}}, nil},
		"longest":  {config.Policy{Delays: []time.Duration{10 * year}}, nil},
		"too short": {config.Policy{Delays: []time.Duration{sec, 500 * time.Microsecond}},
			[]string{"Delays[1]: too short: must be at least 1ms, got 500µs"}},
		"zero delay": {config.Policy{Delays: []time.Duration{0}},
			[]string{"Delays[0]: too short: must be at least 1ms, got 0s"}},
		"too long": {config.Policy{Delays: []time.Duration{10*year + ms}},
			[]string{"Delays[0]: too long: must be at most 87600h (10 years), got 87600h0m0.001s"}},
		"not whole": {config.Policy{Delays: []time.Duration{1500 * time.Microsecond}},
			[]string{"Delays[0]: too fine: must be whole milliseconds, got 1.5ms"}},
		"64 delays": {config.Policy{Delays: many(64)}, nil},
		"65 delays": {config.Policy{Delays: many(65)},
			[]string{"Delays: too many different delays, each is a queue on the broker: must be at most 64, got 65"}},
		"65 of 64":     {config.Policy{Delays: append(many(64), sec)}, nil},
		"1000 retries": {config.Policy{Retries: 1000}, nil},
		"1001 retries": {config.Policy{Retries: 1001},
			[]string{"Retries: out of bounds: must be 1..1000, or 0 for one per delay, got 1001"}},
		"1001 delays": {config.Policy{Delays: make1001()},
			[]string{"Delays: too many: must be at most 1000, got 1001"}},
		"negative retries": {config.Policy{Retries: -1}, []string{"Retries: out of bounds: must be 1..1000, or 0 for " +
			"one per delay, got -1"}},
		"unused delays": {config.Policy{Retries: 1, Delays: []time.Duration{sec, 2 * sec, 3 * sec}}, []string{
			"Retries: delays that are never used: must be at least 3, the number of delays, or 0 to use each once; " +
				"else remove the last 2 of delays, got 1"}},
		"one unused delay": {config.Policy{Retries: 2, Delays: []time.Duration{sec, 2 * sec, 3 * sec}}, []string{
			"Retries: delays that are never used: must be at least 3, the number of delays, or 0 to use each once; " +
				"else remove the last 1 of delays, got 2"}},
		"both": {config.Policy{Retries: 1, Delays: []time.Duration{sec},
			Backoff: exponential}, []string{"Backoff: delays are given twice: must be either delays or a backoff, " +
			"not both, got both"}},
		"backoff, no end": {config.Policy{Backoff: exponential},
			[]string{"Retries: missing with a backoff, which has no end of its own: must be 1..1000, got 0"}},
		"Immediate": {config.Policy{Immediate: 10}, nil},
		"many immediate": {config.Policy{Immediate: 11},
			[]string{"Immediate: out of bounds, as they hold up the messages behind: must be 0..10, got 11"}},
		"less immediate": {config.Policy{Immediate: -2},
			[]string{"Immediate: out of bounds, as they hold up the messages behind: must be 0..10, got -2"}},
		"all jitter": {config.Policy{Jitter: 1}, nil},
		"more jitter": {config.Policy{Jitter: 1.1},
			[]string{"Jitter: out of bounds: must be 0..1, the part of each delay that is random, got 1.1"}},
		"negative jitter": {config.Policy{Jitter: -0.1},
			[]string{"Jitter: out of bounds: must be 0..1, the part of each delay that is random, got -0.1"}},
		"jitter NaN": {config.Policy{Jitter: math.NaN()},
			[]string{"Jitter: out of bounds: must be 0..1, the part of each delay that is random, got NaN"}},
		"max age below the first delay": {config.Policy{Delays: []time.Duration{10 * sec, time.Hour},
			MaxAge: 5 * sec}, []string{
			`MaxAge: over before the first retry, so that nothing is retried: must be more than the first delay, 10s; to retry nothing, use mode "dead-letter", got 5s`}},
		"max age at the first delay": {config.Policy{MaxAge: sec},
			[]string{
				`MaxAge: over before the first retry, so that nothing is retried: must be more than the first delay, 1s; to retry nothing, use mode "dead-letter", got 1s`}},
		"max age below it even by jitter": {config.Policy{MaxAge: 500 * time.Millisecond, Jitter: 0.5},
			[]string{
				`MaxAge: over before the first retry, so that nothing is retried: must be more than the first delay, 500ms; to retry nothing, use mode "dead-letter", got 500ms`}},
		"max age below the backoff": {config.Policy{Retries: 3, Backoff: config.Backoff{Kind: config.BackoffConstant,
			Initial: 2 * sec}, MaxAge: sec},
			[]string{
				`MaxAge: over before the first retry, so that nothing is retried: must be more than the first delay, 2s; to retry nothing, use mode "dead-letter", got 1s`}},
		"max age": {config.Policy{MaxAge: -sec}, []string{"MaxAge: too short: must be at least 1ms, or left out " +
			"for no limit, got -1s"}},
		"max postpone": {config.Policy{MaxPostpone: 1}, []string{"MaxPostpone: too short: must be at least 1ms, or " +
			"left out for 24h0m0s, got 1ns"}},
		"on expiry": {config.Policy{OnExpiry: "lose"},
			[]string{`OnExpiry: unknown: must be one of dead-letter, drop, got "lose"`}},
		"Protect": {config.Policy{Protect: "yes"},
			[]string{`Protect: unknown: must be one of none, arguments, policy, got "yes"`}},
		"match nothing": {config.Policy{RetryOnly: []config.ErrorMatch{config.Is(fs.ErrExist), {}},
			NeverRetry: []config.ErrorMatch{config.Is(nil)}}, []string{
			"RetryOnly[1]: matches nothing: must be made with config.Is, of an error that is not nil, config.As, or " +
				"config.TypeName of a name, got Is(<nil>)",
			"NeverRetry[0]: matches nothing: must be made with config.Is, of an error that is not nil, config.As, or " +
				"config.TypeName of a name, got Is(<nil>)",
		}},
		"without retries": {config.Policy{Mode: config.ModeDeadLetter, Immediate: 1, MaxAge: sec,
			OnExpiry: config.ExpiryDrop, Strategy: config.StrategyShared,
			NeverRetry: []config.ErrorMatch{config.Is(fs.ErrExist)}}, nil},
		"waits without retries": {config.Policy{Mode: config.ModeDeadLetter, Jitter: 0.5, MaxPostpone: sec}, []string{
			`Jitter: ignored by the mode: must be left out with mode "dead-letter"; to retry, use mode "retry", got 0.5`,
			`MaxPostpone: ignored by the mode: must be left out with mode "dead-letter"; to retry, use mode "retry", got 1s`,
		}},
		"off, with more": {config.Policy{Mode: config.ModeOff, Immediate: 1, MaxAge: sec, OnExpiry: config.ExpiryDrop,
			NeverRetry: []config.ErrorMatch{config.Is(fs.ErrExist)}}, []string{
			`NeverRetry: ignored by the mode: must be left out with mode "off"; to retry, use mode "retry", got [Is(file already exists)]`,
			`Immediate: ignored by the mode: must be left out with mode "off"; to retry, use mode "retry", got 1`,
			`MaxAge: ignored by the mode: must be left out with mode "off"; to retry, use mode "retry", got 1s`,
			`OnExpiry: ignored by the mode: must be left out with mode "off"; to retry, use mode "retry", got "drop"`,
		}},
		"off, with queues": {config.Policy{Mode: config.ModeOff, CrashLimit: 5,
			ClassicQueues: true, Strategy: config.StrategyShared, Ladder: config.RetryLadder()}, []string{
			`Strategy: ignored by the mode: must be left out with mode "off"; to retry, use mode "retry", got "shared"`,
			`ClassicQueues: ignored by the mode: must be left out with mode "off"; to retry, use mode "retry", got true`,
			`Ladder: ignored by the mode: must be left out with mode "off"; to retry, use mode "retry", got a ladder`,
			`CrashLimit: ignored by the mode: must be left out with mode "off"; to retry, use mode "retry", got 5`,
		}},
		"off, as it would be without": {config.Policy{Mode: config.ModeOff, Strategy: config.StrategyQueues,
			CrashLimit: 10, OnExpiry: config.ExpiryDeadLetter}, nil},
		"dead-letter, with retry queues": {config.Policy{Mode: config.ModeDeadLetter,
			ClassicQueues: true}, []string{
			`ClassicQueues: ignored by the mode: must be left out with mode "dead-letter"; to retry, use mode "retry", got true`,
		}},
		"Mode": {config.Policy{Mode: "on"},
			[]string{`Mode: unknown: must be one of retry, dead-letter, off, got "on"`}},
		"kind": {with(func(b *config.Backoff) {
			b.Kind = "Jitter"
		}), []string{`Backoff.Kind: unknown: must be one of constant, linear, exponential, got "Jitter"`}},
		"no kind": {with(func(b *config.Backoff) {
			b.Kind = ""
		}), []string{`Backoff.Kind: unknown: must be one of constant, linear, exponential, got ""`}},
		"no initial": {with(func(b *config.Backoff) {
			b.Initial = 0
		}), []string{"Backoff.Initial: too short: must be at least 1ms, got 0s"}},
		"factor 1": {with(func(b *config.Backoff) { b.Factor = 1 }), nil},
		"factor below 1": {with(func(b *config.Backoff) {
			b.Factor = 0.5
		}), []string{"Backoff.Factor: out of bounds: must be a finite number of at least 1, or 0 for 2, got 0.5"}},
		"factor NaN": {with(func(b *config.Backoff) {
			b.Factor = math.NaN()
		}), []string{"Backoff.Factor: out of bounds: must be a finite number of at least 1, or 0 for 2, got NaN"}},
		"factor of linear": {config.Policy{Retries: 1, Backoff: config.Backoff{Kind: config.BackoffLinear,
			Initial: sec, Factor: 2}},
			[]string{`Backoff.Factor: ignored by the kind: must be left out unless kind is "exponential", got 2`}},
		"step": {with(func(b *config.Backoff) {
			b.Step = sec
		}), []string{`Backoff.Step: ignored by the kind: must be left out unless kind is "linear", got 1s`}},
		"bad step": {config.Policy{Retries: 1, Backoff: config.Backoff{Kind: config.BackoffLinear,
			Initial: sec, Step: -sec}}, []string{"Backoff.Step: too short: must be at least 1ms, got -1s"}},
		"max below initial": {with(func(b *config.Backoff) {
			b.Max = ms
		}), []string{"Backoff.Max: below the first delay: must be at least the initial delay, 1s, got 1ms"}},
		"max too long": {with(func(b *config.Backoff) {
			b.Max = 11 * year
		}), []string{"Backoff.Max: too long: must be at most 87600h (10 years), got 96360h0m0s"}},
		"no cap": {config.Policy{Retries: 40, Backoff: exponential}, []string{
			"Backoff.Max: the delays grow too long: must be set, or retries lower: no delay can be longer than " +
				"87600h (10 years), got no cap"}},
		"too many generated": {config.Policy{Retries: 65, Backoff: config.Backoff{Kind: config.BackoffLinear,
			Initial: sec}}, []string{
			"Backoff: too many different delays, each is a queue on the broker: must be at most 64; a lower max or a " +
				"larger growth makes fewer, got 65"}},
		"crash limit 19": {config.Policy{CrashLimit: 19}, nil},
		"crash limit 20": {config.Policy{CrashLimit: 20}, []string{"CrashLimit: out of bounds: must be 1..19, or 0 " +
			"for 10, got 20"}},
		"crash limit -1": {config.Policy{CrashLimit: -1}, []string{"CrashLimit: out of bounds: must be 1..19, or 0 " +
			"for 10, got -1"}},
		"ignored by dead-letter": {config.Policy{Mode: config.ModeDeadLetter, Retries: 1, Delays: []time.Duration{sec},
			Backoff: exponential}, []string{
			`Retries: ignored by the mode: must be left out with mode "dead-letter"; to retry, use mode "retry", got 1`,
			`Delays: ignored by the mode: must be left out with mode "dead-letter"; to retry, use mode "retry", got [1s]`,
			`Backoff: ignored by the mode: must be left out with mode "dead-letter"; to retry, use mode "retry", got a backoff`}},
		"ignored by off": {config.Policy{Mode: config.ModeOff, Delays: many(5)}, []string{
			`Delays: ignored by the mode: must be left out with mode "off"; to retry, use mode "retry", got 5 delays`}},
		"all at once": {config.Policy{Strategy: "x", CrashLimit: 99, Retries: -1, Delays: []time.Duration{-1, 1}},
			[]string{
				`Strategy: unknown: must be one of queues, shared, ladder, cycle, redelivery, native, got "x"`,
				"CrashLimit: out of bounds: must be 1..19, or 0 for 10, got 99",
				"Retries: out of bounds: must be 1..1000, or 0 for one per delay, got -1",
				"Delays[0]: too short: must be at least 1ms, got -1ns",
				"Delays[1]: too short: must be at least 1ms, got 1ns"}},
	} {
		t.Run(name, func(t *testing.T) {
			assert.Equal(t, test.want, fieldErrors(t, test.policy.Validate()))
		})
	}
}

func make1001() []time.Duration {
	delays := make([]time.Duration, 1001)
	for i := range delays {
		delays[i] = sec
	}
	return delays
}

func TestPolicies(t *testing.T) {
	own := config.Policy{Delays: []time.Duration{time.Minute}}
	policies := config.Policies{
		Default: config.Policy{Retries: 2},
		Topics:  map[string]config.Policy{"own": own, "zero": {}},
	}
	require.NoError(t, policies.Validate())
	assert.Equal(t, own.WithDefaults(), policies.For("own"))
	assert.Equal(t, config.Policy{Retries: 2}.WithDefaults(), policies.For("zero"))
	assert.Equal(t, config.Policy{Retries: 2}.WithDefaults(), policies.For("other"))
	assert.Equal(t, config.Default(), config.Policies{}.For("any"))
}

func TestPoliciesValidateReportsEveryPath(t *testing.T) {
	err := config.Policies{
		Default: config.Policy{CrashLimit: 20},
		Topics: map[string]config.Policy{
			`b"`:     {Delays: []time.Duration{sec, sec, 500 * time.Microsecond}},
			"orders": {Mode: "x", Retries: 1001},
			"":       {},
			"good":   {},
		},
	}.Validate()
	assert.Equal(t, []string{
		"Policies.Default.CrashLimit: out of bounds: must be 1..19, or 0 for 10, got 20",
		`Policies.Topics[""]: empty topic: must be the name of a topic; what holds for all topics goes to Policies.Default, got ""`,
		`Policies.Topics["b\""].Delays[2]: too short: must be at least 1ms, got 500µs`,
		`Policies.Topics["orders"].Mode: unknown: must be one of retry, dead-letter, off, got "x"`,
		`Policies.Topics["orders"].Retries: out of bounds: must be 1..1000, or 0 for one per delay, got 1001`,
	}, fieldErrors(t, err))

	var field *config.FieldError
	require.ErrorAs(t, err, &field)
	assert.Equal(t, &config.FieldError{Path: "Policies.Default.CrashLimit", Problem: "out of bounds",
		Wanted: "1..19, or 0 for 10", Found: "20"}, field)
}

// anyPolicy draws good and bad policies, and many at the bounds.
func anyPolicy(t *rapid.T) config.Policy {
	wild := rapid.Int64()
	duration := rapid.Map(rapid.OneOf(wild, rapid.Map(rapid.Int64Range(0, 400_000_000_000), func(n int64) int64 {
		return n * int64(ms)
	}),
		rapid.SampledFrom([]int64{0, 1, int64(ms), int64(config.MaxDelay), int64(config.MaxDelay) + 1, math.MaxInt64,
			math.MinInt64})),
		func(n int64) time.Duration { return time.Duration(n) })
	valid := rapid.Map(rapid.Int64Range(1, 315_360_000_000), func(n int64) time.Duration {
		return time.Duration(n) * ms
	})
	p := config.Policy{
		Mode: rapid.SampledFrom([]config.Mode{"", "", config.ModeRetry, config.ModeDeadLetter, config.ModeOff,
			"x"}).Draw(t, "Mode"),
		Retries: rapid.OneOf(rapid.IntRange(0, 70),
			rapid.SampledFrom([]int{-1, 1000, 1001, math.MaxInt, math.MinInt})).Draw(t, "Retries"),
		ClassicQueues: rapid.Bool().Draw(t, "classic queues"),
		CrashLimit:    rapid.IntRange(-1, 21).Draw(t, "crash limit"),
		Immediate:     rapid.IntRange(-1, 11).Draw(t, "Immediate"),
		OnExpiry: rapid.SampledFrom([]config.Expiry{"", config.ExpiryDeadLetter, config.ExpiryDrop, "x"}).Draw(t,
			"on expiry"),
		Strategy: config.Strategy(rapid.SampledFrom(append(config.StrategyQueues.Choices(), "", "", "x")).
			Draw(t, "strategy")),
		Protect: rapid.SampledFrom([]config.Protection{"", config.ProtectionArguments, "x"}).Draw(t, "Protect"),
	}
	if rapid.Bool().Draw(t, "more") {
		p.Jitter = rapid.Float64Range(-0.1, 1.1).Draw(t, "Jitter")
		p.MaxAge = rapid.OneOf(valid, duration).Draw(t, "max age")
		p.MaxPostpone = rapid.OneOf(valid, duration).Draw(t, "max postpone")
		p.NeverRetry = []config.ErrorMatch{config.As[*fs.PathError]()}
	}
	if rapid.Bool().Draw(t, "list") {
		p.Delays = rapid.SliceOfN(rapid.OneOf(valid, valid, valid, duration), 0, 70).Draw(t, "Delays")
	}
	if rapid.Bool().Draw(t, "Backoff") {
		p.Backoff = config.Backoff{
			Kind: rapid.SampledFrom([]config.BackoffKind{config.BackoffConstant, config.BackoffLinear,
				config.BackoffExponential, ""}).Draw(t, "kind"),
			Initial: rapid.OneOf(valid, duration).Draw(t, "initial"),
			Step:    rapid.OneOf(rapid.Just(time.Duration(0)), valid, duration).Draw(t, "step"),
			Factor: rapid.OneOf(rapid.Just(0.0), rapid.Float64Range(1, 4), rapid.Float64(), rapid.Just(math.Inf(1)),
				rapid.Just(math.NaN())).Draw(t, "factor"),
			Max: rapid.OneOf(rapid.Just(time.Duration(0)), valid, duration).Draw(t, "max"),
		}
	}
	return p
}

func TestPolicyProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := anyPolicy(t)
		// Nothing panics or grows without bound, valid or not.
		err, schedule, full := p.Validate(), p.Schedule(), p.WithDefaults()
		if len(schedule) != p.MaxRetries() || len(schedule) > 1000 {
			t.Fatalf("%d delays for %d retries", len(schedule), p.MaxRetries())
		}
		for i, d := range schedule {
			if d != p.Delay(i+1) {
				t.Fatalf("the schedule has %s before retry %d, Delay says %s", d, i+1, p.Delay(i+1))
			}
			if len(p.Delays) == 0 && (d < time.Millisecond || d > config.MaxDelay || d%ms != 0) {
				t.Fatalf("generated delay %d is %s", i, d)
			}
		}
		if err == nil {
			checkValid(t, p)
			if err := full.Validate(); err != nil {
				t.Fatalf("with defaults: %v", err)
			}
		}
		if !math.IsNaN(p.Backoff.Factor) && !p.Equal(full) {
			t.Fatalf("%+v is not what it means: %+v", p, full)
		}
	})
}

func checkValid(t *rapid.T, p config.Policy) {
	var total time.Duration
	for i, d := range p.Schedule() {
		if d < time.Millisecond || d > config.MaxDelay || d%ms != 0 {
			t.Fatalf("delay %d is %s", i, d)
		}
		if max := p.Backoff.Max; max > 0 && d > max {
			t.Fatalf("delay %d is %s, beyond the cap", i, d)
		}
		if total <= math.MaxInt64-d {
			total += d
		} else {
			total = math.MaxInt64
		}
		if !p.Backoff.IsZero() && i > 0 && d < p.Delay(i) {
			t.Fatalf("delay %d shrinks", i)
		}
	}
	if total != p.TotalWait() {
		t.Fatalf("total wait %s, want %s", p.TotalWait(), total)
	}
	if n := len(p.DistinctDelays()); n > 64 {
		t.Fatalf("%d distinct delays", n)
	}
}

func TestFormatDelay(t *testing.T) {
	for d, want := range map[time.Duration]string{
		ms: "1ms", 1500 * ms: "1500ms", 1000 * ms: "1s", 90 * sec: "90s", 60 * sec: "1m", 90 * time.Minute: "90m",
		2 * time.Hour:  "2h",
		24 * time.Hour: "24h", 10 * year: "87600h", 10*year - ms: "315359999999ms",
		0: "1ms", -sec: "1ms", 1: "1ms", 1500 * time.Microsecond: "2ms", 11 * year: "87600h", math.MaxInt64: "87600h",
	} {
		assert.Equal(t, want, config.FormatDelay(d), int64(d))
	}
}

func TestParseDelayRefuses(t *testing.T) {
	for s, want := range map[string]string{
		"60s": `must be "1m"`, "1000ms": `must be "1s"`, "01s": `must be "1s"`, "+1s": `must be "1s"`,
		"": "such as", "s": "such as", "1": "such as", "1m30s": "such as", "1.5s": "such as", "0s": "such as",
		"-1s": "such as", "1 s": "such as",
		"1S": "such as", "5mm": "such as", "1us": "such as", "87601h": "such as", "99999999999999999999h": "such as",
		"9223372036854775807h": "such as", "١s": "such as",
	} {
		_, err := config.ParseDelay(s)
		assert.ErrorContains(t, err, want, s)
	}
}

func TestDelaySpellingIsCanonical(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.Int64Range(1, 315_360_000_000).Draw(t, "milliseconds")
		unit := rapid.SampledFrom([]int64{1, 1000, 60_000, 3_600_000}).Draw(t, "unit")
		d := time.Duration(max(n/unit, 1)*unit) * ms
		s := config.FormatDelay(d)
		back, err := config.ParseDelay(s)
		if err != nil || back != d {
			t.Fatalf("%s -> %q -> %s, %v", d, s, back, err)
		}
		if std, err := time.ParseDuration(s); err != nil || std != d {
			t.Fatalf("%q means %s elsewhere", s, std)
		}
	})
	rapid.Check(t, func(t *rapid.T) {
		s := rapid.OneOf(rapid.StringMatching(`[0-9]{1,13}(ms|s|m|h)`), rapid.String()).Draw(t, "text")
		if d, err := config.ParseDelay(s); err == nil && config.FormatDelay(d) != s {
			t.Fatalf("%q is a second spelling of %s", s, d)
		} else if err != nil && !strings.Contains(err.Error(), "must be") {
			t.Fatalf("%q: %v", s, err)
		}
	})
}
