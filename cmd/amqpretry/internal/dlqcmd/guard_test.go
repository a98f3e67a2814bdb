package dlqcmd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/amqpretry/dlq"
	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/cli"
	"github.com/amqpretry/watermill-retry/config"
)

// A filter that every message matches is none, and must not be what lets a purge delete all.
func TestPurgeNeedsAFilterThatFilters(t *testing.T) {
	t.Chdir(t.TempDir())
	for _, args := range [][]string{
		{"--min-replays", "0"}, {"--never-replayed=false"}, {"--min-replays", "0", "--never-replayed=false"}, {},
		{"--error", ""}, {"--error-matches", ""}, {"--error", "", "--reason", "exhausted"}, {"--uuid", ""},
		{"--max-calls", "0"}, {"--json-field", ""}, {"--header", ""},
	} {
		f := orders(deadLetters(3)...)
		code, out, errs := f.run(t, nil, append([]string{"purge", "orders", "--yes"}, args...)...)
		assert.Equal(t, cli.ExitUsage, code, args)
		assert.Empty(t, out, args)
		assert.NotEmpty(t, errs, args)
		assert.Len(t, f.deadLetters, 3, args)
		assert.Zero(t, f.opened, args)
	}
	for _, args := range [][]string{{"--max-replays", "0"}, {"--reason", ""}, {"--topic", ""}, {"--min-calls", "1"}} {
		code, _, errs := orders(deadLetters(3)...).run(t, nil, append([]string{"purge", "orders", "--yes", "--no-undo"},
			args...)...)
		assert.Equal(t, cli.ExitOK, code, "%q: %s", args, errs)
	}
	code, _, _ := orders(deadLetters(3)...).run(t, nil, "purge", "orders", "--all", "--min-replays", "0", "--yes",
		"--no-undo")
	assert.Equal(t, cli.ExitOK, code)
}

// Empty texts would be taken for the default.
func TestEmptyTextsAreRefused(t *testing.T) {
	for _, args := range [][]string{
		{"list", "orders", "--error", ""}, {"list", "orders", "--error-matches", ""},
		{"list", "orders", "--dead-letter-queue", ""},
		{"replay", "orders", "--undo", ""}, {"replay", "orders", "--to", ""}, {"replay", "orders", "--body", ""},
	} {
		f := orders(deadLetters(1)...)
		code, _, errs := f.run(t, nil, args...)
		assert.Equal(t, cli.ExitUsage, code, args)
		assert.Contains(t, errs, args[2])
		assert.Contains(t, errs, "must not be empty")
		assert.Zero(t, f.opened)
	}
}

func TestUndoFilesAreFiles(t *testing.T) {
	t.Chdir(t.TempDir())
	for _, args := range [][]string{{"replay", "orders"}, {"move", "orders", "--to", "parked"},
		{"purge", "orders", "--all"}} {
		f := orders(deadLetters(1)...)
		code, _, errs := f.run(t, nil, append(args, "--yes", "--undo", "-")...)
		assert.Equal(t, cli.ExitUsage, code)
		assert.Contains(t, errs, "--undo: must be a file")
		assert.Zero(t, f.opened)
		assert.NoFileExists(t, "-")
	}
}

// An address has a password.
func TestAnAddressIsNoQueue(t *testing.T) {
	const address = "://user:s3cret@host/"
	for _, scheme := range []string{"amqp", "amqps", "AMQP"} {
		for _, args := range [][]string{
			{"replay", "orders", "--to", scheme + address}, {"move", "orders", "--to", scheme + address},
			{"import", "orders", "f.jsonl", "--to", scheme + address}, {"replay", scheme + address},
			{"list", scheme + address},
			{"purge", "orders", "--all", "--dead-letter-queue", scheme + address},
		} {
			f := orders(deadLetters(1)...)
			code, out, errs := f.run(t, nil, append(args, "--json")...)
			assert.Equal(t, cli.ExitUsage, code, args)
			assert.Contains(t, errs, "found an address instead of a queue")
			assert.NotContains(t, out+errs, "s3cret")
			assert.NotContains(t, out+errs, "host")
			assert.Zero(t, f.opened)
		}
	}
}

