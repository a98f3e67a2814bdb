package interop

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclparse"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/hashicorp/hcl/v2/hclwrite"
	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/function"
	"github.com/zclconf/go-cty/cty/function/stdlib"
	ctyjson "github.com/zclconf/go-cty/cty/json"
	yaml3 "go.yaml.in/yaml/v3"

	"github.com/amqpretry/watermill-retry/internal/testkit/commandtest"
)

func TestMain(m *testing.M) { commandtest.Main(m) }

// topologies are policies of each strategy, and main queues, some with names that mean something to
// YAML, HCL or Kubernetes.
const topologies = `
topics:
  orders: {delays: [1s, 90s], protect: policy}
  classic: {delays: [1500ms], classic_queues: true}
  dead: {mode: dead-letter, protect: arguments}
  shared: {strategy: shared, delays: [10s]}
  ladder: {strategy: ladder}
  cycle: {strategy: cycle, delays: [30s], retries: 3}
  redelivery: {strategy: redelivery, delays: [1s, 5s]}
  native: {strategy: native, delays: [10s], retries: 3, protect: policy}
`

var mainQueues = []string{"orders", "classic", "dead", "shared", "ladder", "cycle", "redelivery", "native",
	"Orders", "orders=ORDERS", "orders=1.5", "orders=null", "orders=on", "orders=- a: b #c", "ladder=o_r.d--e..r",
	`orders=a"b\c\u0041`, "orders=${x}$${y}%{z}%%{w}$", "native=日本\U0001F600", "orders=\x1b[2J\u009b\u202e\u2028",
	"orders=" + strings.Repeat("x", 240), "orders=--yes", "shared='*&!|>@`{[]},?:-"}

// amqpretry runs the command with these policies.
func amqpretry(t *testing.T, args ...string) (output string, code int) {
	t.Helper()
	policies := filepath.Join(t.TempDir(), "policies.yaml")
	require.NoError(t, os.WriteFile(policies, []byte(topologies), 0o600))
	command := exec.CommandContext(t.Context(), commandtest.Path(t),
		append([]string{"topology", "--policies", policies}, args...)...)
	var failed bytes.Buffer
	command.Stderr = &failed
	out, err := command.Output()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		require.NoError(t, err)
	}
	require.Empty(t, failed.String())

	return string(out), command.ProcessState.ExitCode()
}

func exportAs(t *testing.T, format string, args ...string) string {
	t.Helper()
	out, code := amqpretry(t, append(append([]string{"export", "--format", format}, args...), mainQueues...)...)
	require.Zero(t, code)

	return out
}

// The releases of the operator whose definitions of resources are read: the oldest that takes what
// is exported, and a newer one, with the hashes that go.sum would have. The module is not required
// by ours: its Go code would bring most of Kubernetes.
var operators = map[string]string{
	"v1.17.4": "h1:WCvf2BolzOwX8czc52EM/KMluKgjHRUIWs5DtubWUB8=",
	"v1.20.1": "h1:luvT/zMd7QhCC+3FU9AXNt92y3JKUzKJXH/Ms25gelY=",
}

