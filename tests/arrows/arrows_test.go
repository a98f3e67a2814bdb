// Package arrows checks the module's own import graph. It needs no broker.
package arrows

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const (
	module = "github.com/amqpretry/watermill-retry"

	amqp091       = "github.com/rabbitmq/amqp091-go"
	watermill     = "github.com/ThreeDotsLabs/watermill"
	watermillAMQP = "github.com/ThreeDotsLabs/watermill-amqp"
)

// rules: what a package may not reach, not even through others. A path stands for itself and for all below it.
var rules = []struct {
	from string
	not  []string
	why  string
}{
	{"config", []string{amqp091, watermill, watermillAMQP, module},
		"a policy is a plain value: it can be made and checked where there is neither broker nor router"},
	{"config/policyfile", []string{amqp091, watermill, watermillAMQP, module + "/internal", module + "/retry"},
		"a policy file can be checked where there is neither broker nor router"},
	{"retry", []string{amqp091, watermillAMQP, module},
		"what a handler says and sees needs nothing of what works behind it"},
	{"internal/engine", []string{amqp091, watermillAMQP, module + "/amqpretry", module + "/middleware", module +
		"/internal/codec", module + "/internal/connection"},
		"what happens to a message is decided without AMQP, so it is testable without a broker"},
	{"middleware", []string{amqp091, watermillAMQP, module + "/amqpretry", module + "/internal/codec", module +
		"/internal/connection"},
		"the middlewares hand on what was decided, and know no AMQP"},
	{"amqpretry/topology", []string{watermill, watermillAMQP, module + "/retry", module + "/middleware", module +
		"/internal/engine"},
		"the plan is for operators' tools too, which know no Watermill"},
	{"amqpretry/delay", []string{watermillAMQP, module + "/retry", module + "/middleware", module + "/internal",
		module + "/amqpretry"},
		"delays are for every version of watermill-amqp, and their due times are calculated without a broker"},
	{"amqpretry/publish", []string{amqp091, watermill, watermillAMQP, module},
		"options and errors are plain values, for every version of watermill-amqp"},
	{"internal/publishing", []string{watermillAMQP, module + "/amqpretry", module + "/middleware", module +
		"/internal/consumer"},
		"the versions of watermill-amqp share it"},
	{"internal/delayed", []string{watermillAMQP, module + "/amqpretry", module + "/middleware", module +
		"/internal/consumer"},
		"the versions of watermill-amqp share it"},
	{"internal/header", []string{amqp091, watermill, watermillAMQP, module},
		"the header keys are a leaf"},
	{"internal/wire", []string{amqp091, watermillAMQP, module},
		"the codec of the headers knows what is in them, and nothing of who reads it"},
	{"internal/management", []string{amqp091, watermill, watermillAMQP, module},
		"the management API is plain HTTP, for whoever needs it"},
	{"internal/codec", []string{watermillAMQP, module + "/amqpretry", module + "/middleware", module +
		"/internal/connection", module + "/internal/republish", module + "/internal/consumer"},
		"what a message looks like is read and written without a connection"},
	{"internal/connection", []string{watermillAMQP, module + "/amqpretry", module + "/middleware", module +
		"/internal/republish", module + "/internal/consumer"},
		"a connection does not know what it is used for"},
	{"internal/republish", []string{watermillAMQP, module + "/amqpretry", module + "/middleware", module +
		"/internal/consumer"},
		"copies are published for whoever has a delivery, also for the tools"},
	{"internal/consumer", []string{watermillAMQP, module + "/amqpretry", module + "/middleware"},
		"the versions of watermill-amqp share it"},
	{"internal/retrier", []string{watermillAMQP, module + "/internal/versions"},
		"the versions of watermill-amqp share it"},
	{"amqpretry", []string{watermillAMQP + "/v3", module + "/amqpretry/amqpretryv3"},
		"users of watermill-amqp v2 never compile v3"},
	{"amqpretry", []string{module + "/amqpretry/dlq", module + "/tests",
		module + "/middleware/metrics", module + "/middleware/protect", module + "/middleware/retrytest",
		module + "/middleware/tracing"},
		"the retrier does not pull in the tools that come after it"},
	{"amqpretry", optional, "a service that does not use it does not compile it"},
	{"middleware/retrytest", []string{amqp091, watermillAMQP, module + "/amqpretry", module + "/internal/codec",
		module + "/internal/connection"},
		"unit tests of handlers need no AMQP"},
	{"middleware/metrics", []string{amqp091, watermillAMQP, module + "/amqpretry", module + "/internal/codec", module +
		"/internal/connection"},
		"metrics are made of events, whoever tells them"},
	{"middleware/protect", []string{amqp091, watermillAMQP, module + "/amqpretry", module + "/internal/codec", module +
		"/internal/connection"},
		"protection is a matter of handlers"},
	{"middleware/tracing", []string{amqp091, watermillAMQP, module + "/amqpretry", module + "/internal/codec",
		module + "/internal/connection", "go.opentelemetry.io/otel/sdk", "github.com/prometheus", "google.golang.org"},
		"spans are made with the API: the service brings the SDK and its exporter"},
	{"amqpretry/amqpretryv3", []string{watermillAMQP + "/v2", module + "/amqpretry"},
		"users of watermill-amqp v3 never compile v2"},
	{"amqpretry/amqpretryv3", optional, "a service that does not use it does not compile it"},
	{"amqpretry/amqpretryv3", []string{module + "/amqpretry/dlq"}, "the retrier does not pull in the tools that come " +
		"after it"},
	{"amqpretry/dlq", []string{watermillAMQP, module + "/internal/retrier", module + "/internal/consumer", module +
		"/middleware", module + "/amqpretry/amqpretryv3", module + "/cmd"},
		"what works on dead letters needs no retrier, of whatever version"},
	{"amqpretry/dlq", commandLine, "a program that uses the package has a command line of its own"},
	{"amqpretry/dlqweb", []string{watermillAMQP, module + "/internal/retrier", module + "/internal/consumer", module +
		"/middleware", module + "/amqpretry/amqpretryv3", module + "/cmd"}, "the console rests on package dlq alone"},
	{"amqpretry/dlqweb", append([]string{"github.com/prometheus"}, commandLine...),
		"a service that mounts the console compiles nothing new"},
	{"amqpretry", []string{module + "/amqpretry/dlqweb"}, "the retrier does not pull in the console"},
	{"amqpretry/amqpretryv3", []string{module + "/amqpretry/dlqweb"}, "the retrier does not pull in the console"},
	{"internal/retrier", commandLine, "only the command has a command line"},
	{"cmd/amqpretry", []string{watermillAMQP + "/v3"}, "one version of watermill-amqp at most"},
}

