package policyfile

import (
	"encoding/json"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/config"
)

// property is what the schema says of a field.
type property struct {
	Title, Description string
	Type               []string
	Enum               []any
	Default            any
	Minimum, Maximum   *json.Number
	MaxItems           *json.Number
	Pattern            string
	Items              *property
	Properties         map[string]*property
	Additional         *bool `json:"additionalProperties"`
}

// The schema is written by hand. It has all fields of a policy and no others, each with its type,
// and its choices, bounds and defaults are those that Parse knows.
func TestSchema(t *testing.T) {
	t.Parallel()
	var root struct {
		Defs map[string]*property `json:"$defs"`
	}
	require.NoError(t, json.Unmarshal(JSONSchema(), &root))
	policy := root.Defs["policy"]
	sameFields(t, policy, reflect.TypeFor[config.Policy](), "")

	for path, file := range map[string]string{ // %v is the value of the field
		"retries": "{retries: %v}", "immediate": "{immediate: %v}", "jitter": "{jitter: %v}",
		"crash_limit": "{crash_limit: %v}", "delays": "{delays: %v}", "mode": "{mode: %v}",
		"on_expiry": "{on_expiry: %v}", "classic_queues": "{classic_queues: %v}", "strategy": "{strategy: %v}",
		"protect":        "{protect: %v}",
		"max_postpone":   "{max_postpone: %v}",
		"backoff.factor": "{retries: 3, backoff: {kind: exponential, initial: 1s, factor: %v}}",
		"ladder.radix":   "{strategy: ladder, delays: [5s], ladder: {levels: 4, unit: 1s, radix: %v}}",
		"ladder.levels":  "{strategy: ladder, delays: [1ms], ladder: {radix: 2, unit: 1ms, levels: %v}}",
		"ladder.unit":    "{strategy: ladder, ladder: {unit: %v}}",
		"ladder.prefix":  "{strategy: ladder, ladder: {prefix: %v}}",
	} {
		p := policy
		for _, name := range regexp.MustCompile(`\w+`).FindAllString(path, -1) {
			p = p.Properties[name]
		}
		parse := func(value any) (config.Policy, error) {
			policies, err := Parse(fmt.Appendf(nil, "default: "+file, value))
			return policies.Default.WithDefaults(), err
		}
		if p.Maximum != nil {
			most, err := p.Maximum.Int64()
			require.NoError(t, err, path)
			_, err = parse(most)
			require.NoError(t, err, path)
			_, err = parse(most + 1)
			require.Error(t, err, path)
		}
		if p.Minimum != nil {
			assert.Equal(t, "0", p.Minimum.String(), path)
			_, err := parse("-1")
			require.Error(t, err, path)
		}
		if p.Default != nil {
			text, err := json.Marshal(p.Default)
			require.NoError(t, err)
			written, err := parse(string(text))
			require.NoError(t, err, path)
			leftOut, err := parse("null")
			require.NoError(t, err, path)
			assert.Equal(t, leftOut, written, path)
		}
	}
	assert.Equal(t, "1000", policy.Properties["delays"].MaxItems.String())

	names := regexp.MustCompile(policy.Properties["never_retry"].Items.Pattern)
	for _, name := range []string{"*fs.PathError", "a.B[int]", "é.日", "PathError", "a/b.C", "**a.B", "&a.B", "a.B[]"} {
		_, err := Parse(fmt.Appendf(nil, "default: {never_retry: [%q]}", name))
		assert.Equal(t, err == nil, names.MatchString(name), name)
	}
}

func sameFields(t *testing.T, object *property, typ reflect.Type, path string) {
	t.Helper()
	assert.Equal(t, []string{"object", "null"}, object.Type, path)
	if assert.NotNil(t, object.Additional, path) {
		assert.False(t, *object.Additional, path)
	}
	assert.Len(t, object.Properties, typ.NumField(), path)
	for i, name := range fieldNames(typ) {
		inside := inMapping(path, name)
		p := object.Properties[name]
		if !assert.NotNil(t, p, inside) {
			continue
		}
		assert.NotEmpty(t, p.Title, inside)
		assert.NotEmpty(t, p.Description, inside)
		sameType(t, p, typ.Field(i).Type, inside)
	}
}

func sameType(t *testing.T, p *property, typ reflect.Type, path string) {
	t.Helper()
	value := reflect.Zero(typ).Interface()
	if c, ok := value.(interface{ Choices() []string }); ok {
		var choices []any
		for _, text := range c.Choices() {
			choices = append(choices, text)
		}
		assert.Equal(t, append(choices, nil), p.Enum, path)
		return
	}
	if typ.Kind() == reflect.Struct && typ != reflect.TypeFor[config.ErrorMatch]() {
		sameFields(t, p, typ, path)
		return
	}
	name := map[reflect.Kind]string{reflect.Slice: "array", reflect.Int: "integer", reflect.Float64: "number",
		reflect.Bool: "boolean", reflect.String: "string", reflect.Int64: "string", reflect.Struct: "string",
	}[typ.Kind()]
	assert.True(t, slices.Contains(p.Type, name), "%s is %s", path, p.Type)
	switch value.(type) {
	case time.Duration:
		assert.Equal(t, durationPattern, p.Pattern, path)
	case config.ErrorMatch:
		assert.NotEmpty(t, p.Pattern, path)
	}
	if typ.Kind() == reflect.Slice {
		assert.Equal(t, []string{name, "null"}, p.Type, path)
		sameType(t, p.Items, typ.Elem(), path+"[]")
	}
}
