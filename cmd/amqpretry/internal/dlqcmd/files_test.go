package dlqcmd

import (
	"bytes"
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

	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/cli"
	"github.com/amqpretry/watermill-retry/internal/file"
)

func TestExport(t *testing.T) {
	t.Chdir(t.TempDir())
	f := orders(deadLetters(3)...)
	code, out, errs := f.run(t, nil, "export", "orders", "--older-than", "90s")
	assert.Equal(t, cli.ExitOK, code)
	assert.Equal(t, 2, strings.Count(out, "\n"))
	assert.Equal(t, "orders.dlq: 2 of 3 messages exported\n", errs)

	code, direct, _ := f.run(t, nil, "export", "orders", "-o", "out.jsonl", "--older-than", "90s")
	assert.Equal(t, cli.ExitOK, code)
	assert.Empty(t, direct)
	assert.Equal(t, out, read(t, "out.jsonl"))
	info, err := os.Stat("out.jsonl")
	require.NoError(t, err)
	assert.Equal(t, os.FileMode(0o600), info.Mode())

	code, _, errs = f.run(t, nil, "export", "orders", "-o", "out.jsonl")
	assert.Equal(t, cli.ExitUsage, code)
	assert.Contains(t, errs, "out.jsonl exists; --force overwrites it")
	assert.Equal(t, out, read(t, "out.jsonl"))

	code, report, _ := f.run(t, nil, "export", "orders", "-o", "out.jsonl", "--force", "--json", "--limit", "1")
	assert.Equal(t, cli.ExitOK, code)
	assert.JSONEq(t, `{"queue": "orders.dlq", "file": "out.jsonl", "total": 3, "matched": 1, "done": 1}`, report)
	assert.Equal(t, 1, strings.Count(read(t, "out.jsonl"), "\n"))
	assert.Len(t, f.deadLetters, 3)
}

// What the shell makes is not ours to change.
func TestExportIntoAFileThatOthersCanRead(t *testing.T) {
	for mode, told := range map[os.FileMode]bool{0o600: false, 0o644: true, 0o640: true} {
		path := filepath.Join(t.TempDir(), "out")
		write(t, path, "")
		require.NoError(t, os.Chmod(path, mode))
		out, err := os.OpenFile(path, os.O_WRONLY, 0)
		require.NoError(t, err)
		var errs bytes.Buffer
		t2 := &tool{Session: &cli.Session{Out: out, Err: &errs}}
		t2.noteReaders()
		require.NoError(t, out.Close())
		assert.Equal(t, told, strings.Contains(errs.String(), "umask 077"), "%s: %s", mode, &errs)
	}
}

// In a folder of all, somebody may have put a link where the checkpoint is written first.
func TestCheckpointFollowsNoLink(t *testing.T) {
	t.Chdir(t.TempDir())
	write(t, "precious", "of somebody else")
	require.NoError(t, os.Symlink("precious", "f.imported.tmp"))
	require.NoError(t, os.Symlink("precious", "f.imported"))
	require.NoError(t, file.Replace(checkpointPath("f"), []byte("ours")))
	assert.Equal(t, "of somebody else", read(t, "precious"))
	assert.Equal(t, "ours", read(t, checkpointPath("f")))
}

func TestExportThatFailsLeavesNoFile(t *testing.T) {
	t.Chdir(t.TempDir())
	write(t, "old.jsonl", "old")
	f := orders(deadLetters(3)...)
	f.failAfter, f.failWith = 2, errBroken
	for _, args := range [][]string{{"-o", "new.jsonl"}, {"-o", "old.jsonl", "--force"}} {
		code, _, errs := f.run(t, nil, append([]string{"export", "orders"}, args...)...)
		assert.Equal(t, cli.ExitFailed, code)
		assert.Contains(t, errs, errBroken.Error())
	}
	files, err := os.ReadDir(".")
	require.NoError(t, err)
	require.Len(t, files, 1)
	assert.Equal(t, "old", read(t, "old.jsonl"))
}

func TestExportOverwritesNoDevices(t *testing.T) {
	t.Chdir(t.TempDir())
	require.NoError(t, os.Symlink("elsewhere", "link"))
	require.NoError(t, os.Mkdir("folder", 0o700))
	for _, path := range []string{"/dev/null", "link", "folder"} {
		code, _, errs := orders(deadLetters(1)...).run(t, nil, "export", "orders", "-o", path, "--force")
		assert.Equal(t, cli.ExitUsage, code)
		assert.Contains(t, errs, path+" is no regular file")
	}
	code, _, errs := orders(deadLetters(1)...).run(t, nil, "export", "orders", "-o", "no/folder")
	assert.Equal(t, cli.ExitFailed, code)
	assert.Contains(t, errs, "--output: ")
}

// A file that has appeared while the export was written is somebody's.
func TestExportOverwritesNothingThatAppears(t *testing.T) {
	t.Chdir(t.TempDir())
	write(t, "complete", "export")
	write(t, "taken", "theirs")
	require.Error(t, publish("complete", "taken", false))
	assert.Equal(t, "theirs", read(t, "taken"))
	require.NoError(t, publish("complete", "free", false))
	assert.Equal(t, "export", read(t, "free"))
	require.NoError(t, publish("complete", "taken", true))
	assert.Equal(t, "export", read(t, "taken"))
}

