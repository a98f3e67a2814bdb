package sizecmd

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/cli"
)

const page = "../../../../docs/concepts/sizing.md"

// factor is how far off the page says that the model may be.
const factor = 2

func size(t *testing.T, args ...string) (code int, out, errs string) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	s := &cli.Session{In: strings.NewReader(""), Out: &stdout, Err: &stderr, Getenv: func(string) string { return "" }}
	code = cli.Run(t.Context(), s, append([]string{"size"}, args...), Command)

	return code, stdout.String(), stderr.String()
}

// figures are those of each way, by their names in JSON.
func figures(t *testing.T, args ...string) map[string]map[string]any {
	t.Helper()
	code, out, errs := size(t, append(args, "--json")...)
	require.Zero(t, code, errs)
	var found struct{ Ways []map[string]any }
	require.NoError(t, json.Unmarshal([]byte(out), &found))
	byName := map[string]map[string]any{}
	for _, way := range found.Ways {
		byName[way["way"].(string)] = way
	}

	return byName
}

// The page has what was measured, beside what the command computes for the same. Neither is far
// from the other.
func TestModelAgreesWithMeasurements(t *testing.T) {
	text, err := os.ReadFile(page)
	require.NoError(t, err)
	_, behind, found := strings.Cut(string(text), "\n## Computed and measured\n")
	require.True(t, found)
	points, unseen := 0, 0
	for line := range strings.Lines(behind) {
		cells := strings.Split(strings.Trim(line, "|\n"), "|")
		if len(cells) != 7 || !strings.Contains(line, "`--") {
			continue
		}
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		way, flags, figure := cells[0], strings.Trim(cells[1], "`"), strings.Trim(cells[2], "`")
		computed, ok := figures(t, strings.Fields(flags)...)[way][figure].(float64)
		require.True(t, ok, "%s %s", way, figure)
		assert.Equal(t, cells[5], round(computed), "computed: %s", line)
		var measured []float64
		for _, cell := range cells[3:5] {
			if cell != "" {
				value, err := strconv.ParseFloat(cell, 64)
				require.NoError(t, err, line)
				measured = append(measured, value)
			}
		}
		worse := slices.Max(measured)
		if figure == "ceiling_per_second" {
			worse = slices.Min(measured)
		}
		assert.LessOrEqual(t, max(computed/worse, worse/computed), float64(factor), line)
		points++
		if cells[6] == "no" {
			unseen++
		}
	}
	assert.GreaterOrEqual(t, points, 12)
	assert.GreaterOrEqual(t, unseen, 3, "points that no constant was taken from")
}

func TestFlowOfRetries(t *testing.T) {
	t.Parallel()
	// Of 100 failures a second, all fail again.
	all := figures(t, "--rate", "1000", "--failures", "10", "--queues", "4", "--delays", "1s,31s", "--services", "2")
	for _, way := range []string{"queues", "queues, classic", "shared", "ladder"} {
		assert.InDelta(t, 200, all[way]["retries_per_second"], 1e-9, way)
		assert.InDelta(t, 100, all[way]["dead_letters_per_second"], 1e-9, way)
		assert.InDelta(t, 3200, all[way]["waiting"], 1e-9, way)
		assert.InDelta(t, 4, all[way]["connections"], 0, way)
	}
	assert.NotContains(t, all, "cycle", "it has one delay")
	assert.InDelta(t, 25, all["queues"]["busiest_queue_per_second"], 1e-9)
	assert.InDelta(t, 100, all["shared"]["busiest_queue_per_second"], 1e-9)
	assert.InDelta(t, 200, all["ladder"]["busiest_queue_per_second"], 1e-9, "31 s passes the queue of 1 s")
	assert.InDelta(t, 4*(1+2+1), all["queues"]["queues"], 0, "main, retry and dead-letter queues")
	assert.InDelta(t, 4*(1+1)+2, all["shared"]["queues"], 0)
	assert.InDelta(t, 4*(1+1+1)+55, all["ladder"]["queues"], 0, "with landing queues")
	assert.InDelta(t, 16, all["queues"]["channels"], 0)
	assert.InDelta(t, 24, all["shared"]["channels"], 0)

	half := figures(t, "--rate", "1000", "--failures", "10", "--again", "50", "--delays", "1s,31s")["queues"]
	assert.InDelta(t, 150, half["retries_per_second"], 1e-9)
	assert.InDelta(t, 25, half["dead_letters_per_second"], 1e-9)
	assert.InDelta(t, 100+50*31, half["waiting"], 1e-9)
	assert.Contains(t, figures(t, "--delays", "1s"), "cycle")
}

func TestLimits(t *testing.T) {
	t.Parallel()
	code, out, _ := size(t, "--rate", "50000", "--failures", "50", "--queues", "100", "--delays", "1s")
	assert.Zero(t, code)
	assert.Contains(t, out, "\nshared: a retry queue gets 25000 retries/s and hands back ")
	assert.NotContains(t, out, "\nqueues: ")

	_, out, _ = size(t, "--queues", "1000")
	assert.Contains(t, out, "\nThe first way within the measured limits: shared\n",
		"not the one that may lose messages")

	_, out, _ = size(t, "--queues", "3000")
	assert.Contains(t, out, "\nqueues: 21000 quorum queues; measured up to ")
	assert.Contains(t, out, "\nshared: a service opens up to 6000 channels on a connection, which has 2047: ")
	assert.Contains(t, out, "\nNo way stays within the measured limits: ")
}

func TestRound(t *testing.T) {
	t.Parallel()
	for value, wanted := range map[float64]string{0: "0", 0.000089: "0.000089", 0.5: "0.5", 1.44: "1.4", 12: "12",
		99.4: "99", 99.7: "100", 1234.5: "1234", 1e9: "1000000000"} {
		assert.Equal(t, wanted, round(value))
	}
}

func TestWrongFlags(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "retry.yaml")
	require.NoError(t, os.WriteFile(file, []byte("topics: {off: {mode: off}}"), 0o600))
	code, _, errs := size(t, "--policies", file, "--topic", "off")
	assert.Equal(t, cli.ExitUsage, code)
	assert.Contains(t, errs, `--topic: wanted one whose policy retries, found "off" with the mode off`)
	for want, args := range map[string]string{
		"--rate: wanted 0 to 1000000000, found -1":        "--rate=-1",
		"--queues: wanted 1 to 1000000, found 0":          "--queues=0",
		"--waiting: wanted 0 to 1000000000000, found NaN": "--waiting=NaN",
		"--services: wanted 1 to 1000000, found 0":        "--services=0",
		"--failures: wanted 0 to 100, found 101":          "--failures=101",
		"Delays[0]: too short: must be at least 1ms":      "--delays=-1s",
	} {
		code, out, errs := size(t, args)
		assert.Equal(t, cli.ExitUsage, code, args)
		assert.Empty(t, out, args)
		assert.Contains(t, errs, want, args)
	}
}