// Where the queue was not seen to its end nobody knows how many match.
func TestHowManyMatch(t *testing.T) {
	t.Chdir(t.TempDir())
	code, out, errs := orders(deadLetters(30)...).run(t, nil, "replay", "orders", "--yes", "--no-undo", "--limit", "10")
	assert.Equal(t, cli.ExitOK, code, errs)
	assert.Equal(t, "orders.dlq: 10 replayed to orders (--limit)\n", out)

	_, out, _ = orders(deadLetters(30)...).run(t, nil, "replay", "orders", "--yes", "--no-undo", "--limit", "31")
	assert.Equal(t, "orders.dlq: 30 of 30 matching messages replayed to orders\n", out)

	f := orders(deadLetters(30)...)
	f.deadLetters[29].Queue = "invoices" // behind the last that can go
	code, out, _ = f.run(t, terminal("y\n"), "replay", "orders", "--no-undo")
	assert.Equal(t, cli.ExitIncomplete, code)
	assert.Contains(t, out, "orders.dlq: 29 of 30 matching messages replayed to orders\nLEFT  WHY")

	_, out, _ = orders(deadLetters(30)...).run(t, terminal("y\n"), "purge", "orders", "--all", "--no-undo", "--limit",
		"10")
	assert.Contains(t, out, "orders.dlq: 10 purged (--limit)\n")

	for args, known := range map[string]bool{"--yes": true, "--yes --limit 10": false, "--yes --limit 31": true,
		"--limit 10": true} {
		_, out, _ = orders(deadLetters(30)...).run(t, nil,
			append([]string{"purge", "orders", "--all", "--json", "--no-undo"}, strings.Fields(args)...)...)
		var report map[string]any
		require.NoError(t, json.Unmarshal([]byte(out), &report))
		matched, has := report["matched"]
		assert.Equal(t, known, has, args)
		if has {
			assert.InDelta(t, 30, matched, 0, args)
		}
	}

	f = orders(deadLetters(30)...)
	f.failAfter, f.failWith = 0, errBroken
	_, out, _ = f.run(t, nil, "purge", "orders", "--json", "--all", "--yes", "--no-undo")
	assert.NotContains(t, out, "matched")
}

// A command that is printed to be pasted goes to the same virtual host.
func TestUndoNamesTheVirtualHost(t *testing.T) {
	t.Chdir(t.TempDir())
	_, _, errs := orders(deadLetters(3)...).run(t, nil, "replay", "orders", "--yes", "--undo", "a", "--vhost", "it's")
	assert.Contains(t, errs, `amqpretry dlq import '--vhost=it'\''s' --yes orders a`)
	_, _, errs = orders(deadLetters(3)...).run(t, nil, "move", "orders", "--to", "orders", "--vhost", "v2")
	assert.Contains(t, errs, "amqpretry dlq replay --vhost=v2 orders")
}

// What was on its way when a run has ended is told, and what an import of the undo file would make
// of it.
func TestUnsettled(t *testing.T) {
	t.Chdir(t.TempDir())
	run := func(done int, args ...string) (out, errs string) {
		f := orders(deadLetters(1500)...)
		f.failAfter, f.failWith, f.unsettled = done, errBroken, 200
		code, out, errs := f.run(t, nil, append(args, "--yes")...)
		assert.Equal(t, cli.ExitFailed, code)
		return out, errs
	}
	out, errs := run(1300, "replay", "orders", "--undo", "a")
	assert.Equal(t, "orders.dlq: 1,300 replayed to orders\n"+
		"200 more may be in both queues: they were sent to orders, and their removal from orders.dlq is not "+
		"confirmed; the next run sends them again\n", out)
	assert.Contains(t, errs, "back into orders.dlq (those in orders stay): amqpretry dlq import --yes orders a\n"+
		"Up to 200 of its last messages are still in orders.dlq: an import would duplicate them\n")

	f := orders(deadLetters(1500)...)
	f.failAfter, f.failWith, f.refused = 1300, errBroken, 29
	_, out, errs = f.run(t, nil, "replay", "orders", "--undo", "e", "--yes")
	assert.Equal(t, "orders.dlq: 1,300 replayed to orders\n29 more were rejected by orders, which is full: they are "+
		"still in orders.dlq\n", out)
	assert.Contains(t, errs, "Up to 29 of its last messages are still in orders.dlq")
	f = orders(deadLetters(1500)...)
	f.failAfter, f.failWith, f.refused = 1300, errBroken, 29
	_, out, _ = f.run(t, nil, "park", "orders", "--never-replayed", "--note", "x", "--yes")
	assert.Contains(t, out, "\n29 more were rejected by orders.dlq, which is full: they are still in orders.dlq\n")

	f = orders(deadLetters(1500)...)
	f.failAfter, f.failWith, f.unsettled, f.undoRoom = 1300, errBroken, 200, 13
	_, _, errs = f.run(t, nil, "replay", "orders", "--undo", "full", "--yes")
	assert.Contains(t, errs, "Up to 13 of its last messages are still in orders.dlq", "the disk had no room for more")

	out, _ = run(1, "move", "orders", "--to", "parked", "--undo", "b")
	assert.Contains(t, out, "200 more may be in both queues: they were sent to parked, and")
	out, _ = run(1, "purge", "orders", "--all", "--undo", "c")
	assert.Contains(t, out, "1 purged\n200 more are in the undo file: their removal from orders.dlq is not "+
		"confirmed\n")
	out, _ = run(1, "purge", "orders", "--all", "--undo", "d", "--json")
	assert.Contains(t, out, `"unsettled": 200`)
}