func numbered(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "{\"n\":%d}\n", i+1)
	}
	return b.String()
}

func marked(t *testing.T) checkpoint {
	t.Helper()
	var c checkpoint
	require.NoError(t, json.Unmarshal([]byte(read(t, checkpointPath("f.jsonl"))), &c))

	return c
}

func TestImport(t *testing.T) {
	t.Chdir(t.TempDir())
	write(t, "f.jsonl", numbered(3))
	f := orders()
	code, out, errs := f.run(t, nil, "import", "orders", "f.jsonl")
	assert.Equal(t, cli.ExitOK, code)
	assert.Equal(t, "f.jsonl: 3 messages, of which 3 match; 3 imported into orders.dlq\n", out)
	assert.Empty(t, errs)
	assert.Len(t, f.imported, 3)
	assert.True(t, marked(t).Finished)
	assert.Equal(t, 3, marked(t).Lines)

	code, out, errs = f.run(t, nil, "import", "orders", "f.jsonl")
	assert.Equal(t, cli.ExitUsage, code)
	assert.Empty(t, out)
	assert.Contains(t, errs,
		`f.jsonl was already imported at 2026-11-22T05:12:00Z (3 lines into queue "orders.dlq" of rabbit@one); --restart imports all its messages again`)
	assert.Len(t, f.imported, 3)

	code, out, _ = f.run(t, nil, "import", "orders", "f.jsonl", "--restart", "--json")
	assert.Equal(t, cli.ExitOK, code)
	assert.JSONEq(t,
		`{"queue": "orders.dlq", "main_queue": "orders", "file": "f.jsonl", "dry_run": false, "skipped_lines": 0, "lines": 3, "matched": 3, "done": 3, "truncated": false}`, out)
	assert.Len(t, f.imported, 6)
}

func TestImportGoesOnWhereItWas(t *testing.T) {
	t.Chdir(t.TempDir())
	write(t, "f.jsonl", numbered(1000))
	f := orders()
	f.failAfter, f.failWith = 250, errBroken
	code, out, errs := f.run(t, nil, "import", "orders", "f.jsonl")
	assert.Equal(t, cli.ExitFailed, code)
	assert.Contains(t, errs, "f.jsonl: "+errBroken.Error())
	assert.Contains(t, errs, "250 lines of f.jsonl imported; the same command continues after them")
	assert.Contains(t, out, "250 imported")
	assert.Equal(t, 250, marked(t).Lines)
	assert.False(t, marked(t).Finished)

	for name, other := range map[string]struct {
		args   []string
		broker string
		text   string
	}{
		"another queue": {[]string{"--to", "parked"}, "rabbit@one",
			`queue "orders.dlq" of rabbit@one; this one goes to queue "parked" of rabbit@one`},
		"another broker": {nil, "rabbit@two", `this one goes to queue "orders.dlq" of rabbit@two`},
		"another filter": {[]string{"--reason", "exhausted"}, "rabbit@one",
			`this one goes to queue "orders.dlq" of rabbit@one, filter --reason=exhausted`},
	} {
		code, _, errs := f.run(t, func(w *world) {
			w.broker = other.broker
		}, append([]string{"import", "orders", "f.jsonl"}, other.args...)...)
		assert.Equal(t, cli.ExitUsage, code, name)
		assert.Contains(t, errs, "250 lines of f.jsonl were imported by another import, which is not finished", name)
		assert.Contains(t, errs, "start this one with --restart", name)
		assert.Contains(t, errs, other.text, name)
	}
	assert.Len(t, f.imported, 250)

	f.failWith = nil
	code, out, errs = f.run(t, nil, "import", "orders", "f.jsonl")
	assert.Equal(t, cli.ExitOK, code)
	assert.Equal(t, "f.jsonl: continues after line 250, as recorded in f.jsonl.imported\n", errs)
	assert.Contains(t, out, "750 imported")
	assert.Equal(t, numbered(1000), strings.Join(f.imported, "\n")+"\n", "each once, in order")
	assert.True(t, marked(t).Finished)

}

func TestCheckpointThatCannotBeRead(t *testing.T) {
	t.Chdir(t.TempDir())
	write(t, "f.jsonl", numbered(2))
	for _, text := range []string{"", "{}", "[]", "\x00", `{"imports": []}`, `{"queue": "q", "sha256": "x", "lines": -1}`,
		`{"queue": "q", "lines": 1}`} {
		write(t, "f.jsonl.imported", text)
		f := orders()
		code, _, errs := f.run(t, nil, "import", "orders", "f.jsonl")
		assert.Equal(t, cli.ExitUsage, code, text)
		assert.Contains(t, errs, "cannot read f.jsonl.imported")
		assert.Empty(t, f.imported)
	}
	code, _, _ := orders().run(t, nil, "import", "orders", "f.jsonl", "--restart")
	assert.Equal(t, cli.ExitOK, code)
}

