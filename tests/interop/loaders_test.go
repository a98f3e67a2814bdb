package interop

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/go-viper/mapstructure/v2"
	goccy "github.com/goccy/go-yaml"
	koanfyaml "github.com/knadh/koanf/parsers/yaml"
	"github.com/knadh/koanf/providers/rawbytes"
	"github.com/knadh/koanf/v2"
	"github.com/spf13/viper"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	yaml3 "go.yaml.in/yaml/v3"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/config/policyfile"
)

// A service's own file, in which the policies have a place: everything that a policy can say, and
// topics with dots.
const service = `
listen: ":8080"
retry:
  default:
    mode: retry
    retries: 6
    backoff: {kind: exponential, initial: 1s, factor: 3, max: 1m}
    immediate: 2
    jitter: 0.2
    max_age: 1h30m
    on_expiry: drop
    max_postpone: 12h
    retry_only: ["*url.Error", "*net.OpError"]
    never_retry: ["*fs.PathError"]
    strategy: shared
    classic_queues: true
    protect: policy
    crash_limit: 5
  topics:
    orders.*:
      delays: [1s, 30s, 5m]
      retries: 5
    "*.audit": {mode: off}
    orders.created:
      retries: 3
      backoff: {kind: linear, initial: 5s, step: 500ms}
`

// servicePolicies as our own loader reads them.
func servicePolicies(t *testing.T) config.Policies {
	t.Helper()
	_, below, found := strings.Cut(service, "retry:\n")
	require.True(t, found)
	policies, err := policyfile.Parse([]byte(strings.ReplaceAll("\n"+below, "\n  ", "\n")))
	require.NoError(t, err)
	require.Len(t, policies.Topics, 3)
	return policies
}

func koanfOf(t *testing.T, separator, text string) *koanf.Koanf {
	t.Helper()
	k := koanf.New(separator)
	require.NoError(t, k.Load(rawbytes.Provider([]byte(text)), koanfyaml.Parser()))

	return k
}

func TestKoanf(t *testing.T) {
	k := koanfOf(t, "/", service) // topics have dots, so koanf's separator must be something else
	var got config.Policies
	require.NoError(t, k.Unmarshal("retry", &got))
	assert.Equal(t, servicePolicies(t), got)
	assert.NoError(t, got.Validate())

	var whole struct {
		Listen string          `koanf:"listen"`
		Retry  config.Policies `koanf:"retry"`
	}
	require.NoError(t, k.Unmarshal("", &whole))
	assert.Equal(t, servicePolicies(t), whole.Retry)
}

// With koanf's usual separator a file is read all the same, but a path cannot name a topic with
// dots. That is why the docs name another.
func TestKoanfWithDots(t *testing.T) {
	for separator, want := range map[string]int{".": 3, "/": 9} {
		k := koanfOf(t, separator, service)
		var got config.Policies
		require.NoError(t, k.Unmarshal("retry", &got))
		assert.Equal(t, servicePolicies(t), got)

		require.NoError(t, k.Set(strings.Join([]string{"retry", "topics", "orders.created", "retries"}, separator), 9))
		got = config.Policies{}
		require.NoError(t, k.Unmarshal("retry", &got))
		assert.Equal(t, want, got.Topics["orders.created"].Retries, separator)
	}
}

func decodeHook() mapstructure.DecodeHookFunc {
	return mapstructure.ComposeDecodeHookFunc(mapstructure.StringToTimeDurationHookFunc(),
		mapstructure.TextUnmarshallerHookFunc())
}

// Without our loader unknown keys are ignored, unless one asks for it; Validate finds what is out
// of bounds.
func TestKoanfFaults(t *testing.T) {
	load := func(text string, strict bool) (config.Policies, error) {
		k, got := koanfOf(t, "/", text), config.Policies{}
		if !strict {
			return got, k.Unmarshal("", &got)
		}
		return got, k.UnmarshalWithConf("", &got, koanf.UnmarshalConf{DecoderConfig: &mapstructure.DecoderConfig{
			DecodeHook: decodeHook(), ErrorUnused: true,
		}})
	}
	_, err := load("default: {retires: 5}", false)
	assert.NoError(t, err)
	_, err = load("default: {retires: 5}", true)
	assert.ErrorContains(t, err, "retires")

	got, err := load("default: {max_age: 30, never_retry: ['*errors.errorString']}", false)
	require.NoError(t, err, "30ns: a number is taken for nanoseconds")
	err = got.Validate()
	assert.ErrorContains(t, err, "Policies.Default.MaxAge: too short: must be at least 1ms, or left out for no "+
		"limit, got 30ns")
	assert.ErrorContains(t, err, "Policies.Default.NeverRetry[0]: matches errors of any kind")
}