// An undo file of a run that has taken nothing out puts nothing back.
func TestUndoFileOfARunThatDidNothing(t *testing.T) {
	note := (&operation{}).undoNote(orders(), outcome{Report: dlq.Report{Unsettled: 3}}, "u", nil)
	assert.Equal(t, "Undo file: u. All its messages are still in orders.dlq: an import would duplicate them",
		note)
	assert.NotContains(t, note, "puts")
}

func TestInterruptedRunsAreNamedSo(t *testing.T) {
	t.Chdir(t.TempDir())
	for _, args := range [][]string{{"replay", "orders"}, {"move", "orders", "--to", "parked"},
		{"purge", "orders", "--all"}} {
		for undo, text := range map[string]string{
			"--undo=" + args[0]:              "run the same command with another --undo file to continue\n",
			"--no-undo":                      "; run the same command to continue\n",
			"--dead-letter-queue=orders.dlq": "; run the same command to continue\n",
		} {
			ctx, cancel := context.WithCancel(t.Context())
			f := orders(deadLetters(10)...)
			f.after = func(int) { cancel() }
			code, out, errs := f.run(t, func(w *world) { w.ctx = ctx }, append(args, "--yes", undo)...)
			assert.Equal(t, cli.ExitInterrupted, code, args)
			assert.Contains(t, out, "orders.dlq: 1 ")
			assert.Contains(t, errs, text)
		}
	}
}

// Nobody is told that messages are where they were when they are not.
func TestInterruptedRunThatHasChangedTheOrder(t *testing.T) {
	err := interrupted(&undoFlags{}, "",
		errors.Join(context.Canceled, &dlq.OrderError{Queue: "orders.dlq", Left: 9}))
	assert.EqualError(t, err, "interrupted: the remaining messages are in the queue, in another order; run the same "+
		"command to continue")
}

// What package dlq says of its options is said of the flags.
func TestOptionsAreFlags(t *testing.T) {
	wrong := func(field, wanted string) error { return &config.FieldError{Path: field, Wanted: wanted, Found: "9"} }
	f := orders(deadLetters(1)...)
	f.failWith = fmt.Errorf("x: %w",
		errors.Join(wrong("Plan.Canary.Watch", "0 (1 minute) to 25m, as RabbitMQ takes back"),
			wrong("Filter.Fields[0].Path", "at most MaxReplays (2)")))
	code, _, errs := f.run(t, nil, "replay", "orders", "--yes", "--no-undo")
	assert.Equal(t, cli.ExitUsage, code)
	assert.Contains(t, errs, "amqpretry: --watch: must be 0 (1 minute) to 25m, as RabbitMQ takes back, got "+
		"9\n--json-field: must be at most --max-replays (2), got 9\n")

	code, _, errs = f.run(t, nil, "list", "orders", "--min-calls", "3", "--max-calls", "2")
	assert.Equal(t, cli.ExitUsage, code)
	assert.Contains(t, errs, "amqpretry: --min-calls: must be at most --max-calls (2), got 3\n")
}

// Nothing but a header would look like an empty queue.
func TestListThatFailsAtOnce(t *testing.T) {
	f := orders(deadLetters(1)...)
	f.browseWith = errBroken
	code, out, errs := f.run(t, nil, "list", "orders")
	assert.Equal(t, cli.ExitFailed, code)
	assert.Empty(t, out)
	assert.Contains(t, errs, "amqpretry: the broker has gone away\n")
}

func TestHeaderThatNoMessageHad(t *testing.T) {
	f := orders(deadLetters(3)...)
	delete(f.deadLetters[0].Message.Headers, "tenant")
	code, errs := edit(t, f, nil, "--edit-all", "--remove-header", "tenent", "--remove-header", "tenant")
	assert.Equal(t, cli.ExitOK, code)
	assert.Contains(t, errs, "--remove-header tenent: none of the 3 messages had it\n")
	assert.NotContains(t, errs, "tenant:")
	assert.Len(t, f.published, 3)
}

