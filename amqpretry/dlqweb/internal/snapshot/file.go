package snapshot

import (
	"bufio"
	"os"
	"sync/atomic"
)

// Files is the room that all snapshots of a console have for whole messages, in temporary files.
type Files struct {
	// Folder for the files. Empty means that of the system for temporary files.
	Folder string
	// Most is how many bytes they may have together.
	Most int64

	used atomic.Int64
}

// file is where the whole messages of a snapshot are. No name leads to it, where the system can do
// that, so nothing is left behind by a process that is killed.
type file struct {
	files *Files
	*os.File
	out  *bufio.Writer
	size int64
	full bool
	err  error
}

const writeBuffer = 256 << 10

func (f *Files) create() (*file, error) {
	created, err := os.CreateTemp(f.Folder, "amqpretry-*.snapshot") // for its owner only
	if err != nil {
		return nil, err
	}
	_ = os.Remove(created.Name()) // Windows cannot: it is removed when it is closed

	return &file{files: f, File: created, out: bufio.NewWriterSize(created, writeBuffer)}, nil
}

// add appends a record; false if there is no room for it.
func (f *file) add(record []byte) (offset int64, ok bool) {
	if f == nil || f.full {
		return 0, false
	}
	size := int64(len(record))
	if f.files.used.Add(size) > f.files.Most {
		f.files.used.Add(-size)
		f.full = true
		return 0, false
	}
	offset = f.size
	f.size += size
	if _, err := f.out.Write(record); err != nil {
		f.err, f.full = err, true
	}

	return offset, f.err == nil
}

func (f *file) close() {
	if f == nil {
		return
	}
	f.files.used.Add(-f.size)
	_ = f.Close()
	_ = os.Remove(f.Name())
}
