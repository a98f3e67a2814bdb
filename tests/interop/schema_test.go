package interop

import (
	"bytes"
	"os"
	"testing"

	goccy "github.com/goccy/go-yaml"
	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/config/policyfile"
)

const schemaFile = "../../config/policyfile/policies.schema.json"

func policySchema(t *testing.T) *jsonschema.Schema {
	t.Helper()
	file, err := os.ReadFile(schemaFile)
	require.NoError(t, err)
	document, err := jsonschema.UnmarshalJSON(bytes.NewReader(file))
	require.NoError(t, err)
	compiler := jsonschema.NewCompiler()
	compiler.AssertFormat()
	require.NoError(t, compiler.AddResource("policies.schema.json", document))
	compiled, err := compiler.Compile("policies.schema.json") // it is checked against its own schema, too
	require.NoError(t, err)
	return compiled
}

// check a file as an editor does.
func checkFile(t *testing.T, s *jsonschema.Schema, text string) error {
	t.Helper()
	asJSON, err := goccy.YAMLToJSON([]byte(text))
	require.NoError(t, err, text)
	value, err := jsonschema.UnmarshalJSON(bytes.NewReader(asJSON))
	require.NoError(t, err)
	return s.Validate(value)
}

func TestSchemaAccepts(t *testing.T) {
	s := policySchema(t)
	for _, text := range append(documented(t),
		"{}", "null", "default:\ntopics:\n", "default: {}",
		"default: {mode: null, backoff: null, delays: null, retries: null}",
		"topics: {a: null, '*': {}, '?': {mode: off}}",
		`{"$schema": "policies.schema.json", "x-anchors": {"a": 1}, "topics": {"a": {"retries": 0}}}`,
		"default: {jitter: 0, retries: 0, immediate: 0, crash_limit: 0, max_age: 0s, delays: [], retry_only: []}",
		"default: {jitter: 1, retries: 1000, immediate: 10, crash_limit: 19, max_age: 1h1m1s1ms1us1ns, max_postpone: "+
			"1.5h}",
		"default: {retry_only: ['*fs.PathError', url.Error, 'main.E[int]']}",
	) {
		_, err := policyfile.Parse([]byte(text))
		if assert.NoError(t, err, text) || text == "" {
			assert.NoError(t, checkFile(t, s, text), text)
		}
	}
}

func TestSchemaRefuses(t *testing.T) {
	s := policySchema(t)
	for _, text := range []string{
		"[]", "5", "text", "orders: {}", "retries: 5", "default: 5", "default: []", "topics: []", "topics: {a: 5}",
		"topics: {'': {}}",
		"default: {retires: 5}", "default: {Mode: off}", "default: {x-note: 1}", "default: {mode: Off}",
		"default: {mode: true}", "default: {mode: ''}",
		"default: {retries: '5'}", "default: {retries: 5.5}", "default: {retries: -1}", "default: {retries: 1001}",
		"default: {delays: 1s}", "default: {delays: [1]}", "default: {delays: [null]}", "default: {delays: [1d]}",
		"default: {max_age: 30}", "default: {max_age: '30'}", "default: {max_age: -1s}", "default: {max_age: 1 h}",
		"default: {max_age: ''}", "default: {max_age: 1h30}",
		"default: {jitter: 1.1}", "default: {jitter: -0.1}", "default: {jitter: '0.1'}", "default: {immediate: 11}",
		"default: {crash_limit: 20}",
		"default: {backoff: 5s}", "default: {backoff: {kind: cubic}}", "default: {backoff: {maxx: 1s}}",
		"default: {backoff: {factor: -1}}", "default: {backoff: {step: 1}}",
		"default: {on_expiry: lose}", "default: {strategy: copy}", "default: {classic_queues: 1}",
		"default: {protect: yes}",
		"default: {retry_only: '*fs.PathError'}", "default: {never_retry: [PathError]}", "default: {never_retry: ['']}",
		"default: {never_retry: [5]}", "default: {never_retry: [a/b.C]}",
	} {
		_, err := policyfile.Parse([]byte(text))
		assert.Error(t, err, text)
		assert.Error(t, checkFile(t, s, text), text)
	}
}