func TestNamesOfHeadersAreCheckedFirst(t *testing.T) {
	long := strings.Repeat("x", 256)
	for _, args := range [][]string{
		{"--set-header", long + "=1"}, {"--set-header", "=1"}, {"--set-header", "a"}, {"--remove-header", long},
		{"--remove-header", ""}, {"--edit-all"}, {"--set-header", "x-death=1"},
	} {
		f := orders(deadLetters(1)...)
		code, errs := edit(t, f, nil, args...)
		assert.Equal(t, cli.ExitUsage, code, args)
		assert.Less(t, len(errs), 250)
		assert.Zero(t, f.opened, "before a broker is asked")
	}
	f := orders(deadLetters(1)...)
	code, errs := edit(t, f, nil, "--set-header", long[:255]+"=1")
	assert.Equal(t, cli.ExitOK, code, errs)
}

// The work of a person must not be thrown away.
func TestNoEditorForADryRun(t *testing.T) {
	for _, args := range [][]string{{}, {"--dry-run"}, {"--json"}} {
		for _, set := range []func(*world){nil, terminal("")} {
			if len(args) == 0 && set != nil {
				continue // it is asked there
			}
			f := orders(deadLetters(1)...)
			code, _, errs := f.run(t, func(w *world) {
				if set != nil {
					set(w)
				}
				w.Getenv = environment(map[string]string{"EDITOR": "false"})
			}, append([]string{"replay", "orders", "--edit"}, args...)...)
			assert.Equal(t, cli.ExitUsage, code)
			assert.Contains(t, errs, "--edit: a dry run would discard the edit")
			assert.Zero(t, f.opened)
		}
	}
}

// An editor draws on the terminal: it gets the output itself, not a pipe to it.
func TestEditorHasTheOutput(t *testing.T) {
	out, err := os.Create(t.TempDir() + "/out")
	require.NoError(t, err)
	defer out.Close()
	f := orders(deadLetters(1)...)
	code, errs := edit(t, f, func(w *world) {
		w.Out = out
		w.Getenv = environment(
			map[string]string{"EDITOR": `sh -c '[ -f /dev/stdout ] && echo "{\"n\":9}" > "$1"' editor`})
	}, "--edit")
	assert.Equal(t, cli.ExitOK, code, errs)
	require.Len(t, f.published, 1)
	assert.JSONEq(t, `{"n":9}`, string(f.published[0].Body))
}

// What is printed to be typed can be typed: a shell makes the same words of it.
func TestTyped(t *testing.T) {
	assert.Equal(t, "orders undo.jsonl", typed(nil, "orders", "undo.jsonl"))
	assert.Equal(t, "-- -dash undo.jsonl", typed(nil, "-dash", "undo.jsonl"))
	assert.Equal(t, "--dead-letter-queue -grave -- orders -u", typed([]string{"--dead-letter-queue", "-grave"},
		"orders", "-u"))
	assert.Equal(t, `'it'\''s' $'a\033[2J\'\\\0121'`, typed(nil, "it's", "a\x1b[2J'\\\n1"))

	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Skip("there is no bash")
	}
	for _, word := range []string{"orders", "it's", "a b", "", "$x`y`", "a\x1b[2J'\\\n1é", "\u202e7", "\xff8", "é", "~",
		"#", "*"} {
		said, err := exec.CommandContext(t.Context(), bash, "-c", "printf %s "+typed(nil, word)).Output()
		require.NoError(t, err)
		assert.Equal(t, word, string(said))
		assert.Equal(t, cli.Safe(quote(word)), quote(word), "and it does nothing to a terminal")
	}
}

func TestUndoHintCanBeTyped(t *testing.T) {
	t.Chdir(t.TempDir())
	_, _, errs := orders(deadLetters(1)...).run(t, nil, "purge", "--all", "--yes", "--undo", "u", "--", "-dash")
	assert.Contains(t, errs, ": amqpretry dlq import --yes -- -dash u\n")
	_, _, errs = orders(deadLetters(1)...).run(t, nil, "purge", "a\x1b]0;x", "--all", "--yes", "--undo", "v")
	assert.Contains(t, errs, `: amqpretry dlq import --yes $'a\033]0;x' v`+"\n")
	assert.FileExists(t, "v")
	_, err := os.Stat("u")
	assert.NoError(t, err)
}
