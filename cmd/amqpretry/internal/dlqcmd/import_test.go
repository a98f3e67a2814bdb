package dlqcmd

import (
	"fmt"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/amqpretry/dlq"
	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/cli"
	"github.com/amqpretry/watermill-retry/internal/testkit/brokertest"
)

// one imports f.jsonl, and gives the lines that it has imported.
func one(t *testing.T, f *fake, args ...string) (code int, imported, errs string) {
	t.Helper()
	before := len(f.imported)
	code, _, errs = f.run(t, nil, append([]string{"import", "orders", "f.jsonl"}, args...)...)
	for _, line := range f.imported[before:] {
		imported += line + "\n"
	}

	return code, imported, errs
}

// An import into another place is another import: not taken for the first one, nor begun unasked.
func TestImportToAnotherPlaceIsAnotherImport(t *testing.T) {
	t.Chdir(t.TempDir())
	write(t, "f.jsonl", numbered(3))
	f := orders()
	code, imported, errs := one(t, f)
	assert.Equal(t, cli.ExitOK, code, errs)
	assert.Equal(t, numbered(3), imported)
	for _, place := range [][]string{{"--to", "parked"}, {"--reason", "exhausted"}} {
		code, imported, errs := one(t, f, place...)
		assert.Equal(t, cli.ExitUsage, code)
		assert.Contains(t, errs, "3 lines of f.jsonl were imported by another import, which is finished: queue")
		assert.Empty(t, imported)
		code, imported, errs = one(t, f, append(place, "--restart")...)
		assert.Equal(t, cli.ExitOK, code, errs)
		assert.Equal(t, numbered(3), imported)
		code, _, errs = one(t, f, place...)
		assert.Equal(t, cli.ExitUsage, code)
		assert.Contains(t, errs, "f.jsonl was already imported at ")
	}
	code, imported, errs = one(t, f)
	assert.Equal(t, cli.ExitUsage, code)
	assert.Contains(t, errs, "another import")
	assert.Empty(t, imported)
}

// A file whose end is missing is imported up to there, and goes on there when it has come.
func TestImportOfAFileThatIsCompleted(t *testing.T) {
	t.Chdir(t.TempDir())
	write(t, "f.jsonl", numbered(2)+`{"n":`)
	f := orders()
	for i := range 2 {
		code, imported, errs := one(t, f)
		assert.Equal(t, cli.ExitIncomplete, code)
		assert.Equal(t, []string{numbered(2), ""}[i], imported)
		assert.Contains(t, errs, "2 lines of f.jsonl imported; the same command continues after them")
	}
	write(t, "f.jsonl", numbered(4))
	code, imported, errs := one(t, f)
	assert.Equal(t, cli.ExitOK, code, errs)
	assert.Equal(t, "{\"n\":3}\n{\"n\":4}\n", imported)

	write(t, "f.jsonl", numbered(4)+"\n  \n")
	code, _, errs = one(t, f)
	assert.Equal(t, cli.ExitUsage, code, "blanks are no messages")
	assert.Contains(t, errs, "f.jsonl was already imported at ")

	write(t, "f.jsonl", numbered(5))
	code, imported, errs = one(t, f)
	assert.Equal(t, cli.ExitOK, code, errs)
	assert.Equal(t, "{\"n\":5}\n", imported, "what was appended to a file that was imported")
}

