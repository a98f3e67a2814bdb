package policyfile_test

import (
	"io/fs"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/config/policyfile"
)

func TestOverride(t *testing.T) {
	policies := config.Policies{
		Default: config.Policy{Retries: 3, Delays: []time.Duration{time.Second}},
		Topics: map[string]config.Policy{
			"payments": {Retries: 4, Backoff: config.Backoff{Kind: config.BackoffLinear,
				Initial: time.Second}},
			"order.created-v2":  {},
			"_Odd..(topic)_é*.": {MaxAge: time.Hour},
			"emptied":           {MaxAge: time.Hour, Delays: []time.Duration{time.Second}},
		},
	}
	got, err := policyfile.Override(policies, []string{
		"PATH=/bin", "AMQPRETRY_URI=x", "AMQPRETRY=x", "amqpretry__default__x=1", "", "=", "=C:=x",
		"AMQPRETRY__DEFAULT__MAX_AGE=10m",
		"AMQPRETRY__DEFAULT__DELAYS=1s, 5s,30s",
		"AMQPRETRY__DEFAULT__RETRIES=7",
		"AMQPRETRY__DEFAULT__JITTER=0.5",
		"AMQPRETRY__DEFAULT__NEVER_RETRY=*fs.PathError,*json.SyntaxError",
		"AMQPRETRY__DEFAULT__CLASSIC_QUEUES=true",
		"AMQPRETRY__TOPICS__PAYMENTS__BACKOFF__MAX=1m",
		"AMQPRETRY__TOPICS__PAYMENTS__MAX_AGE=1m=",
		"AMQPRETRY__TOPICS__PAYMENTS__MAX_AGE=1m", // the last one
		"AMQPRETRY__TOPICS__ORDER_CREATED_V2__MODE=off",
		"AMQPRETRY__TOPICS__ODD_TOPIC__ON_EXPIRY=drop",
		"AMQPRETRY__TOPICS__EMPTIED__MAX_AGE=null",
		"AMQPRETRY__TOPICS__EMPTIED__DELAYS=null",
		"AMQPRETRY__TOPICS__EMPTIED__BACKOFF__MAX=null",
	})
	assert.Equal(t, []string{
		`AMQPRETRY__TOPICS__PAYMENTS__MAX_AGE: topics["payments"].max_age: no duration: must be a duration with its units, such as 500ms, 30s, 1m30s or 24h (a day has no unit of its own), got "1m="`,
	}, faults(t, err))
	assert.Zero(t, got)

	got, err = policyfile.Override(policies, []string{
		"AMQPRETRY__DEFAULT__MAX_AGE=10m",
		"AMQPRETRY__DEFAULT__DELAYS=1s, 5s,30s",
		"AMQPRETRY__DEFAULT__NEVER_RETRY=*fs.PathError,*json.SyntaxError",
		"AMQPRETRY__TOPICS__PAYMENTS__BACKOFF__MAX=1m",
		"AMQPRETRY__TOPICS__ORDER_CREATED_V2__MODE=off",
		"AMQPRETRY__TOPICS__ODD_TOPIC__ON_EXPIRY=drop",
		"AMQPRETRY__TOPICS__EMPTIED__MAX_AGE=null",
		"AMQPRETRY__TOPICS__EMPTIED__DELAYS=null",
	})
	require.NoError(t, err)
	assert.Equal(t, config.Policies{
		Default: config.Policy{
			Retries: 3, Delays: []time.Duration{time.Second, 5 * time.Second, 30 * time.Second},
			MaxAge:     10 * time.Minute,
			NeverRetry: []config.ErrorMatch{config.TypeName("*fs.PathError"), config.TypeName("*json.SyntaxError")},
		},
		Topics: map[string]config.Policy{
			"payments": {Retries: 4, Backoff: config.Backoff{Kind: config.BackoffLinear, Initial: time.Second,
				Max: time.Minute}},
			"order.created-v2":  {Mode: config.ModeOff},
			"_Odd..(topic)_é*.": {MaxAge: time.Hour, OnExpiry: config.ExpiryDrop},
			"emptied":           {},
		},
	}, got)
	assert.Equal(t, config.Policy{}, policies.Topics["order.created-v2"], "the policies themselves stay")
	assert.Equal(t, []time.Duration{time.Second}, policies.Default.Delays)
}

