package topologycmd

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/cli"
)

func TestGolden(t *testing.T) {
	file := []string{"--policies", "testdata/policies.yaml"}
	with := func(args ...string) []string { return append(args, file...) }
	for name, args := range map[string][]string{
		"plan":           with("plan", "--offline", "orders", "events=events_billing", "shared", "dead", "off"),
		"plan-json":      with("plan", "--offline", "--json", "orders"),
		"plan-default":   {"plan", "--offline", "orders"},
		"mermaid":        with("graph", "orders"),
		"mermaid-shared": with("graph", "shared", "--shared-name", "team"),
		"dot":            with("graph", "--format", "dot", "orders", "dead"),
		"text":           with("graph", "--format", "text", "orders"),
		"graph-json":     with("graph", "--json", "orders"),
		"definitions": with("graph", "--format", "definitions", "--vhost", "v 1", "orders",
			"events=events_billing"),
		"exact":         {"plan", "--offline", "--policies", "testdata/exact.yaml", "orders", "payments"},
		"exact-mermaid": {"graph", "--policies", "testdata/exact.yaml", "orders"},
		"strategies": {"plan", "--offline", "--policies", "testdata/strategies.yaml", "cycle", "redelivery",
			"linear"},
		"strategies-json": {"plan", "--offline", "--json", "--policies", "testdata/strategies.yaml", "redelivery"},
		"strategies-mermaid": {"graph", "--policies", "testdata/strategies.yaml", "cycle", "classic", "redelivery",
			"native", "linear"},
		"strategies-dot": {"graph", "--format", "dot", "--policies", "testdata/strategies.yaml", "cycle"},
		"strategies-definitions": {"graph", "--format", "definitions", "--policies", "testdata/strategies.yaml",
			"cycle", "redelivery", "native", "policy"},
		"operator": with("export", "--format", "operator", "--cluster", "rabbit", "--cluster-namespace", "brokers",
			"--namespace", "shop", "orders", "events=Events_1"),
		"terraform": with("export", "--format", "terraform", "--vhost", "v1", "orders", "shared"),
		"export-policy": {"export", "--format", "operator", "--cluster", "rabbit", "--policies",
			"testdata/strategies.yaml", "policy"},
		"definitions-quorum": with("graph", "--format", "definitions", "--main-queue-type", "quorum", "dead"),
	} {
		t.Run(name, func(t *testing.T) {
			d := offline(t, args...)
			assert.Equal(t, cli.ExitOK, d.code, d.errs)
			assert.Empty(t, d.errs)
			golden(t, name, d.out)
			if strings.HasPrefix(name, "definitions") || strings.HasSuffix(name, "json") {
				assert.True(t, json.Valid([]byte(d.out)))
			}
		})
	}
}

