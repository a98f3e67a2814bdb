package topologycmd

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/cli"
	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/inspect"
	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/manifest"
	"github.com/amqpretry/watermill-retry/internal/httpapi"
	"github.com/amqpretry/watermill-retry/internal/testkit/await"
	"github.com/amqpretry/watermill-retry/internal/testkit/brokertest"
)

// exported are the policies of these tests with the main queues to export.
var exported = map[string][]string{
	"testdata/policies.yaml":   {"orders", "events=Events 1", "shared", "dead", "off"},
	"testdata/strategies.yaml": {"cycle", "classic", "redelivery", "native", "linear", "policy"},
	"testdata/exact.yaml":      {"orders", "payments", `a"b${c}%{d}\e`},
}

// export writes a topology into a file.
func export(t *testing.T, format, policies string, args ...string) (file string) {
	t.Helper()
	args = append([]string{"export", "--format", format, "--policies", policies}, args...)
	if format == "operator" {
		args = append(args, "--cluster", "rabbit")
	}
	d := offline(t, args...)
	require.Equal(t, cli.ExitOK, d.code, d.errs)

	return asFile(t, d.out)
}

func asFile(t *testing.T, text string) (file string) {
	t.Helper()
	file = filepath.Join(t.TempDir(), "topology")
	require.NoError(t, os.WriteFile(file, []byte(text), 0o600))

	return file
}

// against compares a file with policies.
func against(t *testing.T, file, policies string, args ...string) done {
	t.Helper()
	return offline(t, append([]string{"verify", "--against", file, "--policies", policies}, args...)...)
}

func TestExportIsAsPlanned(t *testing.T) {
	for policies, queues := range exported {
		for _, format := range []string{"definitions", "operator"} {
			file := export(t, format, policies, queues...)
			d := against(t, file, policies, queues...)
			assert.Equal(t, cli.ExitOK, d.code, d.out+d.errs)
			assert.Regexp(t, `\n[0-9]+ present\.\n$`, d.out)
		}
	}
}

// Objects that main queues share are exported once.
func TestExportLadderOnce(t *testing.T) {
	text, err := os.ReadFile(export(t, "operator", "testdata/exact.yaml", "orders", "payments"))
	require.NoError(t, err)
	assert.Equal(t, 55+2*3, strings.Count(string(text), "\nkind: Queue\n"))
}

func TestExportJSON(t *testing.T) {
	objects := offline(t, "plan", "--offline", "--json", "orders").out
	assert.Equal(t, objects, offline(t, "export", "--format", "terraform", "--json", "orders").out)
	assert.Equal(t, offline(t, "export", "orders").out, offline(t, "export", "--json", "orders").out)
}

// Each change of any line of a file is a difference, with its place.
func TestAgainstFindsEachChange(t *testing.T) {
	file := export(t, "operator", "testdata/strategies.yaml", "cycle")
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	lines := strings.Split(string(text), "\n")
	spec, kind := false, ""
	for i, line := range lines {
		switch {
		case strings.HasPrefix(line, "kind: "):
			kind = strings.TrimPrefix(line, "kind: ")
		case !strings.HasPrefix(line, " "):
			spec = line == "spec:"
		case !spec, strings.Contains(line, "Reference:"), line == "    name: rabbit", strings.HasSuffix(line, ":"),
			strings.Contains(line, "deletionPolicy"):
		default:
			changed := append([]string{}, lines...)
			key, value, _ := strings.Cut(line, ": ")
			switch {
			case value == "true":
				value = "false"
			case regexp.MustCompile(`^[0-9]+$`).MatchString(value):
				value += "1"
			case strings.HasPrefix(value, `"`):
				value = `"x` + value[1:]
			default:
				value += "x"
			}
			changed[i] = key + ": " + value
			d := against(t, asFile(t, strings.Join(changed, "\n")), "testdata/strategies.yaml", "cycle")
			assert.Equal(t, cli.ExitFound, d.code, "%s %s\n%s%s", kind, changed[i], d.out, d.errs)
		}
	}
}

func TestAgainstNamesThePlace(t *testing.T) {
	const policies = "testdata/policies.yaml"
	for format, place := range map[string]string{"definitions": `: queues[1]`, "operator": `:25 Queue`} {
		text, err := os.ReadFile(export(t, format, policies, "orders"))
		require.NoError(t, err)
		changed := strings.NewReplacer(`x-message-ttl": 1000`, `x-message-ttl": "1000"`, "x-message-ttl: 1000",
			`x-message-ttl: "1000"`).Replace(string(text))
		file := asFile(t, changed)
		d := against(t, file, policies, "orders", "--json")
		assert.Equal(t, cli.ExitFound, d.code, d.errs)
		var found object
		for _, o := range d.report(t).Queues[0].Objects {
			if o.State == inspect.Conflict {
				found = o
			}
		}
		assert.Equal(t, []string{"orders.retry.1s", "x-message-ttl", "1000", "1000"},
			[]string{found.Name, found.Argument, found.Wanted, found.Found})
		assert.True(t, strings.HasPrefix(found.Where, file) && strings.Contains(found.Where, place), found.Where)
	}
}

