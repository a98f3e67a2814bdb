package dlqcmd

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/amqpretry/dlq"
	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/cli"
)

func TestWithoutYesNothingIsDone(t *testing.T) {
	t.Chdir(t.TempDir())
	for _, args := range [][]string{
		{"replay", "orders"}, {"replay", "orders", "--dry-run"}, {"replay", "orders", "--json"},
		{"replay", "orders", "--limit", "2"}, {"purge", "orders", "--all"}, {"move", "orders", "--to", "parked"},
	} {
		f := orders(deadLetters(3)...)
		code, out, errs := f.run(t, nil, args...)
		assert.Equal(t, cli.ExitOK, code, args)
		assert.Zero(t, f.runs, args)
		assert.Len(t, f.deadLetters, 3)
		assert.Contains(t, out, "3")
		assert.Contains(t, errs, "This was a dry run: nothing was ")
	}
	files, err := os.ReadDir(".")
	require.NoError(t, err)
	assert.Empty(t, files, "nor is there an undo file")
}

func TestDryRunSaysWhatCannotGo(t *testing.T) {
	f := orders(deadLetters(1200)...)
	for i := range 30 {
		f.deadLetters[i].Queue = "invoices"
	}
	f.deadLetters[40].Unreadable = "x-odd"
	code, out, errs := f.run(t, nil, "replay", "orders", "--older-than", "10m", "--limit", "100")
	assert.Equal(t, cli.ExitOK, code)
	assert.Equal(t, `orders.dlq: 1,200 messages, of which 1,190 match; 1,169 can be replayed to orders, 100 by --limit
CANNOT  WHY                          WHAT TO DO
20      failed by another queue      --foreign replays them too; check that this is the right queue
1       headers that cannot be read  they can only be shown and counted
`, out)
	assert.Equal(t, "This was a dry run: nothing was replayed. --yes does it.\n", errs)

	code, out, errs = f.run(t, nil, "replay", "orders", "--to", "elsewhere", "--foreign", "--json", "--dry-run")
	assert.Equal(t, cli.ExitOK, code)
	assert.JSONEq(t,
		`{"queue": "orders.dlq", "main_queue": "orders", "to": "elsewhere", "dry_run": true, "total": 1200, "seen": 1200, "matched": 1200, "done": 0, "unsettled": 0, "refused": 0, "hidden": 0, "consumers": 0,
		"left": [{"why": "headers that cannot be read", "messages": 1}], "run": "RUN"}`, out)
	assert.Contains(t, errs, "dry run")
}

func TestNothingMatches(t *testing.T) {
	t.Chdir(t.TempDir())
	for _, set := range []func(*world){nil, terminal("y\n")} {
		for _, yes := range []string{"--yes", "--dry-run"} {
			f := orders(deadLetters(3)...)
			code, out, errs := f.run(t, set, "purge", "orders", "--uuid", "nobody", yes)
			assert.Equal(t, cli.ExitOK, code)
			assert.Contains(t, out, "orders.dlq: ")
			assert.Contains(t, out, "match")
			assert.NotContains(t, errs, "?")
		}
	}
	files, err := os.ReadDir(".")
	require.NoError(t, err)
	assert.Empty(t, files, "an undo file that is empty is removed")
}

func TestTheTerminalIsAsked(t *testing.T) {
	t.Chdir(t.TempDir())
	f := orders(deadLetters(3)...)
	code, out, errs := f.run(t, terminal("n\n"), "purge", "orders", "--older-than", "90s")
	assert.Equal(t, cli.ExitFailed, code)
	assert.Equal(t, "orders.dlq: 3 messages, of which 2 match; 2 can be purged\n", out)
	assert.Contains(t, errs, "Purge 2 messages? [y/N] ")
	assert.Contains(t, errs, "nothing was done")
	assert.Zero(t, f.runs)

	code, out, errs = f.run(t, terminal("y\n"), "replay", "orders", "--older-than", "90s", "--to", "repair")
	assert.Equal(t, cli.ExitOK, code)
	assert.Contains(t, errs, "Replay 2 messages to repair? [y/N] ")
	assert.Contains(t, out, "orders.dlq: 2 of 2 matching messages replayed to repair\n")
	assert.Len(t, f.deadLetters, 1)
}