// customResources are the schemas of a release, by kind. They refuse fields that they do not have.
func customResources(t *testing.T, version, sum string) map[string]*jsonschema.Schema {
	t.Helper()
	const module = "github.com/rabbitmq/messaging-topology-operator"
	download := exec.CommandContext(t.Context(), "go", "mod", "download", "-json", module+"@"+version)
	download.Dir, download.Env = t.TempDir(), append(os.Environ(), "GOWORK=off", "GOFLAGS=")
	out, err := download.Output()
	require.NoError(t, err, "this test reads the custom resource definitions of %s %s, and cannot download the "+
		"module: %s", module, version, out)
	var found struct{ Dir, Sum string }
	require.NoError(t, json.Unmarshal(out, &found))
	require.Equal(t, sum, found.Sum, "%s %s is another than the one that this test knows", module, version)

	schemas := map[string]*jsonschema.Schema{}
	for _, kind := range []string{"Exchange", "Queue", "Binding", "Policy"} {
		plural := strings.Replace(strings.ToLower(kind)+"s", "ys", "ies", 1)
		file, err := os.ReadFile(filepath.Join(found.Dir, "config/crd/bases/rabbitmq.com_"+plural+".yaml"))
		require.NoError(t, err)
		var definition struct {
			Spec struct {
				Versions []struct {
					Name   string
					Schema struct {
						OpenAPI map[string]any `yaml:"openAPIV3Schema"`
					}
				}
			}
		}
		require.NoError(t, yaml3.Unmarshal(file, &definition))
		require.Equal(t, "v1beta1", definition.Spec.Versions[0].Name)
		schema := strict(definition.Spec.Versions[0].Schema.OpenAPI).(map[string]any)
		compiler := jsonschema.NewCompiler()
		require.NoError(t, compiler.AddResource(kind, schema))
		schemas[kind] = compiler.MustCompile(kind)
	}

	return schemas
}

// strict is a schema as kubectl checks it: without fields that it does not have.
func strict(schema any) any {
	object, ok := schema.(map[string]any)
	if !ok {
		return schema
	}
	for key, value := range object {
		object[key] = strict(value)
	}
	if _, has := object["properties"].(map[string]any); has && object["x-kubernetes-preserve-unknown-fields"] != true {
		object["additionalProperties"] = false
	}

	return object
}

