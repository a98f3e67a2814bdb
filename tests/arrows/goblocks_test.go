package arrows

import (
	"errors"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

const (
	wmModule  = "github.com/ThreeDotsLabs/watermill"
	ourModule = "github.com/amqpretry/watermill-retry"
)

// usual are the packages that a block uses without importing them, by the name that it uses.
var usual = map[string]string{
	"amqp": wmModule + "-amqp/v2/pkg/amqp", "message": wmModule + "/message", "watermill": wmModule,
	"wmmiddleware": wmModule + "/message/router/middleware", "plugin": wmModule + "/message/router/plugin",
	"delay": wmModule + "/components/delay", "amqpdelay": ourModule + "/config/delay",
	"cqrs":      wmModule + "/components/cqrs",
	"forwarder": wmModule + "/components/forwarder", "amqp091": "github.com/rabbitmq/amqp091-go",
	"prometheus": "github.com/prometheus/client_golang/prometheus",
	"promhttp":   "github.com/prometheus/client_golang/prometheus/promhttp", "gobreaker": "github.com/sony/gobreaker",
	"amqpretry": ourModule + "/amqpretry", "amqpv2": ourModule + "/amqpretry/amqpv2",
	"amqpv3":    ourModule + "/amqpretry/amqpv3",
	"health":    ourModule + "/amqpretry/health",
	"processor": ourModule + "/amqpretry/processor", "management": ourModule + "/amqpretry/management",
	"topology": ourModule + "/config/topology",
	"publish":  ourModule + "/config/publish",
	"dlq":      ourModule + "/amqpretry/dlq", "dlqweb": ourModule + "/amqpretry/dlqweb", "slog": "log/slog",
	"config": ourModule + "/config", "policyfile": ourModule + "/config/policyfile", "retry": ourModule + "/retry",
	"middleware": ourModule + "/middleware", "metrics": ourModule + "/middleware/metrics",
	"tracing": ourModule + "/middleware/tracing", "otel": "go.opentelemetry.io/otel",
	"sdktrace": "go.opentelemetry.io/otel/sdk/trace", "propagation": "go.opentelemetry.io/otel/propagation",
	"protect": ourModule + "/middleware/protect", "store": ourModule + "/middleware/protect/store",
	"math": "math", "retrytest": ourModule + "/middleware/retrytest",
	"context": "context", "errors": "errors", "fmt": "fmt", "http": "net/http", "io": "io", "json": "encoding/json",
	"log": "log", "os": "os", "signal": "os/signal", "slices": "slices", "sql": "database/sql", "strings": "strings",
	"syscall": "syscall", "testing": "testing", "time": "time", "tls": "crypto/tls", "fs": "io/fs",
	"rate": "golang.org/x/time/rate", "synctest": "testing/synctest",
	"require": "github.com/stretchr/testify/require", "assert": "github.com/stretchr/testify/assert",
}

// given are the variables that a block may use without declaring them, and the functions of the
// reader's own.
const given = `
var (
	ctx        context.Context
	uri        string
	conf       amqp.Config
	logger     watermill.LoggerAdapter
	router     *message.Router
	retrier    *amqpv2.Retrier
	subscriber message.Subscriber
	publisher  message.Publisher
	policies   config.Policies
	policy     config.Policy
	options    amqpretry.Options
	handler    *message.Handler
	msg        *message.Message
	messages   []*message.Message
	err        error
	client     *dlq.Client
	undoFile   *os.File
	current    []topology.Plan
	old        []topology.Plan
	t          *testing.T
	db         *sql.DB
	inbox      store.Inbox
	txInbox    store.TxInbox
	shared     store.Values
	registry   *prometheus.Registry
	traced     *tracing.Tracing
	measured   *metrics.Metrics
	exporter   sdktrace.SpanExporter
	bank       interface {
		Charge(ctx context.Context, payload []byte) error
	}
	errCardExpired, errRateLimited, errAlreadyCharged, errNotYetOpen, errDraft error
)

func ship(*message.Message) error { return nil }
func alarm(any ...any)      {}
func file(any ...any) error { return nil }
`

// A block of Go in README or the docs compiles: as a file, as declarations, or as statements of a
// function.
func TestGoBlocksCompile(t *testing.T) {
	t.Parallel()

	packages := imported(t)
	fence := regexp.MustCompile("(?ms)^```go\n(.*?)^```$")
	blocks := 0
	walk(t, ".md", func(path, text string) {
		for _, at := range fence.FindAllStringSubmatchIndex(text, -1) {
			blocks++
			line := strings.Count(text[:at[0]], "\n") + 1
			for _, problem := range packages.compile(text[at[2]:at[3]]) {
				assert.Fail(t, "a Go block does not compile", "%s:%d: %s", path, line, problem)
			}
		}
	})
	assert.Greater(t, blocks, 25)
	assert.NotEmpty(t, packages.compile("retrier.Clothe()\n"), "a mistake is found")
	assert.NotEmpty(t, packages.compile("retrier := amqpv2.New(conf)\n"), "a mistake is found")
}

// packages are those that blocks import. They are read once for all blocks.
type packages struct {
	set *token.FileSet
	types.Importer
}

func imported(t *testing.T) packages {
	t.Helper()
	arguments := []string{"-export", "-f", "{{.ImportPath}} {{.Export}}"}
	exports := map[string]string{}
	for line := range strings.Lines(listed(t, slices.AppendSeq(arguments, maps.Values(usual))...)) {
		path, export, _ := strings.Cut(strings.TrimSpace(line), " ")
		exports[path] = export
	}
	set := token.NewFileSet()

	return packages{set, importer.ForCompiler(set, "gc", func(path string) (io.ReadCloser, error) {
		if exports[path] == "" {
			return nil, fmt.Errorf("no package %s", path)
		}

		return os.Open(exports[path])
	})}
}

// compile returns what is wrong with a block.
func (p packages) compile(block string) (problems []string) {
	best := []string{"it is neither a file, nor declarations, nor statements"}
	for _, source := range []string{
		block,
		"package p\n" + block + given,
		"package p\nfunc _() error {\n" + block + "\nreturn nil\n}\n" + given,
		"package p\nvar _ = " + block + given,
	} {
		problems, parsed := p.check(source)
		if len(problems) == 0 {
			return nil
		}
		if parsed {
			best = problems
		}
	}

	return best
}

func (p packages) check(source string) (problems []string, parsed bool) {
	syntax, err := parser.ParseFile(p.set, "block.go", source, parser.SkipObjectResolution)
	if err != nil {
		return []string{err.Error()}, false
	}
	imports := importsOf(syntax)
	if imports != "" { // they stand behind the package clause
		head, rest, _ := strings.Cut(source[p.set.Position(syntax.Name.Pos()).Offset:], "\n")
		if syntax, err = parser.ParseFile(p.set, "block.go", "package "+head+imports+"\n"+rest, 0); err != nil {
			return []string{err.Error()}, false
		}
	}
	conf := types.Config{
		Importer: p,
		Error: func(err error) {
			// What is declared and not used, or imported and not used, is used by what comes after
			// the block.
			var problem types.Error
			if errors.As(err, &problem) && !problem.Soft {
				problems = append(problems, problem.Msg)
			}
		},
	}
	_, _ = conf.Check("p", p.set, []*ast.File{syntax}, nil)

	return problems, true
}

// importsOf imports the usual packages that a file uses and does not import.
func importsOf(file *ast.File) string {
	if len(file.Imports) > 0 {
		return ""
	}
	var imports strings.Builder
	seen := map[string]bool{}
	ast.Inspect(file, func(n ast.Node) bool {
		selector, ok := n.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		name, ok := selector.X.(*ast.Ident)
		if ok && usual[name.Name] != "" && !seen[name.Name] {
			seen[name.Name] = true
			fmt.Fprintf(&imports, "; import %s %q", name.Name, usual[name.Name])
		}

		return true
	})

	return imports.String()
}