// What has come between the question and the answer was not in the question.
func TestOnlyWhatWasShownIsDone(t *testing.T) {
	t.Chdir(t.TempDir())
	f := orders(deadLetters(3)...)
	code, out, _ := f.run(t, func(w *world) {
		terminal("")(w)
		w.In = readerFunc(func(p []byte) (int, error) {
			f.deadLetters = append(f.deadLetters, deadLetter(4))
			return copy(p, "y\n"), nil
		})
	}, "purge", "orders", "--all")
	assert.Equal(t, cli.ExitOK, code)
	assert.Contains(t, out, "3 of 3 matching messages purged")
	assert.Len(t, f.deadLetters, 1)
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

func TestYesDoesIt(t *testing.T) {
	for _, test := range []struct {
		args []string
		says string
	}{
		{[]string{"replay", "orders", "--yes"}, "orders.dlq: 3 of 3 matching messages replayed to orders\n"},
		{[]string{"purge", "orders", "--all", "--yes"}, "orders.dlq: 3 of 3 matching messages purged\n"},
		{[]string{"move", "orders", "--to", "parked", "--yes"},
			"orders.dlq: 3 of 3 matching messages moved to parked\n"},
	} {
		t.Run(test.args[0], func(t *testing.T) {
			t.Chdir(t.TempDir())
			f := orders(deadLetters(3)...)
			code, out, errs := f.run(t, nil, test.args...)
			assert.Equal(t, cli.ExitOK, code)
			assert.Equal(t, test.says, out)
			assert.Empty(t, f.deadLetters)
			assert.Equal(t, 1, f.runs)

			undo := "orders.dlq-" + test.args[0] + "-20261122T051200Z.jsonl"
			what := map[string]string{
				"purge": "", "replay": " (those in orders stay)", "move": " (those in parked stay)",
			}[test.args[0]]
			assert.Equal(t, "Undo file: "+undo+". To put copies back into orders.dlq"+what+
				": amqpretry dlq import --yes orders "+undo+"\n", errs)
			assert.Equal(t, 3, strings.Count(read(t, undo), "\n"))
			info, err := os.Stat(undo)
			require.NoError(t, err)
			assert.Equal(t, os.FileMode(0o600), info.Mode(), "nobody else may read what is in messages")

			f = orders(deadLetters(1)...)
			code, _, errs = f.run(t, nil, append(test.args, "--no-undo")...)
			assert.Equal(t, cli.ExitOK, code)
			assert.Empty(t, errs)
			f = orders(deadLetters(1)...)
			code, _, errs = f.run(t, nil, append(test.args, "--undo", "it's mine.jsonl", "--dead-letter-queue",
				"grave")...)
			assert.Equal(t, cli.ExitOK, code)
			assert.Contains(t, errs, `: amqpretry dlq import --dead-letter-queue grave --yes orders 'it'\''s mine.jsonl'`)
		})
	}
}

func TestUndoFileThatCannotBe(t *testing.T) {
	t.Chdir(t.TempDir())
	write(t, "mine.jsonl", "dear")
	for path, text := range map[string]string{
		"mine.jsonl": "mine.jsonl already exists", "no/such/folder.jsonl": "no such file or directory",
		".": "exists",
	} {
		f := orders(deadLetters(3)...)
		code, out, errs := f.run(t, nil, "purge", "orders", "--all", "--yes", "--undo", path)
		assert.NotEqual(t, cli.ExitOK, code)
		assert.Empty(t, out)
		assert.Contains(t, errs, text)
		assert.Contains(t, errs, `nothing was removed from "orders.dlq"`)
		assert.Zero(t, f.runs, "before anything is touched")
	}
	assert.Equal(t, "dear", read(t, "mine.jsonl"))
}

func TestTwoRunsInOneSecond(t *testing.T) {
	t.Chdir(t.TempDir())
	for _, name := range []string{"orders.dlq-purge-20261122T051200Z.jsonl",
		"orders.dlq-purge-20261122T051200Z-2.jsonl", "orders.dlq-purge-20261122T051200Z-3.jsonl"} {
		code, _, errs := orders(deadLetters(1)...).run(t, nil, "purge", "orders", "--all", "--yes")
		assert.Equal(t, cli.ExitOK, code)
		assert.Contains(t, errs, name)
	}
}

func TestNamesOfQueuesInFileNames(t *testing.T) {
	for queue, want := range map[string]string{
		"orders.dlq":  "orders.dlq-purge-20261122T051200Z.jsonl",
		"../../etc/x": "_.._etc_x-purge-20261122T051200Z.jsonl", "-rf /": "rf_-purge-20261122T051200Z.jsonl",
		"": "-purge-20261122T051200Z.jsonl", strings.Repeat("é", 120): "_-purge-20261122T051200Z.jsonl",
	} {
		assert.Equal(t, want, undoName(queue, "purge", now, ""), queue)
	}
	assert.Less(t, len(undoName(strings.Repeat("x", 255), "replay", now, "-99")), 255)
}

func TestUndoFileThatCannotGoOn(t *testing.T) {
	t.Chdir(t.TempDir())
	f := orders(deadLetters(10)...)
	f.failAfter, f.failWith = 4, fmt.Errorf("cannot write what is exported: %w", os.ErrClosed)
	code, out, errs := f.run(t, nil, "purge", "orders", "--all", "--yes")
	assert.Equal(t, cli.ExitFailed, code)
	assert.Equal(t, "orders.dlq: 4 purged\n", out, "what was done is told, and not how many match, which is not known")
	assert.Contains(t, errs, "cannot write what is exported")
	assert.Contains(t, errs, "Undo file: ", "and where it is")
	assert.Len(t, f.deadLetters, 6)
}

func TestLeftIsIncomplete(t *testing.T) {
	t.Chdir(t.TempDir())
	f := orders(deadLetters(3)...)
	f.deadLetters[1].Queue = "invoices"
	code, out, _ := f.run(t, nil, "replay", "orders", "--yes")
	assert.Equal(t, cli.ExitIncomplete, code)
	assert.Equal(t, `orders.dlq: 2 of 3 matching messages replayed to orders
LEFT  WHY                      WHAT TO DO
1     failed by another queue  --foreign replays them too; check that this is the right queue
`, out)
	code, _, _ = f.run(t, nil, "replay", "orders", "--yes", "--foreign")
	assert.Equal(t, cli.ExitOK, code)
}

func TestCanary(t *testing.T) {
	t.Chdir(t.TempDir())
	f := orders(deadLetters(10)...)
	f.deadAgain = 2
	code, out, _ := f.run(t, nil, "replay", "orders", "--yes", "--canary", "3", "--tolerate", "1", "--watch", "30s",
		"--rate", "600/m")
	assert.Equal(t, cli.ExitIncomplete, code)
	assert.Equal(t, dlq.Canary{Messages: 3, Watch: 30 * time.Second, Tolerate: 1}, f.replayed.Canary,
		"without a terminal nobody is told of changes")
	assert.InDelta(t, 10, f.replayed.Rate, 1e-9)
	assert.Contains(t, out, "Canary: 1 of 3 handled, 2 failed again. The other messages were not sent\n")
	assert.Len(t, f.deadLetters, 7)

	code, out, _ = f.run(t, nil, "replay", "orders", "--yes", "--canary", "3", "--json")
	assert.Equal(t, cli.ExitIncomplete, code)
	var report map[string]any
	require.NoError(t, json.Unmarshal([]byte(out), &report))
	canary := map[string]any{"sent": 3.0, "handled": 1.0, "dead_lettered": 2.0, "dropped": 0.0, "unresolved": 0.0,
		"retried": 0.0, "watched": true, "stopped": "1 of 3 handled, 2 failed again"}
	assert.Equal(t, canary, report["canary"])
	assert.NotEmpty(t, report["undo"])

	f.deadAgain = 0
	code, out, _ = f.run(t, nil, "replay", "orders", "--yes", "--canary", "1")
	assert.Equal(t, cli.ExitOK, code)
	assert.Contains(t, out, "Canary: 1 of 1 handled\n")
	assert.Equal(t, 15*time.Minute, f.replayed.Watch)

	f = orders(deadLetters(10)...)
	f.silent = true
	code, out, _ = f.run(t, nil, "replay", "orders", "--yes", "--canary", "2")
	assert.Equal(t, cli.ExitIncomplete, code, "not known to be handled is not handled")
	assert.Contains(t, out, "Canary: 0 of 2 handled, 2 without a result yet. The other messages were not sent\n")
	assert.Len(t, f.deadLetters, 8)
}

func TestCanaryLine(t *testing.T) {
	t.Parallel()
	assert.Equal(t, "Canary: 4 of 10 handled, 6 without a result yet when it was interrupted. The other messages were "+
		"not sent",
		canaryLine(dlq.CanaryReport{Sent: 10, Handled: 4, Unresolved: 6, Watched: true,
			Stopped: "4 of 10 handled, 6 without a " +
				"result yet when it was interrupted"}))
	assert.Equal(t, "Canary: 4 of 5 handled, 1 without a result yet",
		canaryLine(dlq.CanaryReport{Sent: 5, Handled: 4, Unresolved: 1, Watched: true}), "one was tolerated")
	assert.Equal(t, "Canary: not watched, because no other messages were to follow",
		canaryLine(dlq.CanaryReport{Sent: 5}))
}

// On a terminal somebody waits for it.
func TestCanaryIsTold(t *testing.T) {
	t.Chdir(t.TempDir())
	onTerminal := func(w *world) { w.ErrIsTerminal = true }
	_, _, errs := orders(deadLetters(10)...).run(t, onTerminal, "replay", "orders", "--yes", "--canary", "2")
	assert.Contains(t, errs, "Canary: 2 of 2 handled\n")
	_, _, errs = orders(deadLetters(10)...).run(t, onTerminal, "replay", "orders", "--yes", "--canary", "2", "--json")
	assert.NotContains(t, errs, "Canary")
}

func TestInterrupt(t *testing.T) {
	t.Chdir(t.TempDir())
	ctx, cancel := context.WithCancel(t.Context())
	f := orders(deadLetters(10)...)
	f.after = func(done int) {
		if done == 4 {
			cancel()
		}
	}
	code, out, errs := f.run(t, func(w *world) { w.ctx = ctx }, "replay", "orders", "--yes")
	assert.Equal(t, cli.ExitInterrupted, code)
	assert.Equal(t, "orders.dlq: 4 replayed to orders\n", out)
	assert.Contains(t, errs, "interrupted: the remaining messages are still in the queue; run the same "+
		"command to continue\n")
	assert.Contains(t, errs, "Undo file: ")
	assert.Len(t, f.deadLetters, 6)
}

func TestWhereTheyMayNotGo(t *testing.T) {
	f := orders(deadLetters(1)...)
	for _, args := range [][]string{{"replay", "orders", "--to", "orders.dlq"},
		{"move", "orders", "--to", "orders.dlq"}, {"move", "orders", "--to", "orders"}} {
		code, _, errs := f.run(t, nil, append(args, "--yes")...)
		assert.Equal(t, cli.ExitUsage, code)
		assert.Contains(t, errs, "--to: ")
	}
	assert.Zero(t, f.runs)

	f.missing = "nowhere"
	code, out, errs := f.run(t, nil, "replay", "orders", "--to", "nowhere", "--yes", "--no-undo")
	assert.Equal(t, cli.ExitFailed, code)
	assert.Empty(t, out, "there is nothing to tell of a run that has not begun")
	assert.Contains(t, errs, `target "nowhere": there is no such queue`)
}

func TestUndoFileOfARunThatFailsAtOnceIsRemoved(t *testing.T) {
	dir := t.TempDir()
	f := orders(deadLetters(1)...)
	f.missing = "nowhere"
	_, _, _ = f.run(t, nil, "replay", "orders", "--to", "nowhere", "--yes", "--undo", filepath.Join(dir, "u"))
	assert.NoFileExists(t, filepath.Join(dir, "u"))
}