func TestAgainstOthers(t *testing.T) {
	file := export(t, "operator", "testdata/policies.yaml", "orders")
	policies := policyFile(t, "default: {delays: [1s], protect: policy}")
	d := against(t, file, policies, "orders", "--main-queue-type", "x")
	assert.Equal(t, cli.ExitUsage, d.code)
	d = against(t, file, policies, "orders", "other")
	assert.Equal(t, cli.ExitFound, d.code, d.errs)
	assert.Regexp(t, `obsolete +queue +orders.retry.90s +no policy needs it: .*:46 Queue`, d.out)
	assert.Regexp(t, `obsolete +binding +orders.retry -> orders.retry.90s +no policy needs it: .*:98 Binding`, d.out)
	assert.Regexp(t, `missing +main queue +other`, d.out)
	assert.Regexp(t, `conflict +main queue +orders +x-dead-letter-exchange: wanted "", found none`, d.out)
}

// Of several policies the one with the highest priority applies, of several files all count, and
// what other main queues have in shared exchanges is not judged.
func TestAgainstSeveral(t *testing.T) {
	policies := policyFile(t, "topics: {a: {mode: dead-letter, protect: policy}, b: {strategy: shared}, c: {strategy: "+
		"shared}}")
	text, err := os.ReadFile(export(t, "operator", policies, "a", "b", "c"))
	require.NoError(t, err)
	const weaker = "\n---\napiVersion: rabbitmq.com/v1beta1\nkind: Policy\nspec: {name: x, pattern: '.*', " +
		"priority: 99}\n"
	file := asFile(t, string(text)+weaker)
	d := against(t, file, policies, "a", "b")
	assert.Equal(t, cli.ExitOK, d.code, d.out+d.errs)
	assert.Regexp(t, `\n[0-9]+ present\.\n$`, d.out)
	d = against(t, asFile(t, string(text)+strings.Replace(weaker, "99", "101", 1)), policies, "a")
	assert.Equal(t, cli.ExitFound, d.code, d.out)

	other := asFile(t, strings.ReplaceAll(string(text), "balanced", "client-local"))
	for _, files := range [][]string{{file, other}, {other, file}} {
		d = against(t, files[0], policies, "--against", files[1], "a")
		assert.Equal(t, cli.ExitFound, d.code, d.out)
		assert.Contains(t, d.out, other+":")
	}
	d = against(t, other, policies, "--against", other, "a")
	assert.Equal(t, 2, strings.Count(d.out, "x-queue-leader-locator: "), "in the table and below: %s", d.out)
}

const terraform = `{"format_version":"1.2","planned_values":{"root_module":{"resources":[
 {"address":"rabbitmq_queue.main","mode":"managed","type":"rabbitmq_queue","values":{"name":"q","vhost":"/","settings":[
  {"durable":true,"auto_delete":false,"arguments":{"x-queue-type":"quorum"},"arguments_json":null}]}},
 {"address":"data.rabbitmq_exchange.x","mode":"data","type":"rabbitmq_exchange","values":{"name":"q.retry","settings":[
  {"type":"fanout"}]}},
 {"address":"random_pet.x","mode":"managed","type":"random_pet","values":{"length":2}},
 {"address":"rabbitmq_policy.p","mode":"managed","type":"rabbitmq_policy","values":{"name":"p","vhost":"/","policy":[
  {"pattern":"^q$","apply_to":"quorum_queues","priority":7,"definition":{"dead-letter-exchange":"",
   "dead-letter-routing-key":"q.dlq","dead-letter-strategy":"at-least-once","delivery-limit":"1000",
   "overflow":"reject-publish"}}]}}],
 "child_modules":[{"resources":[
  {"address":"module.m.rabbitmq_exchange.x","mode":"managed","type":"rabbitmq_exchange","values":{"name":"q.retry",
   "vhost":"/","settings":[{"type":"headers","durable":true,"auto_delete":false,"arguments":{}}]}},
  {"address":"module.m.rabbitmq_queue.dlq","mode":"managed","type":"rabbitmq_queue","values":{"name":"q.dlq",
   "settings":[{"durable":true,"auto_delete":false,"arguments_json":
    "{\"x-delivery-limit\":2147483647,\"x-queue-leader-locator\":\"balanced\",\"x-queue-type\":\"quorum\"}"}]}},
  {"address":"module.m.rabbitmq_binding.dlq","mode":"managed","type":"rabbitmq_binding","values":{"source":"q.retry",
   "vhost":"/","destination":"q.dlq","destination_type":"queue","routing_key":"","arguments":{"x-match":"all",
   "amqpretry-count":"-1"}}}]}]}}}`

