package simulate

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/cli"
	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/config/policyfile"
	"github.com/amqpretry/watermill-retry/internal/header"
)

var update = flag.Bool("update", false, "write the golden files")

func simulate(t *testing.T, args ...string) (code int, out, errs string) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	s := &cli.Session{
		In: strings.NewReader(""), Out: &stdout, Err: &stderr, Getenv: func(string) string { return "" },
		Now: func() time.Time { return time.Date(2026, 1, 31, 12, 0, 0, 123456789, time.UTC) },
	}
	code = cli.Run(t.Context(), s, append([]string{"simulate"}, args...), Command)

	return code, stdout.String(), stderr.String()
}

func TestGolden(t *testing.T) {
	file := []string{"--policies", "testdata/policies.yaml"}
	for name, args := range map[string][]string{
		"default":       nil,
		"jitter":        append(file, "--topic", "orders"),
		"plain":         append(file, "--topic", "plain", "--queue", "plain.q", "--headers"),
		"shared":        append(file, "--topic", "shared", "--shared-name", "team"),
		"expiring":      append(file, "--topic", "expiring"),
		"dropping":      append(file, "--topic", "dropping"),
		"never":         append(file, "--topic", "never"),
		"never-type":    append(file, "--topic", "never", "--error-type", "*fs.PathError", "--headers"),
		"only-type":     append(file, "--topic", "only", "--error-type", "*fs.PathError"),
		"only-other":    append(file, "--topic", "only", "--error-type", "*net.OpError"),
		"dead":          append(file, "--topic", "dead"),
		"off":           append(file, "--topic", "off"),
		"off-json":      append(file, "--topic", "off", "--json"),
		"succeed":       {"--succeed-at", "3"},
		"permanent":     {"--permanent-at", "2", "--error", "no such \x1b[2J customer"},
		"expiration":    {"--expiration", "10s", "--handler-time", "200ms"},
		"headers":       {"--headers", "--succeed-at", "2", "--at", "2026-02-01T00:00:00+01:00"},
		"json":          {"--json", "--succeed-at", "2"},
		"json-jitter":   append(file, "--topic", "orders", "--json", "--permanent-at", "2"),
		"first-success": {"--succeed-at", "1"},
		"exact":         append(file, "--topic", "exact"),
		"exact-jitter":  append(file, "--topic", "exact-jitter"),
		"exact-after": append(file, "--topic", "exact", "--retry-after", "37s", "--postpone", "90500ms",
			"--permanent-at", "3"),
		"cycle":                  append(file, "--topic", "cycle", "--headers"),
		"cycle-postpone":         append(file, "--topic", "cycle", "--postpone", "30s"),
		"cycle-expiration":       append(file, "--topic", "cycle", "--expiration", "1h"),
		"redelivery":             append(file, "--topic", "redelivery", "--handler-time", "200ms", "--headers"),
		"redelivery-json":        append(file, "--topic", "redelivery", "--succeed-at", "2", "--json"),
		"redelivery-after":       append(file, "--topic", "redelivery", "--retry-after", "37s"),
		"redelivery-postpone":    append(file, "--topic", "redelivery", "--postpone", "1s", "--headers"),
		"redelivery-permanent":   append(file, "--topic", "redelivery", "--permanent-at", "3"),
		"redelivery-often":       append(file, "--topic", "often"),
		"redelivery-expiration":  append(file, "--topic", "redelivery", "--expiration", "5s"),
		"redelivery-age":         append(file, "--topic", "aged"),
		"native":                 append(file, "--topic", "native"),
		"native-linear":          append(file, "--topic", "linear"),
		"native-linear-postpone": append(file, "--topic", "linear", "--postpone", "10s"),
		"tiers-after":            append(file, "--topic", "plain", "--retry-after", "37s", "--postpone", "90500ms"),
	} {
		t.Run(name, func(t *testing.T) {
			code, out, errs := simulate(t, args...)
			assert.Equal(t, cli.ExitOK, code, errs)
			assert.Empty(t, errs)
			golden := filepath.Join("testdata", name+".golden")
			if *update {
				require.NoError(t, os.WriteFile(golden, []byte(out), 0o600))
			}
			wanted, err := os.ReadFile(golden)
			require.NoError(t, err)
			assert.Equal(t, string(wanted), out)
		})
	}
}

