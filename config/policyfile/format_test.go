package policyfile_test

import (
	"io"
	"math/rand/v2"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/config/policyfile"
)

// sameAgain checks that what is written of policies is read as the same, and returns what is
// written.
func sameAgain(t *testing.T, p config.Policies) string {
	t.Helper()
	text, err := policyfile.Format(p)
	require.NoError(t, err)
	again, err := policyfile.Parse(text)
	require.NoError(t, err, "%s", text)
	require.Equal(t, p, again, "%s", text)
	return string(text)
}

// What Format writes, Parse reads: for random valid policies with all fields.
func TestFormatIsTheInverseOfParse(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 2))
	var all []string
	for len(all) < 500 {
		p := config.Policies{Default: randomPolicy(random, false)}
		for _, topic := range []string{"orders", "*.audit", "a: b", `"q"`, "x\ty", "é日<>&", "~", "1", "true", "off"} {
			if random.IntN(6) > 0 {
				continue
			}
			if p.Topics == nil {
				p.Topics = map[string]config.Policy{}
			}
			p.Topics[topic] = randomPolicy(random, true)
		}
		if p.Validate() == nil {
			all = append(all, sameAgain(t, p))
		}
	}
	for _, field := range []string{"mode", "retries", "delays", "backoff", "immediate", "jitter", "max_age",
		"on_expiry", "max_postpone", "retry_only", "never_retry", "strategy", "classic_queues", "ladder",
		"protect", "crash_limit", "factor", "max", "step", "unit", "levels", "radix", "prefix",
		"never_retry: []", "jitter: 0"} {
		assert.Contains(t, strings.Join(all, ""), " "+field, "in none of them")
	}
}

// randomPolicy has some fields. Many are invalid together.
func randomPolicy(random *rand.Rand, ofTopic bool) config.Policy {
	some := func() bool { return random.IntN(6) == 0 }
	durations := []time.Duration{time.Millisecond, 1500 * time.Millisecond, 90 * time.Second, time.Hour, 25 * time.Hour}
	duration := func() time.Duration { return durations[random.IntN(len(durations))] }
	matches := [][]config.ErrorMatch{{}, {config.TypeName("*fs.PathError")}, {config.TypeName("a.B[int]"),
		config.TypeName("*net.OpError")}}
	var p config.Policy
	for field, set := range []func(){
		func() {
			p.Mode = []config.Mode{config.ModeRetry, config.ModeDeadLetter, config.ModeOff}[random.IntN(3)]
		},
		func() { p.Retries = 1 + random.IntN(9) },
		func() { p.Delays = []time.Duration{duration(), duration()}[random.IntN(2):] },
		func() {
			p.Retries = 3
			p.Backoff = []config.Backoff{{Kind: config.BackoffConstant, Initial: duration()},
				{Kind: config.BackoffLinear, Initial: duration(), Step: duration()},
				{Kind: config.BackoffExponential, Initial: time.Second, Factor: 1 + random.Float64(),
					Max: time.Hour}}[random.IntN(3)]
		},
		func() { p.Immediate = 1 + random.IntN(10) },
		func() { p.Jitter = random.Float64() },
		func() { p.MaxAge = 1000*time.Hour + time.Duration(random.IntN(1_000_000_000)) },
		func() { p.OnExpiry = config.ExpiryDrop },
		func() { p.MaxPostpone = duration() },
		func() { p.RetryOnly = matches[random.IntN(len(matches))] },
		func() { p.NeverRetry = matches[random.IntN(len(matches))] },
		func() { p.Strategy = config.StrategyRedelivery },
		func() {
			p.Strategy, p.Delays = config.StrategyLadder, []time.Duration{time.Minute}
			p.Ladder = config.Ladder{Prefix: "a: b", Unit: time.Second, Radix: 4, Levels: 5}
		},
		func() { p.ClassicQueues = true },
		func() { p.Strategy = config.StrategyShared },
		func() { p.Protect = config.ProtectionPolicy },
		func() { p.CrashLimit = 1 + random.IntN(19) },
		func() { p.Immediate, p.Jitter, p.MaxAge = config.None, config.None, config.None },
	} {
		if some() && (ofTopic || field < 17) {
			set()
		}
	}
	return p
}

func TestFormatOfWhatEndsUpTheSame(t *testing.T) {
	t.Parallel()
	assert.Empty(t, sameAgain(t, config.Policies{}))
	none, err := policyfile.Format(config.Policies{Default: config.Policy{Jitter: config.None, Immediate: config.None,
		MaxAge: config.None}, Topics: map[string]config.Policy{}})
	require.NoError(t, err)
	assert.Empty(t, string(none), "nothing is set")
	for _, file := range files {
		if p, err := policyfile.Parse([]byte(file.text)); err == nil {
			sameAgain(t, p)
		}
	}
}

func TestFormatRefuses(t *testing.T) {
	t.Parallel()
	_, err := policyfile.Format(config.Policies{Default: config.Policy{Retries: -1}})
	require.ErrorContains(t, err, "cannot format policies: Policies.Default.Retries: ")
	_, err = policyfile.Format(config.Policies{Topics: map[string]config.Policy{"orders": {
		NeverRetry: []config.ErrorMatch{config.Is(io.EOF), config.TypeName("*fs.PathError")},
		RetryOnly:  []config.ErrorMatch{config.As[net.Error]()},
	}}})
	require.EqualError(t, err, `cannot format policies: topics["orders"].retry_only[0]: exists in code only: must be `+
		`config.TypeName, or added in code to what was loaded, got As[net.Error]
topics["orders"].never_retry[0]: exists in code only: must be config.TypeName, or added in code to what was loaded, got `+
		`Is(EOF)`)
	var fault *config.FieldError
	require.ErrorAs(t, err, &fault)
	_, err = policyfile.Format(config.Policies{Topics: map[string]config.Policy{"\xff": {Retries: 1}}})
	require.ErrorContains(t, err, "cannot format policies: ")
	many := config.Policies{Topics: map[string]config.Policy{}}
	for i := range 1500 {
		many.Topics[strings.Repeat("x", 800)+time.Duration(i).String()] = config.Policy{Retries: 1}
	}
	_, err = policyfile.Format(many)
	require.ErrorContains(t, err, "cannot format policies: ")
}