// optional is what only users of policy files, metrics, protection and tracing compile.
var optional = []string{"github.com/goccy/go-yaml", module + "/config/policyfile", "github.com/prometheus",
	"github.com/sony/gobreaker", "golang.org/x/time", "go.opentelemetry.io"}

// commandLine is what only the command compiles.
var commandLine = []string{"github.com/spf13", "github.com/schollz", "golang.org/x/term", "golang.org/x/crypto"}

// testOnly is what a user of the library must never compile.
var testOnly = []string{"github.com/stretchr/testify", "go.uber.org/goleak", "pgregory.net/rapid", "testing",
	module + "/internal/testkit", module + "/internal/versions", module + "/tests", storetest}

// storetest is for the tests of stores.
const storetest = module + "/middleware/protect/store/storetest"

// allowed lists the exceptions: packages of the module that lie below a forbidden path and are free all the same.
var allowed = map[string][]string{
	"retry": {module + "/internal/mark", module + "/internal/contextkey"},
	"internal/wire": {module + "/retry", module + "/internal/header", module + "/internal/mark", module +
		"/internal/contextkey"},
	"amqpretry/publish":   {module + "/config"},
	"internal/publishing": {module + "/amqpretry/topology", module + "/amqpretry/publish"},
	"amqpretry/delay": {module + "/amqpretry/publish", module + "/amqpretry/topology", module +
		"/internal/header", module + "/internal/shell"},
	"internal/delayed": {module + "/amqpretry/topology", module + "/amqpretry/delay", module +
		"/amqpretry/publish"},
	"internal/codec":      {module + "/amqpretry/topology"},
	"internal/connection": {module + "/amqpretry/topology"},
	"internal/republish":  {module + "/amqpretry/topology"},
	"internal/consumer":   {module + "/amqpretry/topology"},
	"amqpretry/amqpretryv3": {module + "/amqpretry/topology", module + "/amqpretry/delay", module +
		"/amqpretry/publish"},
}