// Whatever the policy, the times are those of its schedule.
func TestTimesAreThoseOfTheSchedule(t *testing.T) {
	policies, err := policyfile.Load("testdata/policies.yaml")
	require.NoError(t, err)
	for _, topic := range []string{"orders", "plain", "shared", "never", "exact"} {
		policy := policies.For(topic)
		code, out, errs := simulate(t, "--policies", "testdata/policies.yaml", "--topic", topic, "--json")
		require.Equal(t, cli.ExitOK, code, errs)
		var life struct {
			Steps []struct {
				Wait int64             `json:"wait_ms"`
				Own  map[string]string `json:"headers"`
			}
			Total int64 `json:"total_ms"`
		}
		require.NoError(t, json.Unmarshal([]byte(out), &life))
		var waits []time.Duration
		for _, s := range life.Steps {
			if s.Wait > 0 {
				waits = append(waits, time.Duration(s.Wait)*time.Millisecond)
				assert.Equal(t, config.FormatDelay(waits[len(waits)-1]), s.Own[header.Delay])
			}
		}
		assert.Equal(t, policy.Schedule(), waits)
		assert.Equal(t, policy.TotalWait().Milliseconds(), life.Total)
		assert.Equal(t, "-1", life.Steps[len(life.Steps)-1].Own[header.Count])
	}
}

// The broker's waits are those of the strategy: none, or the policy's.
func TestTimesUnderStrategies(t *testing.T) {
	for topic, wanted := range map[string]struct{ total, broker, copies int64 }{
		"cycle":      {90_000, 3, 1},
		"redelivery": {0, 3, 1},
		"often":      {60_000, 19, 2}, // one copy in between, and the dead letter
		"aged":       {7_000, 0, 4},
		"native":     {30_000, 3, 1},
		"linear":     {60_000, 3, 1},
	} {
		code, out, errs := simulate(t, "--policies", "testdata/policies.yaml", "--topic", topic, "--json")
		require.Equal(t, cli.ExitOK, code, errs)
		var life timeline
		require.NoError(t, json.Unmarshal([]byte(out), &life))
		assert.Equal(t, wanted.total, int64(life.Total), topic)
		assert.Equal(t, life.Total, life.ShortestTotal, topic)
		var broker, copies, waits int64
		for _, s := range life.Steps {
			assert.Equal(t, waits, int64(s.After), topic)
			waits += int64(s.Wait)
			if s.By == byBroker {
				broker++
				assert.Empty(t, s.Headers, topic)
			} else {
				copies++
				assert.Equal(t, byCopy, s.By, topic)
				assert.NotEmpty(t, s.Headers, topic)
			}
		}
		assert.Equal(t, []int64{wanted.total, wanted.broker, wanted.copies}, []int64{waits, broker, copies}, topic)
	}
}

func TestLongPolicies(t *testing.T) {
	file := filepath.Join(t.TempDir(), "long.yaml")
	require.NoError(t, os.WriteFile(file, []byte("default: {retries: 1000, delays: [1ms, 87600h]}\n"), 0o600))
	code, out, errs := simulate(t, "--policies", file)
	assert.Equal(t, cli.ExitOK, code, errs)
	assert.Contains(t, out, "1001 calls of the handler")
}

func TestUsage(t *testing.T) {
	bad := filepath.Join(t.TempDir(), "bad.yaml")
	require.NoError(t, os.WriteFile(bad, []byte("default: {delays: [0s]}\ntopics: {x: {bogus: 1}}\n"), 0o600))
	for name, test := range map[string]struct {
		args []string
		code int
		errs []string
	}{
		"beyond the last attempt": {[]string{"--succeed-at", "7"}, cli.ExitUsage,
			[]string{"--succeed-at: wanted 1 to 6", `topic "orders"`, "found 7"}},
		"before the first": {[]string{"--permanent-at", "-1"}, cli.ExitUsage, []string{"--permanent-at"}},
		"time":             {[]string{"--at", "noon"}, cli.ExitUsage, []string{"2026-01-31T12:00:00Z", `"noon"`}},
		"expiration":       {[]string{"--expiration", "-1s"}, cli.ExitUsage, []string{"--expiration"}},
		"handler":          {[]string{"--handler-time", "-1s"}, cli.ExitUsage, []string{"--handler-time"}},
		"retry after":      {[]string{"--retry-after", "-1s"}, cli.ExitUsage, []string{"--retry-after"}},
		"postpone":         {[]string{"--postpone", "-1s"}, cli.ExitUsage, []string{"--postpone"}},
		"no topic":         {[]string{"--topic", ""}, cli.ExitUsage, []string{"--topic"}},
		"an argument":      {[]string{"orders"}, cli.ExitUsage, []string{`"orders"`}},
		"a bad name":       {[]string{"--queue", "a\nb"}, cli.ExitUsage, []string{"line break"}},
		"a bad file":       {[]string{"--policies", bad}, cli.ExitFailed, []string{"bad.yaml:1", "bad.yaml:2"}},
		"no file":          {[]string{"--policies", "/nowhere"}, cli.ExitFailed, []string{"/nowhere"}},
	} {
		t.Run(name, func(t *testing.T) {
			code, out, errs := simulate(t, test.args...)
			assert.Equal(t, test.code, code)
			assert.Empty(t, out)
			for _, text := range test.errs {
				assert.Contains(t, errs, text)
			}
		})
	}
}