// Names that mean something to a terminal, to Mermaid, to DOT and to shells.
func TestOddNames(t *testing.T) {
	for _, name := range []string{`a b`, `a"b'c\`, "a\x1b[2Jb\u009b\u202e", `$(rm -rf ~)`, "日本", "--yes", "a=b"} {
		for _, args := range [][]string{
			{"plan", "--offline"}, {"plan", "--offline", "--json"}, {"graph"},
			{"graph", "--format", "dot"}, {"graph", "--format", "text"},
		} {
			d := offline(t, append(args, "--", "topic="+name)...)
			assert.Equal(t, cli.ExitOK, d.code, d.errs)
			for _, unsafe := range []string{"\x1b", "\u009b", "\u202e"} {
				assert.NotContains(t, d.out, unsafe, "%v %q", args, name)
			}
		}
	}
}

func TestUsage(t *testing.T) {
	bad := policyFile(t, "default: {delays: [0s, 1µs]}\ntopics: {x: {bogus: 1}}\n")
	for name, test := range map[string]struct {
		args []string
		code int
		errs []string
	}{
		"no command":      {nil, cli.ExitUsage, []string{"Available Commands:"}},
		"unknown command": {[]string{"aply"}, cli.ExitUsage, []string{`"aply"`, "apply?"}},
		"no queue":        {[]string{"plan", "--offline"}, cli.ExitUsage, []string{"no queue: wanted"}},
		"no broker":       {[]string{"plan", "orders"}, cli.ExitUsage, []string{"AMQP_URI"}},
		"all names":       {[]string{"graph", "a\nb", "amq.x"}, cli.ExitUsage, []string{"line break", "amq."}},
		"collision":       {[]string{"graph", "orders", "orders.dlq"}, cli.ExitUsage, []string{"orders.dlq"}},
		"two policies": {[]string{"graph", "--policies", "testdata/policies.yaml", "orders", "dead=orders"},
			cli.ExitUsage, []string{"two different topologies"}},
		"all errors": {[]string{"graph", "--policies", bad, "orders"}, cli.ExitFailed,
			[]string{"default.delays[0]", "default.delays[1]", "bogus"}},
		"format": {[]string{"graph", "--format", "svg", "orders"}, cli.ExitUsage,
			[]string{"mermaid, dot, text, definitions", `"svg"`}},
		"export format": {[]string{"export", "--format", "yaml", "orders"}, cli.ExitUsage,
			[]string{"definitions, operator, terraform", `"yaml"`}},
		"export type": {[]string{"export", "--main-queue-type", "stream", "orders"}, cli.ExitUsage,
			[]string{"classic, quorum"}},
		"no cluster": {[]string{"export", "--format", "operator", "orders"}, cli.ExitUsage, []string{"set --cluster"}},
		"cluster for Terraform": {[]string{"export", "--format", "terraform", "--cluster", "x", "orders"},
			cli.ExitUsage, []string{"--cluster is for --format operator"}},
		"Terraform's IDs": {[]string{"export", "--format", "terraform", "a@b", "c/d", "e\u0301"}, cli.ExitFailed,
			[]string{`by @; use others, or another format: "a@b.retry", "a@b"`, `by /;`, `"c/d.retry.1s"`,
				"normalizes combining characters; "}},
		"no file": {[]string{"verify", "--against", "none.yaml", "--against", bad, "orders"}, cli.ExitFailed,
			[]string{"none.yaml"}},
		"type": {[]string{"graph", "--main-queue-type", "stream", "orders"}, cli.ExitUsage,
			[]string{"classic, quorum"}},
		"prune without API": {[]string{"prune", "orders"}, cli.ExitUsage,
			[]string{"AMQP_MANAGEMENT_URL", "--management-url"}},
		"old file": {[]string{"prune", "--old-policies", bad, "orders"}, cli.ExitFailed, []string{"bogus"}},
		"API is not one": {[]string{"prune", "--management-url", "ftp://user:s3cret@host", "orders"},
			cli.ExitFailed, []string{"scheme"}},
		"broker is down": {[]string{"plan", "--uri", "amqp://user:s3cret@127.0.0.1:1/", "orders"}, cli.ExitFailed,
			[]string{"cannot connect to RabbitMQ", "127.0.0.1:1"}},
		"API is down": {[]string{"prune", "--management-url", "http://user:s3cret@127.0.0.1:1", "orders"},
			cli.ExitFailed, []string{"no answer", "rabbitmq_management"}},
		"apply, down": {[]string{"apply", "--uri", "amqp://user:s3cret@127.0.0.1:1/", "orders"}, cli.ExitFailed,
			[]string{"cannot connect to RabbitMQ"}},
		"address as a queue": {[]string{"verify", "amqp://user:s3cret@host"}, cli.ExitUsage,
			[]string{"found an address instead of a queue"}},
	} {
		t.Run(name, func(t *testing.T) {
			d := offline(t, test.args...)
			assert.Equal(t, test.code, d.code, d.errs)
			assert.Empty(t, d.out)
			assert.NotContains(t, d.errs, "s3cret")
			for _, text := range test.errs {
				assert.Contains(t, d.errs, text)
			}
		})
	}
}