// What is not imported yet may change: a bad line is fixed, others are taken out.
func TestImportOfAFileThatIsFixed(t *testing.T) {
	t.Chdir(t.TempDir())
	write(t, "f.jsonl", numbered(2)+"bad\n{\"n\":4}\n")
	f := orders()
	f.failAfter, f.failWith = 2, &dlq.LineError{Line: 3, Err: errBroken}
	code, _, errs := one(t, f)
	assert.Equal(t, cli.ExitFailed, code)
	assert.Contains(t, errs, "line 3: ")
	f.failWith = nil

	for name, text := range map[string]string{
		"another line": strings.Replace(numbered(4), "2", "7", 1), "one less": "{\"n\":1}\n", "one more": "\n" +
			numbered(4), "nothing": "",
	} {
		write(t, "f.jsonl", text)
		code, imported, errs := one(t, f)
		assert.Equal(t, cli.ExitUsage, code, name)
		assert.Contains(t, errs,
			`f.jsonl.imported says that the first 2 lines of f.jsonl were imported into queue "orders.dlq" of rabbit@one, but these lines have changed since`, name)
		assert.Contains(t, errs, "import the whole file with --restart", name)
		assert.Empty(t, imported, name)
	}

	write(t, "f.jsonl", numbered(5))
	code, imported, errs := one(t, f)
	assert.Equal(t, cli.ExitOK, code)
	assert.Equal(t, "f.jsonl: continues after line 2, as recorded in f.jsonl.imported\n", errs)
	assert.Equal(t, strings.TrimPrefix(numbered(5), numbered(2)), imported)

	write(t, "f.jsonl", strings.Replace(numbered(5), "2", "7", 1))
	code, imported, errs = one(t, f)
	assert.Equal(t, cli.ExitUsage, code)
	assert.Contains(t, errs, "these lines have changed since, or it is another file")
	assert.Empty(t, imported)
	code, imported, errs = one(t, f, "--restart")
	assert.Equal(t, cli.ExitOK, code, errs)
	assert.Equal(t, read(t, "f.jsonl"), imported)
}

func TestImportThatBeginsAnew(t *testing.T) {
	t.Chdir(t.TempDir())
	write(t, "f.jsonl", numbered(4))
	f := orders()
	f.failAfter, f.failWith = 2, errBroken
	_, _, _ = one(t, f)
	f.failWith = nil
	code, imported, errs := one(t, f, "--restart")
	assert.Equal(t, cli.ExitOK, code, errs)
	assert.Equal(t, numbered(4), imported)

	// Once more, and interrupted: it goes on like the first time.
	f.failAfter, f.failWith = 1, errBroken
	code, imported, errs = one(t, f, "--restart")
	assert.Equal(t, cli.ExitFailed, code)
	assert.Equal(t, numbered(1), imported)
	assert.Contains(t, errs, "1 line of f.jsonl imported; the same command without --restart continues after them")
	f.failWith = nil
	code, imported, errs = one(t, f)
	assert.Equal(t, cli.ExitOK, code, errs)
	assert.Equal(t, strings.TrimPrefix(numbered(4), numbered(1)), imported)

	// One that is to do it once more, and does not come to it, has forgotten nothing.
	f.failAfter, f.failWith = 0, errBroken
	code, _, _ = one(t, f, "--restart")
	assert.Equal(t, cli.ExitFailed, code)
	f.failWith = nil
	code, imported, errs = one(t, f)
	assert.Equal(t, cli.ExitUsage, code)
	assert.Contains(t, errs, "f.jsonl was already imported at ")
	assert.Empty(t, imported)
}

func TestImportOfWhatIsNoExport(t *testing.T) {
	t.Chdir(t.TempDir())
	for text, wanted := range map[string]string{
		"\x1f\x8b\x08\x00rest": "f.jsonl is compressed by gzip. Unpacked it can be read: gunzip -c f.jsonl | " +
			"amqpretry dlq import orders -",
		"PK\x03\x04":             `f.jsonl is no export: wanted a JSON object in each line, which begins with {, found "PK\x03\x04"`,
		"uuid,reason\n1,2\n":     `f.jsonl is no export`,
		"\ufeff \n[1]":           `f.jsonl is no export`,
		"\x1b[31m" + numbered(2): `found "\x1b[31m{`,
	} {
		write(t, "f.jsonl", text)
		for _, args := range [][]string{nil, {"--dry-run"}} {
			f := orders()
			code, imported, errs := one(t, f, args...)
			assert.Equal(t, cli.ExitFailed, code, "%q", text)
			assert.Contains(t, errs, wanted)
			assert.Empty(t, imported)
			assert.NoFileExists(t, "f.jsonl.imported")
		}
	}
	code, _, errs := orders().run(t, func(w *world) {
		w.In = strings.NewReader("\x1f\x8b\x08")
	}, "import", "orders", "-")
	assert.Equal(t, cli.ExitFailed, code)
	assert.Contains(t, errs, "gunzip | amqpretry dlq import orders -")

	for _, text := range []string{"", "\n", "\n \n" + numbered(1), "\ufeff" + numbered(1)} {
		write(t, "f.jsonl", text)
		code, _, errs := one(t, orders(), "--dry-run")
		assert.Equal(t, cli.ExitOK, code, errs)
	}
}