func TestAgainstTerraform(t *testing.T) {
	policies := policyFile(t, "default: {mode: dead-letter, protect: policy}")
	d := against(t, asFile(t, terraform), policies, "q")
	assert.Equal(t, cli.ExitOK, d.code, d.out+d.errs)
	assert.Contains(t, d.out, "\n4 present.\n")

	state := strings.Replace(terraform, `"planned_values"`, `"values"`, 1)
	for text, found := range map[string]string{
		`\"balanced\"`:       `module.m.rabbitmq_queue.dlq: queue "q.dlq" is not as planned: x-queue-leader-locator: wanted balanced`,
		`"headers"`:          `module.m.rabbitmq_exchange.x: exchange "q.retry" is not as planned: type: wanted headers, found x`,
		`"reject-publish"`:   `rabbitmq_queue.main: main queue "q" is not as planned: x-overflow: wanted reject-publish, found x`,
		`"quorum_queues"`:    `rabbitmq_queue.main: main queue "q" is not as planned: x-dead-letter-exchange: wanted "", found none`,
		`"amqpretry-count"`:  `missing   binding     q.retry -> q.dlq`,
		`"rabbitmq_binding"`: `missing   binding     q.retry -> q.dlq`,
	} {
		other := strings.ReplaceAll(text, strings.Trim(text, `\"`), "x")
		d := against(t, asFile(t, strings.Replace(state, text, other, 1)), policies, "q")
		assert.Equal(t, cli.ExitFound, d.code, d.out+d.errs)
		assert.Regexp(t, regexp.MustCompile(` +`).ReplaceAllString(regexp.QuoteMeta(found), `\s+`), d.out)
	}
	d = against(t, asFile(t, strings.Replace(terraform, `{\"x-delivery`, `\"x-delivery`, 1)), policies, "q")
	assert.Equal(t, cli.ExitFailed, d.code)
	assert.Contains(t, d.errs, "module.m.rabbitmq_queue.dlq: invalid character")
}

func TestAgainstRefuses(t *testing.T) {
	for text, found := range map[string]string{
		`resource "rabbitmq_queue" "q" {}`: "terraform show -json",
		`{"users": []}`:                    "no object has a known kind",
		`{"queues": {}}`:                   "cannot unmarshal",
		"a: b\n---\n- c\n":                 "line 3",
		"apiVersion: rabbitmq.com/v1beta1\nkind: Queue\nspec: [1]\n":                 "line 1",
		"apiVersion: v1\n\tkind: Queue\n":                                            "found",
		`{"format_version": "1.2", "planned_values": []}`:                            "cannot unmarshal",
		"apiVersion: rabbitmq.com/v1beta1\nkind: Policy\nspec: {priority: 'high'}\n": "priority",
	} {
		d := against(t, asFile(t, text), "testdata/policies.yaml", "orders")
		assert.Equal(t, cli.ExitFailed, d.code, text)
		assert.Contains(t, d.errs, found, text)
		assert.Empty(t, d.out)
	}
}

// A stream of other resources, a list, and JSON are read as well.
func TestAgainstManifestsOfOthers(t *testing.T) {
	const queue = `{"apiVersion": "rabbitmq.com/v1beta1", "kind": "Queue", "spec": {"name": "off", "durable": true}}`
	for _, text := range []string{
		queue,
		`{"apiVersion": "v1", "kind": "List", "items": [` + queue + `]}`,
		"# nothing\n---\napiVersion: v1\nkind: ConfigMap\ndata: {a: b}\n---\n" + queue + "\n---\n",
	} {
		d := against(t, asFile(t, text), "testdata/policies.yaml", "off")
		assert.Equal(t, cli.ExitOK, d.code, d.out+d.errs)
	}
}