func TestCheckpointThatCannotBeWritten(t *testing.T) {
	t.Chdir(t.TempDir())
	write(t, "f.jsonl", numbered(2))
	require.NoError(t, os.Mkdir("f.jsonl.imported.tmp", 0o700))
	write(t, "f.jsonl.imported.tmp/x", "in the way")
	f := orders()
	code, _, errs := f.run(t, nil, "import", "orders", "f.jsonl")
	assert.Equal(t, cli.ExitFailed, code)
	assert.Contains(t, errs, "cannot record the progress of the import in f.jsonl.imported")
	assert.Empty(t, f.imported, "before anything is imported")
}

// A process that is killed does not come to its end, so what matters is what was on the disk
// before.
func TestCheckpointIsNeverFarBehindNorAhead(t *testing.T) {
	t.Chdir(t.TempDir())
	write(t, "f.jsonl", numbered(1000))
	f := orders()
	clock, writes, last := now, 0, -1
	f.after = func(done int) {
		lines := marked(t).Lines
		require.LessOrEqual(t, lines, done, "never ahead")
		require.Less(t, done-lines, checkpointLines, "never far behind")
		if lines != last {
			writes++
			last = lines
		}
	}
	code, _, _ := f.run(t, func(w *world) { w.Now = func() time.Time { return clock } }, "import", "orders", "f.jsonl")
	assert.Equal(t, cli.ExitOK, code)
	assert.LessOrEqual(t, writes, 11, "not at every line")

	f = orders()
	f.after = func(done int) { require.Less(t, done-marked(t).Lines, 2, "where it is slow, at each") }
	code, _, _ = f.run(t, func(w *world) {
		w.Now = func() time.Time { clock = clock.Add(checkpointPause); return clock }
	}, "import", "orders", "f.jsonl", "--restart")
	assert.Equal(t, cli.ExitOK, code)
}

func TestImportInterrupted(t *testing.T) {
	t.Chdir(t.TempDir())
	write(t, "f.jsonl", numbered(10))
	ctx, cancel := context.WithCancel(t.Context())
	f := orders()
	f.after = func(done int) {
		if done == 4 {
			cancel()
		}
	}
	code, out, errs := f.run(t, func(w *world) { w.ctx = ctx }, "import", "orders", "f.jsonl")
	assert.Equal(t, cli.ExitInterrupted, code)
	assert.Contains(t, out, "4 imported")
	assert.Contains(t, errs, "4 lines of f.jsonl imported; the same command continues after them")
	assert.Equal(t, 4, marked(t).Lines)
}

func TestImportWithoutEnd(t *testing.T) {
	t.Chdir(t.TempDir())
	write(t, "f.jsonl", numbered(2)+`{"n":`)
	f := orders()
	code, out, _ := f.run(t, nil, "import", "orders", "f.jsonl")
	assert.Equal(t, cli.ExitIncomplete, code)
	assert.Contains(t, out, "2 imported into orders.dlq\nThe last line is incomplete and was not imported")
	assert.False(t, marked(t).Finished)
}

func TestImportLeavesNothingBehind(t *testing.T) {
	t.Chdir(t.TempDir())
	write(t, "f.jsonl", numbered(2))
	f := orders()
	f.failWith = errBroken
	code, _, _ := f.run(t, nil, "import", "orders", "f.jsonl")
	assert.Equal(t, cli.ExitFailed, code)
	assert.NoFileExists(t, "f.jsonl.imported", "nothing was imported")

	f.failWith = nil
	code, out, _ := f.run(t, nil, "import", "orders", "f.jsonl", "--dry-run")
	assert.Equal(t, cli.ExitOK, code)
	assert.Equal(t, "f.jsonl: 2 messages, of which 2 match and can be imported into orders.dlq. This was a dry "+
		"run\n", out)
	assert.Empty(t, f.imported)
	assert.NoFileExists(t, "f.jsonl.imported")

	code, _, _ = f.run(t, func(w *world) { w.In = strings.NewReader(numbered(3)) }, "import", "orders", "-")
	assert.Equal(t, cli.ExitOK, code)
	assert.Len(t, f.imported, 3)
	files, err := os.ReadDir(".")
	require.NoError(t, err)
	assert.Len(t, files, 1, "standard input has no memory")

	for path, text := range map[string]string{"none": "no such file", ".": "no regular file",
		"/dev/null": "no regular file"} {
		code, _, errs := f.run(t, nil, "import", "orders", path)
		assert.Equal(t, cli.ExitFailed, code)
		assert.Contains(t, errs, text)
	}
}

func TestTwoImportsOfOneFile(t *testing.T) {
	t.Chdir(t.TempDir())
	write(t, "f.jsonl", numbered(2))
	f := orders()
	f.after = func(done int) {
		if done == 1 {
			code, _, errs := orders().run(t, nil, "import", "orders", "f.jsonl")
			assert.Equal(t, cli.ExitUsage, code)
			assert.Contains(t, errs, "f.jsonl: another import of this file is running")
		}
	}
	code, _, _ := f.run(t, nil, "import", "orders", "f.jsonl")
	assert.Equal(t, cli.ExitOK, code)
	assert.Len(t, f.imported, 2)
}
