package dlqcmd

import (
	"fmt"
	"time"
)

// How much may be imported without the bookmark.
const (
	bookmarkLines = 100
	bookmarkPause = 200 * time.Millisecond
)

// keeper writes the bookmark of an import now and then.
type keeper struct {
	file    string
	now     func() time.Time
	read    *prefix
	before  bookmarks // as they were found
	begun   int       // the lines that were done then
	mark    bookmark
	written bookmark
}

// begin fails when there is no place for the bookmark, before anything is imported.
func (k *keeper) begin() error {
	k.begun = k.mark.Lines
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

// end keeps what was reached. Where nothing was, all is as it was found: what was imported before still is, also when
// it was to be once more.
func (k *keeper) end(finished bool) error {
	if !finished && k.mark.Lines == k.begun {
		return k.before.write(k.file)
	}
	k.mark.Finished = finished

	return k.write()
}

func (k *keeper) write() error {
	if err := k.read.to(k.mark.Lines); err != nil {
		return fmt.Errorf("%s: %w", k.file, err)
	}
	k.mark.SHA256, k.mark.At = k.read.sum(), k.now().UTC()
	if err := k.before.with(k.mark).write(k.file); err != nil {
		return err
	}
	k.written = k.mark

	return nil
}