// Export writes what apply declares, and who declares it as exported gets what verify accepts:
// after an import of the definitions, and after the requests that the operator makes.
func TestExportIsWhatApplyDeclares_OwnBroker(t *testing.T) {
	t.Parallel()
	b := brokertest.StartWithManagement(t)
	policies := policyFile(t, `
topics:
  tiers: {delays: [1s, 90s]}
  classic: {delays: [1500ms], classic_queues: true, protect: arguments}
  dead: {mode: dead-letter, protect: policy}
  shared: {strategy: shared, delays: [10s]}
  exact: {strategy: ladder}
  cycle: {strategy: cycle, delays: [30s], retries: 3}
  redelivery: {strategy: redelivery, delays: [1s, 5s], protect: policy}
`)
	queues := []string{"tiers", "classic", "dead", "shared", "exact", "cycle", "redelivery", `tiers=a"b${c}\é`}
	in := func(vhost string) (l *lab, args []string) {
		b.Ctl("add_vhost", vhost)
		b.Ctl("set_permissions", "-p", vhost, "guest", ".*", ".*", ".*")
		l = newLab(t, b.URI)
		l.environ[cli.EnvManagement], l.environ[cli.EnvPolicies] = b.ManagementURL, policies
		return l, append([]string{"--vhost", vhost}, queues...)
	}
	read := func(t *testing.T, vhost, text string) []manifest.Object {
		found, err := manifest.Read("file", []byte(text), vhost)
		require.NoError(t, err)
		return found
	}

	imported, args := in("imported")
	exported := imported.run(append([]string{"export"}, args...)...)
	require.Equal(t, cli.ExitOK, exported.code, exported.errs)
	b.API("POST", json.RawMessage(exported.out), "definitions", "imported")
	broker := objects(read(t, "imported", b.API("GET", nil, "definitions", "imported")))
	assert.Equal(t, objects(read(t, "imported", exported.out)), broker)
	await.Until(t, func() bool { return imported.run(append([]string{"verify"}, args...)...).code == cli.ExitOK })

	declared, args := in("declared")
	exported = declared.run(append([]string{"export", "--format", "operator", "--cluster", "x"}, args...)...)
	require.Equal(t, cli.ExitOK, exported.code, exported.errs)
	all := read(t, "declared", exported.out)
	for _, q := range all { // apply needs main queues, and leaves them to their services
		isMain := slices.ContainsFunc(queues, func(arg string) bool { return strings.HasSuffix("="+arg, "="+q.Name) })
		if q.Kind == manifest.Queue && isMain {
			b.API("PUT", map[string]any{"durable": true, "arguments": q.Arguments}, "queues", "declared", q.Name)
		}
	}
	d := declared.run(append([]string{"apply"}, args...)...)
	require.Contains(t, []int{cli.ExitOK, cli.ExitIncomplete}, d.code, d.errs) // without the policies
	all = slices.DeleteFunc(all, func(o manifest.Object) bool { return o.Kind == manifest.Policy })
	broker = objects(read(t, "declared", b.API("GET", nil, "definitions", "declared")))
	assert.Equal(t, objects(all), broker)

	operated, args := in("operated")
	exported = operated.run(append([]string{"export", "--format", "operator", "--cluster", "x"}, args...)...)
	all = read(t, "operated", exported.out)
	asOperator(t, b, all)
	await.Until(t, func() bool { return operated.run(append([]string{"verify"}, args...)...).code == cli.ExitOK })
}

// asOperator makes the requests of the Messaging Topology Operator, for which all numbers are
// floats.
func asOperator(t *testing.T, b *brokertest.Broker, all []manifest.Object) {
	t.Helper()
	floats := func(arguments httpapi.Arguments) map[string]any {
		found := map[string]any{}
		text, err := json.Marshal(arguments)
		require.NoError(t, err)
		require.NoError(t, json.Unmarshal(text, &found))
		return found
	}
	for _, o := range all {
		switch o.Kind {
		case manifest.Exchange:
			b.API("PUT", map[string]any{"type": o.Type, "durable": o.Durable, "arguments": floats(o.Arguments)},
				"exchanges", o.VHost, o.Name)
		case manifest.Queue:
			b.API("PUT", map[string]any{"durable": o.Durable, "arguments": floats(o.Arguments)}, "queues", o.VHost,
				o.Name)
		case manifest.Binding:
			b.API("POST", map[string]any{"routing_key": o.RoutingKey, "arguments": floats(o.Arguments)}, "bindings",
				o.VHost, "e", o.Source, o.DestinationType[:1], o.Destination)
		case manifest.Policy:
			b.API("PUT", map[string]any{"pattern": o.Pattern, "apply-to": o.ApplyTo, "priority": o.Priority,
				"definition": floats(o.Definition)}, "policies", o.VHost, o.Name)
		}
	}
}

// objects are those of a topology in one order, one a line.
func objects(all []manifest.Object) []string {
	lines := make([]string, len(all))
	for i, o := range all {
		if o.Arguments[amqp091.QueueTypeArg] == amqp091.QueueTypeClassic { // RabbitMQ 4 adds the default
			delete(o.Arguments, amqp091.QueueTypeArg)
		}
		text, _ := json.Marshal(o)
		lines[i] = o.Kind + string(text)
	}
	slices.Sort(lines)

	return lines
}
