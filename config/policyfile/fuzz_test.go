package policyfile_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/config/policyfile"
)

// jsonPolicies are policies as encoding/json reads them, to compare with.
type jsonPolicies struct {
	Default jsonPolicy            `json:"default"`
	Topics  map[string]jsonPolicy `json:"topics"`
}

type jsonPolicy struct {
	Mode    config.Mode    `json:"mode"`
	Retries int            `json:"retries"`
	Delays  []jsonDuration `json:"delays"`
	Backoff struct {
		Kind    config.BackoffKind `json:"kind"`
		Initial jsonDuration       `json:"initial"`
		Step    jsonDuration       `json:"step"`
		Factor  float64            `json:"factor"`
		Max     jsonDuration       `json:"max"`
	} `json:"backoff"`
	Immediate   int                 `json:"immediate"`
	Jitter      float64             `json:"jitter"`
	MaxAge      jsonDuration        `json:"max_age"`
	OnExpiry    config.Expiry       `json:"on_expiry"`
	MaxPostpone jsonDuration        `json:"max_postpone"`
	RetryOnly   []config.ErrorMatch `json:"retry_only"`
	NeverRetry  []config.ErrorMatch `json:"never_retry"`
	Ladder      struct {
		Prefix string       `json:"prefix"`
		Unit   jsonDuration `json:"unit"`
		Radix  int          `json:"radix"`
		Levels int          `json:"levels"`
	} `json:"ladder"`
	Strategy      config.Strategy   `json:"strategy"`
	ClassicQueues bool              `json:"classic_queues"`
	Protect       config.Protection `json:"protect"`
	CrashLimit    int               `json:"crash_limit"`
}

type jsonDuration time.Duration

func (d *jsonDuration) UnmarshalText(text []byte) error {
	parsed, err := time.ParseDuration(string(text))
	*d = jsonDuration(parsed)
	return err
}

func (p jsonPolicy) policy() config.Policy {
	var delays []time.Duration
	if p.Delays != nil {
		delays = []time.Duration{}
	}
	for _, d := range p.Delays {
		delays = append(delays, time.Duration(d))
	}
	b := p.Backoff
	return config.Policy{
		Mode: p.Mode, Retries: p.Retries, Delays: delays,
		Backoff: config.Backoff{Kind: b.Kind, Initial: time.Duration(b.Initial), Step: time.Duration(b.Step),
			Factor: b.Factor, Max: time.Duration(b.Max)},
		Immediate: p.Immediate, Jitter: p.Jitter, MaxAge: time.Duration(p.MaxAge), OnExpiry: p.OnExpiry,
		MaxPostpone: time.Duration(p.MaxPostpone),
		RetryOnly:   p.RetryOnly, NeverRetry: p.NeverRetry,
		Ladder: config.Ladder{Prefix: p.Ladder.Prefix, Unit: time.Duration(p.Ladder.Unit), Radix: p.Ladder.Radix,
			Levels: p.Ladder.Levels},
		Strategy: p.Strategy, ClassicQueues: p.ClassicQueues, Protect: p.Protect,
		CrashLimit: p.CrashLimit,
	}
}

func FuzzParse(f *testing.F) {
	for _, file := range files {
		f.Add([]byte(file.text))
	}
	for _, seed := range []string{
		`{"default":{"retries":3,"delays":["1s","1m"],"jitter":0.25},"topics":{"a.*":{"mode":"off"},"b":null}}`,
		"{\n\t\"default\": {\n\t\t\"max_age\": \"1h\", \"retry_only\": [\"*fs.PathError\"]\n\t}\n}\n",
		`{"topics":{"\u00e9\/\ud83d\ude00":{"backoff":{"kind":"linear","initial":"1s"},"retries":2}}}`,
		`{"default":{"retries":1,"retries":2}}`, `{"default":{"jitter":1e-1,"crash_limit":1E0}}`,
		`{"default":{"jitter":NaN}}`,
		"a: &a [x,x]\nb: &b [*a,*a]\nc: &c [*b,*b]\nx-d: [*c,*c]\n",
		"x: &x\n  <<: *x\n", "? [a]\n: b\n", "default: !!binary aGk=\n", "%YAML 1.2\n---\n{}\n...\n", "- - - - a\n",
		"default: |\n  x\n", "\ufeff{}", "a\r\n",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		watchdog := time.AfterFunc(5*time.Second, func() { panic(fmt.Sprintf("it hangs on %q", data)) })
		defer watchdog.Stop()
		policies, err := policyfile.Parse(data)
		if err != nil {
			assert.NotEmpty(t, faults(t, err))
			assert.Equal(t, config.Policies{}, policies)
		} else {
			require.NoError(t, policies.Validate())
			sameAgain(t, policies)
		}
		if json.Valid(data) {
			sameAsJSON(t, data, policies, err)
		}
	})
}

// sameAsJSON checks that JSON means what encoding/json takes it for.
func sameAsJSON(t *testing.T, data []byte, policies config.Policies, err error) {
	t.Helper()
	canonical, unusual := canonicalJSON(t, data)
	if unusual {
		return
	}
	again, errAgain := policyfile.Parse(canonical)
	require.Equal(t, errAgain == nil, err == nil, "%s\n%v\n%s\n%v", data, err, canonical, errAgain)
	require.Equal(t, again, policies)
	if err != nil {
		return
	}
	var want jsonPolicies
	require.NoError(t, json.Unmarshal(data, &want))
	assert.Equal(t, want.Default.policy(), zeroForNone(policies.Default))
	assert.Len(t, policies.Topics, len(want.Topics))
	for topic, p := range want.Topics {
		assert.Equal(t, p.policy(), zeroForNone(policies.Topics[topic]), topic)
	}
}

// zeroForNone is a policy as encoding/json reads it, which does not tell a 0 from what was left
// out.
func zeroForNone(p config.Policy) config.Policy {
	if p.Immediate == config.None {
		p.Immediate = 0
	}
	if p.Jitter == config.None {
		p.Jitter = 0
	}
	if p.MaxAge == config.None {
		p.MaxAge = 0
	}
	return p
}

// canonicalJSON is the same value as encoding/json writes it. Unusual is what we refuse and
// encoding/json does not: keys that are there twice, and half characters.
func canonicalJSON(t *testing.T, data []byte) (canonical []byte, unusual bool) {
	t.Helper()
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.UseNumber()
	var value any
	require.NoError(t, decoder.Decode(&value))
	canonical, err := json.Marshal(value)
	require.NoError(t, err)
	var compact bytes.Buffer
	require.NoError(t, json.Compact(&compact, data))
	return canonical, bytes.Count(canonical, []byte(`":`)) != bytes.Count(compact.Bytes(), []byte(`":`)) ||
		strings.ContainsRune(string(canonical), utf8.RuneError)
}