// Such as on a full disk.
func TestCheckpointThatFailsLeavesNothing(t *testing.T) {
	t.Chdir(t.TempDir())
	write(t, "f.jsonl", numbered(2))
	f := orders()
	f.after = func(done int) {
		if done == 1 { // nothing can take its place
			require.NoError(t, os.Remove("f.jsonl.imported"))
			require.NoError(t, os.Mkdir("f.jsonl.imported", 0o700))
			write(t, "f.jsonl.imported/it", "")
		}
	}
	code, imported, errs := one(t, f)
	assert.Equal(t, cli.ExitFailed, code)
	assert.Contains(t, errs, "cannot record the progress")
	assert.Equal(t, numbered(2), imported)
	assert.NoFileExists(t, "f.jsonl.imported.tmp")
}

// A line is done with its line feed or without, however long it is.
func TestLineHash(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 10_000)
	whole := long + "\n\n" + long + "\n" + long + "\n" + "rest"
	sums := map[string]int{}
	for lines := range 6 {
		p := newLineHash(strings.NewReader(whole))
		require.NoError(t, p.to(lines))
		assert.NotContains(t, sums, p.sum())
		sums[p.sum()] = lines
		assert.Equal(t, lines < 5, p.more())
	}
	step := newLineHash(strings.NewReader(whole + "\n"))
	for lines := range 6 {
		require.NoError(t, step.to(lines))
		assert.Equal(t, lines, sums[step.sum()], "in steps it is the same, and with a line feed at the end")
	}
	require.ErrorIs(t, step.to(6), io.EOF)
}

// With the lines of real messages, which are read for what they are.
func TestImportFixedOnABroker(t *testing.T) {
	t.Parallel()
	p := onBroker(t, brokertest.URI(t))
	p.fill(p.main, 0, 10)
	file := p.file("x.jsonl")
	p.ok("export", p.main, "-o", file)
	whole := read(t, file)
	lines := strings.SplitAfter(whole, "\n")
	until := func(n int) string { return strings.Join(lines[:n], "") }
	steps := []struct {
		text           string
		code, imported int
		says           string
	}{
		{"garbage without an end", cli.ExitFailed, 0, "is no export"},
		{lines[0][:40], cli.ExitIncomplete, 0, ""},
		{until(3) + lines[3][:40], cli.ExitIncomplete, 3, "3 lines of "},
		{until(3) + "garbage", cli.ExitFailed, 3, "line 4: "},
		{until(3) + strings.Replace(lines[3], `"v":1`, `"v":2`, 1) + strings.Join(lines[4:], ""), cli.ExitFailed, 3,
			"line 4: "},
		{until(3) + strings.TrimSpace(strings.Replace(lines[3], `"v":1`, `"v":2`, 1)), cli.ExitFailed, 3, "line 4: "},
		{strings.TrimSpace(until(6)), cli.ExitOK, 6, ""},
		{until(6), cli.ExitUsage, 6, " was already imported at "},
		{until(8) + lines[8][:1], cli.ExitIncomplete, 8, "8 lines of "},
		{whole, cli.ExitOK, 10, "continues after line 8"},
		{whole, cli.ExitUsage, 10, " was already imported at "},
	}
	for i, step := range steps {
		write(t, file, step.text)
		code, _, errs := p.run(nil, "import", p.main, file, "--to", p.other)
		require.Equal(t, step.code, code, "step %d: %s", i, errs)
		require.Contains(t, errs, step.says, i)
		p.Has(p.other, step.imported)
	}
	for i, d := range p.bodies(p.other, 10) {
		require.Equal(t, fmt.Sprintf(`{"n":%d}`, i), string(d.Body))
	}
}