// resourceName is what Kubernetes takes for the name of an object: a DNS subdomain of RFC 1123.
var resourceName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`)

func TestOperatorTakesManifests(t *testing.T) {
	text := exportAs(t, "operator", "--cluster", "rabbit", "--cluster-namespace", "brokers", "--namespace", "shop")
	assert.Equal(t, text, exportAs(t, "operator", "--cluster", "rabbit", "--cluster-namespace", "brokers",
		"--namespace", "shop"))
	var documents []map[string]any
	decoder := yaml3.NewDecoder(strings.NewReader(text))
	for {
		var document map[string]any
		err := decoder.Decode(&document)
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err)
		documents = append(documents, document)
	}

	for version, sum := range operators {
		schemas := customResources(t, version, sum)
		names := map[string]bool{}
		for _, d := range documents {
			kind, metadata, spec := d["kind"].(string), d["metadata"].(map[string]any), d["spec"].(map[string]any)
			name := metadata["name"].(string)
			assert.Regexp(t, resourceName, name)
			assert.LessOrEqual(t, len(name), 253)
			assert.False(t, names[kind+name], "%s %s is there twice", kind, name)
			names[kind+name] = true
			assert.Equal(t, map[string]any{"name": name, "namespace": "shop"}, metadata)
			assert.Equal(t, "rabbitmq.com/v1beta1", d["apiVersion"])
			assert.Equal(t, map[string]any{"name": "rabbit", "namespace": "brokers"}, spec["rabbitmqClusterReference"])
			arguments, _ := spec["arguments"].(map[string]any)
			if ttl, has := arguments["x-message-ttl"]; has {
				assert.IsType(t, 0, ttl)
			}
			assert.NoError(t, schemas[kind].Validate(d), "%s %s", version, name)
		}
		// The schemas are as strict as they should be.
		for _, kind := range []string{"Exchange", "Queue", "Binding", "Policy"} {
			assert.Error(t, schemas[kind].Validate(map[string]any{"spec": map[string]any{"unknown": "x"}}), kind)
		}
	}
}

// What another parser of YAML reads is what was planned.
func TestManifestsAreYAML(t *testing.T) {
	text := exportAs(t, "operator", "--cluster", "rabbit")
	var again bytes.Buffer
	decoder, encoder := yaml3.NewDecoder(strings.NewReader(text)), json.NewEncoder(&again)
	for {
		var document any
		err := decoder.Decode(&document)
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err)
		again.WriteString("---\n")
		require.NoError(t, encoder.Encode(document))
	}
	for _, stream := range []string{text, again.String()} {
		file := filepath.Join(t.TempDir(), "topology.yaml")
		require.NoError(t, os.WriteFile(file, []byte(stream), 0o600))
		out, code := amqpretry(t, append([]string{"verify", "--against", file}, mainQueues...)...)
		assert.Zero(t, code, out)
	}
}

// What Terraform reads is what was planned: the parser that it has reads the configuration, and
// 'verify --against' the values, in the form of 'terraform show -json'.
func TestTerraformReadsConfiguration(t *testing.T) {
	saved := mainQueues
	t.Cleanup(func() { mainQueues = saved })
	mainQueues = nil
	for _, queue := range saved { // the provider cannot keep names with @
		if !strings.Contains(queue, "@") {
			mainQueues = append(mainQueues, queue)
		}
	}
	text := []byte(exportAs(t, "terraform"))
	assert.Equal(t, string(hclwrite.Format(text)), string(text), "terraform fmt changes nothing")

	file := filepath.Join(t.TempDir(), "plan.json")
	require.NoError(t, os.WriteFile(file, planned(t, text), 0o600))
	out, code := amqpretry(t, append([]string{"verify", "--against", file}, mainQueues...)...)
	assert.Zero(t, code, out)
}

// planned is the output of 'terraform show -json' for a plan of resources without variables.
func planned(t *testing.T, configuration []byte) []byte {
	t.Helper()
	file, problems := hclparse.NewParser().ParseHCL(configuration, "topology.tf")
	require.False(t, problems.HasErrors(), problems.Error())
	names := map[string]map[string]cty.Value{}
	context := &hcl.EvalContext{Functions: map[string]function.Function{"jsonencode": stdlib.JSONEncodeFunc},
		Variables: map[string]cty.Value{}}
	var resources []any
	for _, block := range file.Body.(*hclsyntax.Body).Blocks {
		require.Equal(t, "resource", block.Type)
		kind, label := block.Labels[0], block.Labels[1]
		require.True(t, hclsyntax.ValidIdentifier(label) || strings.HasPrefix(label, "_"), label)
		values := valuesOf(t, block.Body, context)
		resources = append(resources, map[string]any{"address": kind + "." + label, "mode": "managed", "type": kind,
			"values": values})
		if name, ok := values["name"]; ok {
			if names[kind] == nil {
				names[kind] = map[string]cty.Value{}
			}
			require.NotContains(t, names[kind], label)
			names[kind][label] = cty.ObjectVal(map[string]cty.Value{"name": cty.StringVal(literal(t, name))})
			context.Variables[kind] = cty.ObjectVal(maps.Clone(names[kind]))
		}
	}
	plan, err := json.Marshal(map[string]any{"format_version": "1.2", "planned_values": map[string]any{
		"root_module": map[string]any{"resources": resources}}})
	require.NoError(t, err)

	return plan
}

func literal(t *testing.T, value any) string {
	t.Helper()
	var text string
	require.NoError(t, json.Unmarshal(value.(json.RawMessage), &text))

	return text
}

func valuesOf(t *testing.T, body *hclsyntax.Body, context *hcl.EvalContext) map[string]any {
	t.Helper()
	values := map[string]any{}
	for key, attribute := range body.Attributes {
		value, problems := attribute.Expr.Value(context)
		require.False(t, problems.HasErrors(), problems.Error())
		text, err := ctyjson.Marshal(value, value.Type())
		require.NoError(t, err)
		values[key] = json.RawMessage(text)
	}
	for _, block := range body.Blocks {
		if block.Type != "lifecycle" {
			values[block.Type] = []any{valuesOf(t, block.Body, context)}
		}
	}

	return values
}
