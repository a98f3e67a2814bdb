package dlqcmd

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"math"
	"os"
	"time"

	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/cli"
	"github.com/amqpretry/watermill-retry/internal/file"
	"github.com/amqpretry/watermill-retry/internal/units"
)

// checkpoint says how far a file is imported, and where to, so that an import that was broken off
// goes on where it was. It is in a file beside that one.
type checkpoint struct {
	destination
	// Lines are done, from the beginning.
	Lines int `json:"lines"`
	// SHA256 is of these lines: what is behind them may change, and they may not.
	SHA256   string    `json:"sha256"`
	Finished bool      `json:"finished"`
	At       time.Time `json:"at"`
}

// destination tells imports of one file from each other.
type destination struct {
	Broker string `json:"broker"`
	Queue  string `json:"queue"`
	Filter string `json:"filter"`
}

func (d destination) String() string {
	text := fmt.Sprintf("queue %q of %s", d.Queue, d.Broker)
	if d.Filter != "" {
		text += ", filter " + d.Filter
	}
	return text
}

func checkpointPath(path string) string { return path + ".imported" }

// How much may be imported without the checkpoint.
const (
	checkpointLines = 100
	checkpointPause = 200 * time.Millisecond
)

// checkpointWriter writes the checkpoint of an import now and then.
type checkpointWriter struct {
	checkpoint
	path    string
	now     func() time.Time
	read    *lineHash
	before  []byte // as it was found; nil if it was not there
	begun   int    // the lines that were done then
	written checkpoint
}

// checkpoint finds out where the import of a file begins.
func (t *tool) checkpoint(ctx context.Context, q queue, in *os.File, i importing) (*checkpointWriter, error) {
	info, err := in.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is no regular file; - reads standard input", i.path)
	}
	broker, err := t.broker(ctx)
	if err != nil {
		return nil, err
	}
	w := &checkpointWriter{path: i.path, now: t.Now, read: newLineHash(in)}
	w.destination = destination{Broker: broker, Queue: cmp.Or(i.to, q.Name()), Filter: i.filters}
	w.before, err = os.ReadFile(checkpointPath(i.path))
	switch {
	case errors.Is(err, fs.ErrNotExist), err == nil && i.restart:
		return w, nil
	case err != nil:
		return nil, err
	}

	return w, w.resume(newLineHash(in))
}

// resume goes on behind the lines that were imported before, unless that was another import, or
// they have changed.
func (w *checkpointWriter) resume(read *lineHash) error {
	var c checkpoint
	place := checkpointPath(w.path)
	if err := json.Unmarshal(w.before, &c); err != nil || c.Lines < 0 || c.Queue == "" || c.SHA256 == "" {
		return cli.Usage("cannot read %s, so the progress of the import of %s is unknown; --restart starts with its "+
			"first line", place, w.path)
	}
	if c.destination != w.destination {
		state := "which is not finished"
		if c.Finished {
			state = "which is finished"
		}
		return cli.Usage("%s says that %s of %s were imported by another import, %s: %s; this one goes to %s. "+
			"Repeat that import, or start this one with --restart, which imports all messages", place,
			units.Many(c.Lines, "line"), w.path, state, c.destination, w.destination)
	}
	switch err := read.to(c.Lines); {
	case errors.Is(err, io.EOF), err == nil && read.sum() != c.SHA256:
		return cli.Usage("%s says that the first %s of %s were imported into %s, but these lines have changed "+
			"since, or it is another file. Restore them to continue behind them, or import the whole file with "+
			"--restart", place, units.Many(c.Lines, "line"), w.path, c.destination)
	case err != nil:
		return err
	case c.Finished && !read.more():
		return cli.Usage("%s was already imported at %s (%s into %s); --restart imports all its messages again",
			w.path, c.At.UTC().Format(time.RFC3339), units.Many(c.Lines, "line"), c.destination)
	}
	w.Lines = c.Lines

	return nil
}

// begin fails when there is no place for the checkpoint, before anything is imported.
func (w *checkpointWriter) begin() error {
	w.begun = w.Lines
	if err := w.write(); err != nil {
		return fmt.Errorf("cannot record the progress of the import in %s: %w; to import without it, pass the file "+
			"as standard input (-)", checkpointPath(w.path), err)
	}
	return nil
}

func (w *checkpointWriter) imported(lines int) error {
	w.Lines = lines
	if lines-w.written.Lines < checkpointLines && w.now().Sub(w.written.At) < checkpointPause {
		return nil
	}
	return w.write()
}

// end keeps what was reached. Where nothing was, all is as it was found: what was imported before
// still is, also when it was to be once more.
func (w *checkpointWriter) end(finished bool) error {
	switch {
	case finished || w.Lines != w.begun:
		w.Finished = finished
		return w.write()
	case w.before == nil:
		return os.Remove(checkpointPath(w.path))
	default:
		return file.Replace(checkpointPath(w.path), w.before)
	}
}

func (w *checkpointWriter) write() error {
	if err := w.read.to(w.Lines); err != nil {
		return fmt.Errorf("%s: %w", w.path, err)
	}
	w.SHA256, w.At = w.read.sum(), w.now().UTC()
	text, err := json.Marshal(w.checkpoint)
	if err != nil {
		return err
	}
	if err := file.Replace(checkpointPath(w.path), append(text, '\n')); err != nil {
		return err
	}
	w.written = w.checkpoint

	return nil
}

// lineHash reads a file from its beginning, line by line, and keeps only the hash of what it has
// read.
type lineHash struct {
	in    *bufio.Reader
	hash  hash.Hash
	lines int
}

func newLineHash(in io.ReaderAt) *lineHash {
	return &lineHash{in: bufio.NewReader(whole(in)), hash: sha256.New()}
}

// whole reads a file from its beginning, wherever others are in it.
func whole(in io.ReaderAt) io.Reader { return io.NewSectionReader(in, 0, math.MaxInt64) }

// to goes on until it has so many lines; io.EOF if there are fewer. A last one without a line feed
// counts like one that has it, so that more lines can follow.
func (h *lineHash) to(lines int) error {
	for ; h.lines < lines; h.lines++ {
		line, err := h.in.ReadBytes('\n')
		if len(line) == 0 || err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		_, _ = h.hash.Write(append(bytes.TrimSuffix(line, []byte{'\n'}), '\n')) // never fails
	}

	return nil
}

// sum is the SHA-256 of its lines.
func (h *lineHash) sum() string { return hex.EncodeToString(h.hash.Sum(nil)) }

// more tells whether there is anything but blanks behind it.
func (h *lineHash) more() bool {
	for {
		line, err := h.in.ReadBytes('\n')
		if len(bytes.TrimSpace(line)) > 0 || err != nil {
			return len(bytes.TrimSpace(line)) > 0
		}
	}
}
