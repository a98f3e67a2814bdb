package doctor

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/cli"
	"github.com/amqpretry/watermill-retry/internal/shell"
)

func TestTextForPeople(t *testing.T) {
	f := healthy(t)
	findings := sorted([]Finding{
		{Check: "version", Severity: OK, Object: broker, Found: "fine"},
		{Check: "bindings", Severity: Unseen, Object: broker, Found: "not seen: bindings (x)", Means: "nobody told"},
		{Check: "nodes", Severity: Unseen, Object: broker, Found: "not seen: nodes", Means: "nobody told"},
		{Check: "types", Severity: Note, Object: `main queue "a"`, Found: "classic", Means: "slow"},
		{Check: "exists", Severity: Problem, Object: `queue "b"`, Found: "gone\x1b[31m", Means: "lost",
			Fix: "# first\nmake it"},
		{Check: "dead-letters", Severity: Warning, Object: `main queue "a"`, Found: "7", Means: "lost",
			Fix: "# first\nmake it"},
		{Check: "policies", Severity: Warning, Object: `main queue "a"`, Found: "8", Means: "look", Fix: "act"},
		{Check: "overflow", Severity: Warning, Object: `main queue "a"`, Found: "9", Means: "look", Fix: "act"},
	})
	assert.Equal(t, `RabbitMQ 4.0.5, virtual host /, user service

queue "b"
  problem, exists: gone\x1b[31m
    means: lost
    fix:
      # first
      make it

main queue "a"
  warning, dead-letters: 7
    means: as for queue "b"
    fix: as for queue "b"
  warning, policies: 8
    means: look
    fix:
      act
  warning, overflow: 9
    means: as above
    fix: as above
  note, types: classic
    means: slow

not checked: bindings (x); nodes
  because: nobody told

1 problem, 3 warnings, 1 note; 1 check without findings; `+"incomplete checks: bindings, nodes (stuck, landing: up to 10s old)\n", text(f, findings, plain))
}

func TestJSONForPrograms(t *testing.T) {
	f := healthy(t)
	var out bytes.Buffer
	require.NoError(t, report(&cli.Session{Out: &out, JSON: true}, f, diagnose(f)))
	var answer struct {
		Version     string         `json:"version"`
		VirtualHost string         `json:"virtual_host"`
		User        string         `json:"user"`
		Age         float64        `json:"statistics_age_seconds"`
		Counts      map[string]int `json:"counts"`
		Findings    []Finding      `json:"findings"`
	}
	decoder := json.NewDecoder(&out)
	decoder.DisallowUnknownFields()
	require.NoError(t, decoder.Decode(&answer))
	assert.Equal(t, map[string]int{"problem": 0, "warning": 0, "unseen": 0, "note": 2, "ok": len(checks) - 2},
		answer.Counts)
	assert.Len(t, answer.Findings, len(checks))
	assert.Equal(t, "/", answer.VirtualHost)
	assert.InDelta(t, 10, answer.Age, 0)
}

// A command never carries what a terminal acts upon.
func TestNamesThatATerminalActsUpon(t *testing.T) {
	for name, safe := range map[string]bool{"it's $(x)": true, "ünï": true, "a\x1b[31m": false, "a\u202eb": false,
		"a\x00": false} {
		f := Finding{Fix: "rabbitmqctl x " + shell.Quote(name) + "\n\tnext"}.tidy()
		assert.Equal(t, safe, strings.HasPrefix(f.Fix, "rabbitmqctl"), "%q", name)
		assert.Equal(t, safe, strings.HasSuffix(f.Fix, "\tnext"), "%q", name)
	}
}

func plain(_ cli.Style, text string) string { return text }
