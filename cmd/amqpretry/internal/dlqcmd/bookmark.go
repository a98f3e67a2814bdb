package dlqcmd

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"time"

	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/cli"
)

// bookmark says how far a file is imported, in a file beside it, so that an import that was killed goes on where it was.
type bookmark struct {
	// Lines are done, from the beginning.
	Lines    int       `json:"lines"`
	Finished bool      `json:"finished"`
	At       time.Time `json:"at"`
	// What was imported where to: another file, or another place, is another import.
	source
	destination
}

// source tells files from each other.
type source struct {
	Size int64 `json:"size"`
	// Head is the SHA-256 of the first 64 KiB.
	Head string `json:"head"`
}

// destination tells imports of one file from each other.
type destination struct {
	Broker string `json:"broker"`
	Queue  string `json:"queue"`
	Filter string `json:"filter"`
}

const headSize = 1 << 16

// sourceOf looks at a file, and leaves it at its beginning.
func sourceOf(file *os.File) (source, error) {
	info, err := file.Stat()
	if err != nil {
		return source{}, err
	}
	if !info.Mode().IsRegular() {
		return source{}, fmt.Errorf("%s is no regular file; - reads standard input", file.Name())
	}
	hash := sha256.New()
	if _, err := io.Copy(hash, io.LimitReader(file, headSize)); err != nil {
		return source{}, err
	}
	_, err = file.Seek(0, io.SeekStart)

	return source{info.Size(), hex.EncodeToString(hash.Sum(nil))}, err
}

func bookmarkPath(file string) string { return file + ".imported" }

// read gives the bookmark of a file; ok is false when there is none.
func readBookmark(file string) (b bookmark, ok bool, err error) {
	text, err := os.ReadFile(bookmarkPath(file))
	if errors.Is(err, fs.ErrNotExist) {
		return bookmark{}, false, nil
	}
	if err != nil {
		return bookmark{}, false, err
	}
	if err := json.Unmarshal(text, &b); err != nil || b.Head == "" || b.Lines < 0 {
		return bookmark{}, false, cli.Usage("%s cannot be read: how much of %s is imported is not known; --restart begins anew", bookmarkPath(file), file)
	}

	return b, true, nil
}

// resume says at which line an import goes on.
func (b bookmark) resume(file string, s source, d destination, again bool) (lines int, err error) {
	switch {
	case b.source != s && b.Finished:
		return 0, nil
	case b.source != s:
		return 0, cli.Usage("%s says that %s of %s are imported, but the file has changed since; --restart begins anew", bookmarkPath(file), many(b.Lines, "line"), file)
	case b.destination != d && b.Finished:
		return 0, nil
	case b.destination != d:
		return 0, cli.Usage("%s says that %s of %s are imported by another import, which is not finished: %s; now it is %s. Finish that one, or begin anew with --restart",
			bookmarkPath(file), many(b.Lines, "line"), file, b.destination, d)
	case b.Finished && !again:
		return 0, cli.Usage("%s was imported at %s (%s into %s); --again imports all its messages once more", file, b.At.UTC().Format(time.RFC3339), many(b.Lines, "line"), b.destination)
	case b.Finished:
		return 0, nil
	default:
		return b.Lines, nil
	}
}

func (d destination) String() string {
	text := fmt.Sprintf("queue %q of %s", d.Queue, d.Broker)
	if d.Filter != "" {
		text += ", filter " + d.Filter
	}
	return text
}

// write replaces the bookmark of a file as a whole.
func (b bookmark) write(file string) error {
	text, err := json.Marshal(b)
	if err != nil {
		return err
	}
	path := bookmarkPath(file)
	temporary := path + ".tmp"
	if err := os.WriteFile(temporary, append(text, '\n'), 0o600); err != nil {
		return err
	}

	return os.Rename(temporary, path)
}

// How much may be imported without the bookmark.
const (
	bookmarkLines = 100
	bookmarkPause = 200 * time.Millisecond
)

// keeper writes a bookmark now and then.
type keeper struct {
	file    string
	now     func() time.Time
	mark    bookmark
	written bookmark
}

// begin fails when there is no place for the bookmark, before anything is imported.
func (k *keeper) begin() error {
	if err := k.write(); err != nil {
		return fmt.Errorf("beside the file, %s has to say how far the import is: %w; to go without, give the file as standard input (-)", bookmarkPath(k.file), err)
	}
	return nil
}

func (k *keeper) imported(lines int) error {
	k.mark.Lines = lines
	if lines-k.written.Lines < bookmarkLines && k.now().Sub(k.written.At) < bookmarkPause {
		return nil
	}
	return k.write()
}

// end keeps what was reached. Where nothing was, there is nothing to keep.
func (k *keeper) end(finished bool) error {
	k.mark.Finished = finished
	switch {
	case finished || k.mark.Lines != k.written.Lines:
		return k.write()
	case k.mark.Lines == 0:
		return os.Remove(bookmarkPath(k.file))
	default:
		return nil
	}
}

func (k *keeper) write() error {
	k.mark.At = k.now().UTC()
	if err := k.mark.write(k.file); err != nil {
		return err
	}
	k.written = k.mark

	return nil
}
