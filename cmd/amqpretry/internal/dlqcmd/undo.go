package dlqcmd

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/cli"
	"github.com/amqpretry/watermill-retry/internal/file"
)

const undoHelp = `

The undo file gets every message, unchanged, before it leaves the queue. Its default is
%s-%s-20261122T051200Z.jsonl in the current folder, in the format of "dlq export"; only you
can read it (mode 0600). "dlq import" puts copies of its messages back.`

// undoFlags say which file gets the messages as they were.
type undoFlags struct {
	path string
	none bool
}

// add adds them to a command about a queue whose name is written like that in the help.
func (f *undoFlags) add(cmd *cobra.Command, queue string) {
	cmd.Flags().Var(cli.Text(&f.path), "undo", "new undo `file` (default: "+queue+"-"+cmd.Name()+"-TIME.jsonl)")
	cmd.Flags().BoolVar(&f.none, "no-undo", false, "do not write an undo file")
	cmd.MarkFlagsMutuallyExclusive("undo", "no-undo")
	_ = cmd.MarkFlagFilename("undo", "jsonl")
	cmd.Long += fmt.Sprintf(undoHelp, queue, cmd.Name())
}

// undo is an undo file that is being written. A nil one is none.
type undo struct {
	file *os.File
	path string
}

// check looks at the flags.
func (f *undoFlags) check() error {
	if f.path == "-" {
		return cli.Usage("--undo: must be a file on disk; for a file with the name -, write ./-")
	}
	return nil
}

// create makes the file before anything is taken out.
func (f *undoFlags) create(verb string, q runner, now time.Time) (*undo, error) {
	if f.none {
		return nil, nil
	}
	path := f.path
	if path == "" {
		path = undoName(q.Name(), verb, now, "")
		for i := 2; i <= 99 && exists(path); i++ {
			path = undoName(q.Name(), verb, now, fmt.Sprintf("-%d", i))
		}
	}
	opened, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	switch {
	case errors.Is(err, fs.ErrExist):
		return nil, cli.Usage("undo file: %s already exists: pass another name with --undo; nothing was removed from "+
			"%q", path, q.Name())
	case err != nil:
		return nil, fmt.Errorf("undo file: %w; pass another place with --undo, or --no-undo; nothing was removed "+
			"from %q", err, q.Name())
	}
	file.SyncFolder(filepath.Dir(path))

	return &undo{opened, path}, nil
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// writer is what the library writes to, and syncs before it takes out what was written.
func (u *undo) writer() io.Writer {
	if u == nil {
		return nil
	}
	return u.file
}

// close gives the path of the file, or none where nothing was written: such a file is removed.
func (u *undo) close() (path string, err error) {
	if u == nil {
		return "", nil
	}
	info, err := u.file.Stat()
	if err := errors.Join(err, u.file.Close()); err != nil {
		return u.path, fmt.Errorf("undo file: %w", err)
	}
	if info.Size() == 0 {
		return "", os.Remove(u.path)
	}

	return u.path, nil
}

// linesOf counts the lines of a file; 0 if it cannot be read.
func linesOf(path string) int {
	opened, err := os.Open(path)
	if err != nil {
		return 0
	}
	defer func() { _ = opened.Close() }()

	return countLines(opened)
}

var notInFileNames = regexp.MustCompile(`[^A-Za-z0-9._-]+`)

// maxNameInFile is how much of a queue's name a file name has room for.
const maxNameInFile = 180

func undoName(queue, verb string, now time.Time, number string) string {
	name := strings.TrimLeft(notInFileNames.ReplaceAllString(queue, "_"), ".-")
	name = name[:min(len(name), maxNameInFile)]

	return fmt.Sprintf("%s-%s-%s%s.jsonl", name, verb, now.UTC().Format("20060102T150405Z"), number)
}
