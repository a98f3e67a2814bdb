// Package file keeps files that outlive a crash.
package file

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// Replace writes a file that only its owner can read. A reader gets the old or the new one, also
// after a crash.
func Replace(path string, text []byte) error {
	temporary := path + ".tmp"
	// Of a process that was killed; or somebody's link, in a folder where others may write: what it
	// leads to is not ours.
	if err := os.Remove(temporary); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	file, err := os.OpenFile(temporary, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = file.Write(text)
	if err = errors.Join(err, file.Sync(), file.Close()); err == nil {
		err = os.Rename(temporary, path)
	}
	if err != nil {
		_ = os.Remove(temporary) // the disk is full
		return err
	}
	SyncFolder(filepath.Dir(path))

	return nil
}

// SyncFolder makes a new name in a folder outlive a crash, where the system can do that.
func SyncFolder(path string) {
	folder, err := os.Open(path)
	if err != nil {
		return
	}
	_ = folder.Sync()
	_ = folder.Close()
}