func TestOverrideRefuses(t *testing.T) {
	policies := config.Policies{Topics: map[string]config.Policy{
		"orders": {}, "mail.sent": {}, "mail-sent": {}, "*": {},
		"payments.*": {NeverRetry: []config.ErrorMatch{config.Is(fs.ErrExist)}},
	}}
	const forms = "unknown variable: must be AMQPRETRY__DEFAULT__FIELD or AMQPRETRY__TOPICS__TOPIC__FIELD, got "
	for assignment, want := range map[string]string{
		"AMQPRETRY__=1":                   forms + `"1"`,
		"AMQPRETRY__DEFAULTS__MAX_AGE=1m": forms + `"1m"`,
		"AMQPRETRY__MAX_AGE=1m":           forms + `"1m"`,
		"AMQPRETRY__TOPICS=1m":            forms + `"1m"`,
		"AMQPRETRY__default__MAX_AGE=1m":  forms + `"1m"`,
		"AMQPRETRY__DEFAULT=off": "not a single field: must be continued with __ and one of " +
			"MODE, RETRIES, DELAYS, BACKOFF, ",
		"AMQPRETRY__TOPICS__ORDERS=off": "not a single field: must be continued with __ and one of " +
			"MODE, ",
		"AMQPRETRY__DEFAULT__BACKOFF=1s":         `not a single field: must be continued with __ and one of KIND, INITIAL, STEP, FACTOR, MAX, got "1s"`,
		"AMQPRETRY__DEFAULT__MAXAGE=1m":          "unknown field MAXAGE, did you mean MAX_AGE?",
		"AMQPRETRY__DEFAULT__MAX__AGE=1m":        "unknown field MAX: must be one of MODE, ",
		"AMQPRETRY__DEFAULT__BACKOFF_MAX=1m":     "unknown field BACKOFF_MAX, did you mean BACKOFF?",
		"AMQPRETRY__DEFAULT__max_age=1m":         "unknown field max_age, did you mean MAX_AGE?",
		"AMQPRETRY__DEFAULT__MAX_AGE__SECONDS=1": "nothing is below default.max_age: must be without __SECONDS",
		"AMQPRETRY__DEFAULT__DELAYS__0=1s":       "nothing is below default.delays: must be without __0",
		"AMQPRETRY__TOPICS__ORDER__MAX_AGE=1m":   "unknown topic ORDER, did you mean ORDERS?",
		"AMQPRETRY__TOPICS__SHIPPING__MAX_AGE=1m": "unknown topic SHIPPING: must be one of MAIL_SENT, ORDERS, " +
			"PAYMENTS",
		"AMQPRETRY__TOPICS____MAX_AGE=1m":          "unknown topic : must be one of MAIL_SENT, ORDERS, PAYMENTS",
		"AMQPRETRY__TOPICS__MAIL_SENT__MAX_AGE=1m": `topics of the same spelling: must be about one topic; change these in the file, got ["mail-sent" "mail.sent"]`,
		"AMQPRETRY__DEFAULT__MAX_AGE=": "default.max_age: empty: must be a value, null to leave the " +
			"field out, or a variable that is not set",
		"AMQPRETRY__DEFAULT__MAX_AGE":    "default.max_age: empty: must be ",
		"AMQPRETRY__DEFAULT__MAX_AGE=30": "default.max_age: wrong type: must be a duration ",
		"AMQPRETRY__DEFAULT__RETRIES=many": "default.retries: wrong type: must be a whole number in " +
			"decimal digits, without quotes, got \"many\"",
		"AMQPRETRY__DEFAULT__RETRIES=2000": "default.retries: out of bounds: must be 1..1000, or 0 for " +
			"one per delay, got 2000",
		"AMQPRETRY__DEFAULT__MODE=5":          "default.mode: wrong type: must be text, got 5 (a number)",
		"AMQPRETRY__DEFAULT__MODE=of":         `default.mode: unknown: must be one of retry, dead-letter, off, got "of"`,
		"AMQPRETRY__DEFAULT__DELAYS=1s,500us": "default.delays[1]: too short: must be at least 1ms, got 500µs",
		"AMQPRETRY__DEFAULT__DELAYS=1s,":      "default.delays[1]: wrong type: must be a value, got nothing",
		"AMQPRETRY__DEFAULT__DELAYS=[1s]":     "default.delays[0]: no duration: must be ",
		"AMQPRETRY__DEFAULT__BACKOFF__MAX=1m": "default.backoff.kind: unknown: must be one of constant, " +
			"linear, exponential, got \"\"",
		"AMQPRETRY__TOPICS__PAYMENTS__RETRIES=1001": `topics["payments.*"].retries: out of bounds: must be 1..1000, or 0 for one per delay, got 1001`,
		"AMQPRETRY__DEFAULT__NEVER_RETRY=a.B,io": "default.never_retry[1]: matches nothing: must be a type as " +
			"%T prints it",
		"AMQPRETRY__DEFAULT__JITTER=NaN": "default.jitter: wrong type: must be a number in decimal " +
			"digits, without quotes, got \"NaN\"",
		"AMQPRETRY__DEFAULT__CRASH_LIMIT=\"10\"":      "default.crash_limit: wrong type: must be a whole number ",
		"AMQPRETRY__TOPICS__ORDERS__CRASH_LIMIT=1\n2": `topics["orders"].crash_limit: wrong type: must be a whole number in decimal digits, without quotes, got "1\n2"`,
	} {
		got, err := policyfile.Override(policies, []string{assignment})
		assert.Zero(t, got)
		texts := faults(t, err)
		variable, _, _ := strings.Cut(assignment, "=")
		assert.Contains(t, strings.Join(texts, "\n"), variable+": "+want)
		var fault *config.FieldError
		if assert.ErrorAs(t, err, &fault) {
			assert.Equal(t, variable, fault.Variable)
			assert.Zero(t, fault.Line)
		}
	}

	_, err := policyfile.Override(config.Policies{}, []string{"AMQPRETRY__TOPICS__ORDERS__MAX_AGE=1m"})
	assert.ErrorContains(t, err, "unknown topic ORDERS: must be about DEFAULT, as no topic has a policy of its own")

	many := config.Policies{Topics: map[string]config.Policy{}}
	for i := range 50 {
		many.Topics["service.topic-"+itoa(i)] = config.Policy{}
	}
	_, err = policyfile.Override(many, []string{"AMQPRETRY__TOPICS__X__MAX_AGE=1m"})
	assert.ErrorContains(t, err, " or 30 more")

	// What is wrong with the policies is reported with it, and not blamed on a variable.
	_, err = policyfile.Override(config.Policies{Default: config.Policy{Retries: -1}},
		[]string{"AMQPRETRY__DEFAULT__MAX_AGE=1us"})
	assert.Equal(t, []string{
		"default.retries: out of bounds: must be 1..1000, or 0 for one per delay, got -1",
		"AMQPRETRY__DEFAULT__MAX_AGE: default.max_age: too short: must be at least 1ms, or left out for no limit, " +
			"got 1µs",
	}, faults(t, err))
}