// viperHook decodes what viper alone does not: errors.
var viperHook = viper.DecodeHook(decodeHook())

func viperOf(t *testing.T, separator, text string) *viper.Viper {
	t.Helper()
	v := viper.NewWithOptions(viper.KeyDelimiter(separator))
	v.SetConfigType("yaml")
	require.NoError(t, v.ReadConfig(strings.NewReader(text)))

	return v
}

func TestViper(t *testing.T) {
	v := viperOf(t, "/", service) // as with koanf: the separator must not be in a topic
	var got config.Policies
	require.NoError(t, v.UnmarshalKey("retry", &got, viperHook))
	assert.Equal(t, servicePolicies(t), got)
	assert.NoError(t, got.Validate())

	var whole struct {
		Listen string          `mapstructure:"listen"`
		Retry  config.Policies `mapstructure:"retry"`
	}
	require.NoError(t, v.UnmarshalExact(&whole, viperHook))
	assert.Equal(t, servicePolicies(t), whole.Retry)
}

// Viper's keys are in lower case, also those of topics, and there is no option against it. Nor does
// it know a topic with its usual separator in it. That is why the docs say to read policies with
// Load next to viper where topics have capitals.
func TestViperLowersTopics(t *testing.T) {
	var got config.Policies
	v := viperOf(t, "/", "topics: {OrderCreated: {retries: 3}}")
	require.NoError(t, v.Unmarshal(&got, viperHook))
	assert.Equal(t, map[string]config.Policy{"ordercreated": {Retries: 3}}, got.Topics)

	got = config.Policies{}
	_ = viperOf(t, ".", "topics: {order.created: {retries: 3}}").Unmarshal(&got, viperHook)
	assert.NotContains(t, got.Topics, "order.created")
}

func TestYAMLLibraries(t *testing.T) {
	type whole struct {
		Listen string          `yaml:"listen"`
		Retry  config.Policies `yaml:"retry"`
	}
	for name, decode := range map[string]func([]byte, *whole) error{
		"go.yaml.in/yaml/v3": func(data []byte, to *whole) error { return yaml3.Unmarshal(data, to) },
		"goccy/go-yaml":      func(data []byte, to *whole) error { return goccy.Unmarshal(data, to) },
	} {
		t.Run(name, func(t *testing.T) {
			var got whole
			require.NoError(t, decode([]byte(service), &got))
			assert.Equal(t, servicePolicies(t), got.Retry)
		})
	}
}

// What these libraries write, Load reads.
func TestYAMLLibrariesWrite(t *testing.T) {
	want := servicePolicies(t)
	for name, encode := range map[string]func(any) ([]byte, error){"go.yaml.in/yaml/v3": yaml3.Marshal,
		"goccy/go-yaml": goccy.Marshal} {
		t.Run(name, func(t *testing.T) {
			text, err := encode(want)
			require.NoError(t, err)
			got, err := policyfile.Parse(text)
			require.NoError(t, err, "%s", text)
			for topic := range want.Topics {
				assert.True(t, want.For(topic).Equal(got.For(topic)), topic)
			}
		})
	}
}

// encoding/json has no durations of text, so Parse is for JSON; what it writes is for eyes.
func TestEncodingJSON(t *testing.T) {
	text, err := json.Marshal(servicePolicies(t).Topics["*.audit"])
	require.NoError(t, err)
	assert.JSONEq(t, `{"mode": "off"}`, string(text))
	assert.Error(t, json.Unmarshal([]byte(`{"default": {"max_age": "1h"}}`), new(config.Policies)))
}
