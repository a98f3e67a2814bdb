package dlqweb

import (
	"bytes"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/amqpretry/watermill-retry/internal/file"
)

// The folder has a folder for each run:
//
//	20261122T051200Z-k3v9…/run.json      what it is, and how far it came
//	                       undo.jsonl    what it has taken out
//	                       export.jsonl  what it has exported
//	                       import.jsonl  what it imports
const (
	fileRun    = "run.json"
	fileUndo   = "undo.jsonl"
	fileExport = "export.jsonl"
	fileImport = "import.jsonl"
)

// journal keeps runs in a folder. Without a folder there are none.
type journal struct {
	folder string
	lock   *os.File
}

// openJournal makes the folder if it is not there, and sees to it that no other console uses it.
func openJournal(folder string) (*journal, error) {
	if folder == "" {
		return nil, nil
	}
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return nil, fmt.Errorf("cannot use the folder of the runs: %w", err)
	}
	lock, err := os.OpenFile(filepath.Join(folder, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("cannot use the folder of the runs: %w", err)
	}
	if err := file.Lock(lock); err != nil {
		_ = lock.Close()
		return nil, fmt.Errorf("cannot use the folder %s: another console uses it; give each console its own folder",
			folder)
	}

	return &journal{folder, lock}, nil
}

func (j *journal) close() {
	if j != nil {
		_ = j.lock.Close()
	}
}

// newID gives an ID that sorts by time.
func newID(now time.Time) string {
	const random = 10
	return now.UTC().Format("20060102T150405Z") + "-" + strings.ToLower(rand.Text()[:random])
}

func (j *journal) path(id, name string) string { return filepath.Join(j.folder, id, name) }

// create makes the folder of a run.
func (j *journal) create(r Run) error {
	if err := os.Mkdir(filepath.Join(j.folder, r.ID), 0o700); err != nil {
		return err
	}
	file.SyncFolder(j.folder)

	return j.save(r)
}

// save replaces what is known of a run: whoever reads it reads the old or the new one, also after a
// crash.
func (j *journal) save(r Run) error {
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}

	return file.Replace(j.path(r.ID, fileRun), append(text, '\n'))
}

// mostRuns is how many are remembered, the youngest.
const mostRuns = 500

// load reads the runs of before, the oldest first.
func (j *journal) load() ([]Run, error) {
	entries, err := os.ReadDir(j.folder)
	if err != nil {
		return nil, err
	}
	var ids []string
	for _, entry := range entries {
		if entry.IsDir() && isID(entry.Name()) {
			ids = append(ids, entry.Name())
		}
	}
	slices.Sort(ids)
	ids = ids[max(0, len(ids)-mostRuns):]

	var runs []Run
	for _, id := range ids {
		text, err := os.ReadFile(j.path(id, fileRun))
		if errors.Is(err, fs.ErrNotExist) { // killed between its two steps: nothing was done
			continue
		}
		if err != nil {
			return nil, err
		}
		var r Run
		if err := json.Unmarshal(text, &r); err != nil || r.ID != id {
			return nil, fmt.Errorf("%s is no run of this console: %w", j.path(id, fileRun), err)
		}
		runs = append(runs, r)
	}

	return runs, nil
}

// isID tells the name of a run's folder.
func isID(name string) bool {
	at, random, ok := strings.Cut(name, "-")
	_, err := time.Parse("20060102T150405Z", at)

	return ok && err == nil && random != "" && strings.Trim(random, "abcdefghijklmnopqrstuvwxyz234567") == ""
}

// has tells whether a run has a file with something in it.
func (j *journal) has(id, name string) bool {
	info, err := os.Stat(j.path(id, name))
	return err == nil && info.Size() > 0
}

// newFile makes a file of a run.
func (j *journal) newFile(id, name string) (*os.File, error) {
	return os.OpenFile(j.path(id, name), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
}

// newFileAgain makes a file of a run, also when a try before has made it.
func (j *journal) newFileAgain(id, name string) (*os.File, error) {
	return os.OpenFile(j.path(id, name), os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
}

// remove forgets a run that has not begun.
func (j *journal) remove(id string) { _ = os.RemoveAll(filepath.Join(j.folder, id)) }

// wholeLines is how many bytes of a file are whole lines: a process that was killed leaves a part
// of one.
func wholeLines(file *os.File) (int64, error) {
	info, err := file.Stat()
	if err != nil {
		return 0, err
	}
	end := info.Size()
	chunk := make([]byte, 64<<10)
	for end > 0 {
		n := min(end, int64(len(chunk)))
		if _, err := file.ReadAt(chunk[:n], end-n); err != nil {
			return 0, err
		}
		if i := bytes.LastIndexByte(chunk[:n], '\n'); i >= 0 {
			return end - n + int64(i) + 1, nil
		}
		end -= n
	}

	return 0, nil
}