// Every field can be overridden, and whatever is in the environment, what comes out is valid.
func TestOverrideProperties(t *testing.T) {
	segment := rapid.SampledFrom([]string{"DEFAULT", "TOPICS", "A", "A_B", "BACKOFF", "MAX", "DELAYS", "MODE",
		"RETRIES", "KIND", "INITIAL", "", "_", "X"})
	value := rapid.OneOf(rapid.String(), rapid.SampledFrom([]string{"1s", "1s,2s", "off", "3", "linear", "null", "0",
		"~", "true", "*a.B"}))
	rapid.Check(t, func(t *rapid.T) {
		policies := config.Policies{Topics: map[string]config.Policy{"a": {}, "a.b": {Retries: 1}, "*": {}}}
		var environ []string
		for range rapid.IntRange(0, 5).Draw(t, "variables") {
			name := strings.Join(rapid.SliceOfN(segment, 1, 5).Draw(t, "name"), "__")
			environ = append(environ, "AMQPRETRY__"+name+"="+value.Draw(t, "value"))
		}
		got, err := policyfile.Override(policies, environ)
		if err == nil {
			err = got.Validate()
			if err != nil {
				t.Fatal(err)
			}
			if len(got.Topics) != len(policies.Topics) {
				t.Fatal("a topic came from nowhere")
			}
		}
	})
}
