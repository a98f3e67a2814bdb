package dlqcmd

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"time"

	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/cli"
	"github.com/amqpretry/watermill-retry/internal/units"
)

// checkpoint says how far a file is imported into one place, so that an import that was killed goes
// on where it was.
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

// found is how a file is today, compared with its checkpoint.
type found struct {
	changed bool // in what is imported
	more    bool // behind it
}

// compare reads a file from its beginning up to the checkpoint.
func (c checkpoint) compare(read *lineHash) (found, error) {
	switch err := read.to(c.Lines); {
	case errors.Is(err, errShorter):
		return found{changed: true}, nil
	case err != nil:
		return found{}, err
	}
	more, err := read.more()

	return found{read.sum() != c.SHA256, more}, err
}

// resume says behind which line an import goes on.
func (c checkpoint) resume(file string, f found) (lines int, err error) {
	switch {
	case f.changed:
		return 0, cli.Usage("%s says that the first %s of %s were imported into %s, but these lines have changed "+
			"since, or it is another file. Restore them to continue behind them, or import the whole file with "+
			"--restart",
			checkpointPath(file), units.Many(c.Lines, "line"), file, c.destination)
	case c.Finished && !f.more:
		return 0, cli.Usage("%s was already imported at %s (%s into %s); --restart imports all its messages again",
			file, c.At.UTC().Format(time.RFC3339), units.Many(c.Lines, "line"), c.destination)
	default:
		return c.Lines, nil
	}
}

// checkpoints are those of one file, in a file beside it: one for each place it was imported into.
type checkpoints []checkpoint

func checkpointPath(file string) string { return file + ".imported" }

// checkpointsFile is how they are written.
type checkpointsFile struct {
	Imports checkpoints `json:"imports"`
}

// unknown is the error of checkpoints that nobody can read.
type unknown struct{ error }

func (e unknown) Unwrap() error { return e.error }

// readCheckpoints gives none when there is no file of them.
func readCheckpoints(file string) (checkpoints, error) {
	text, err := os.ReadFile(checkpointPath(file))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var read checkpointsFile
	wrong := func(c checkpoint) bool { return c.Lines < 0 || c.Queue == "" || c.SHA256 == "" }
	if err := json.Unmarshal(text, &read); err != nil || len(read.Imports) == 0 ||
		slices.ContainsFunc(read.Imports, wrong) {
		return nil, unknown{cli.Usage("cannot read %s, so the progress of the import of %s is unknown; --restart "+
			"starts with its first line", checkpointPath(file), file)}
	}

	return read.Imports, nil
}

// of is the one of a place.
func (all checkpoints) of(d destination) (c checkpoint, ok bool) {
	i := slices.IndexFunc(all, func(c checkpoint) bool { return c.destination == d })
	if i < 0 {
		return checkpoint{}, false
	}
	return all[i], true
}

// with is all of them, and this one in place of the one it follows.
func (all checkpoints) with(c checkpoint) checkpoints {
	others := slices.DeleteFunc(slices.Clone(all), func(other checkpoint) bool {
		return other.destination == c.destination
	})
	return append(others, c)
}

// allow refuses an import into a place that is new, as long as another one is not finished: most
// probably that one was meant.
func (all checkpoints) allow(file string, d destination) error {
	i := slices.IndexFunc(all, func(c checkpoint) bool { return !c.Finished })
	if i < 0 {
		return nil
	}
	return cli.Usage("%s says that %s of %s were imported by another import, which is not finished: %s; this one "+
		"goes to %s. Finish that import, or start this one with --restart",
		checkpointPath(file), units.Many(all[i].Lines, "line"), file, all[i].destination, d)
}

// write replaces the checkpoints of a file as a whole; where there are none, there is no file of
// them.
func (all checkpoints) write(file string) error {
	path := checkpointPath(file)
	if len(all) == 0 {
		return os.Remove(path)
	}
	text, err := json.Marshal(checkpointsFile{all})
	if err != nil {
		return err
	}

	return replace(path, append(text, '\n'))
}

// replace leaves either the old file or the new one, and nothing else.
func replace(path string, text []byte) error {
	temporary := path + ".tmp"
	// Of a run that was killed; or somebody's link, in a folder where others may write: what it
	// leads to is not ours.
	if err := os.Remove(temporary); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	file, err := os.OpenFile(temporary, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = file.Write(text)
	if err = errors.Join(err, file.Close()); err == nil {
		err = os.Rename(temporary, path)
	}
	if err != nil {
		_ = os.Remove(temporary) // the disk is full
	}

	return err
}