func TestImportArrows(t *testing.T) {
	graph := load(t)
	for _, rule := range rules {
		from := module + "/" + rule.from
		if _, ok := graph[from]; !ok {
			continue // a package that is still to come
		}
		for _, dep := range graph[from].Deps {
			if dep != from && below(dep, rule.not) && !below(dep, allowed[rule.from]) {
				t.Errorf("%s must not import %s: %s\n\tit does through %s", from, dep, rule.why, path(graph, from, dep))
			}
		}
	}
	for _, mustExist := range []string{
		"config", "config/policyfile", "retry", "internal/engine", "internal/header", "middleware",
		"middleware/metrics", "middleware/protect", "middleware/retrytest", "amqpretry", "amqpretry/amqpretryv3",
		"amqpretry/topology", "amqpretry/delay", "amqpretry/publish", "internal/delayed", "internal/publishing",
		"internal/retrier", "internal/codec", "internal/connection", "internal/republish", "internal/consumer",
		"internal/wire", "amqpretry/dlq", "amqpretry/dlqweb", "cmd/amqpretry",
	} {
		assert.Contains(t, graph, module+"/"+mustExist, "the rules must not run empty")
	}
}

func TestNoTestLibraryInTheLibrary(t *testing.T) {
	graph := load(t)
	for from, p := range graph {
		if !below(from, []string{module}) ||
			below(from, []string{module + "/internal/testkit", module + "/internal/versions", module + "/tests",
				storetest}) {
			continue
		}
		for _, dep := range p.Deps {
			if below(dep, testOnly) {
				t.Errorf("%s must not import %s, which is for tests only\n\tit does through %s", from, dep,
					path(graph, from, dep))
			}
		}
	}
}

// The check itself: every rule must be able to fail.
func TestBelow(t *testing.T) {
	assert.True(t, below(amqp091, []string{amqp091}))
	assert.True(t, below(watermill+"/message", []string{watermill}))
	assert.False(t, below(watermillAMQP+"/v2/pkg/amqp", []string{watermill}), "another module with the same beginning")
	assert.False(t, below("github.com/google/uuid", []string{amqp091, watermill}))
}

func below(path string, roots []string) bool {
	for _, root := range roots {
		if path == root || strings.HasPrefix(path, root+"/") {
			return true
		}
	}
	return false
}

// pkg is what go list says about one package: what it imports itself, and what it reaches in all.
type pkg struct {
	ImportPath string
	Imports    []string
	Deps       []string
}

// load returns the module's packages, without their tests, and all that they reach.
func load(t *testing.T) map[string]pkg {
	t.Helper()
	cmd := exec.Command("go", "list", "-deps", "-json=ImportPath,Imports,Deps", module+"/...")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	require.NoError(t, err, stderr.String())
	graph := map[string]pkg{}
	for decoder := json.NewDecoder(bytes.NewReader(out)); ; {
		var p pkg
		err := decoder.Decode(&p)
		if errors.Is(err, io.EOF) {
			return graph
		}
		require.NoError(t, err)
		graph[p.ImportPath] = p
	}
}

// path names one way from a package to another, for the error text.
func path(graph map[string]pkg, from, to string) string {
	way := []string{from}
	for from != to {
		i := slices.IndexFunc(graph[from].Imports, func(imported string) bool {
			return imported == to || slices.Contains(graph[imported].Deps, to)
		})
		from = graph[from].Imports[i]
		way = append(way, from)
	}
	return strings.Join(way, " → ")
}
