//go:build unix

package file

import (
	"errors"
	"os"
	"syscall"
)

// Lock keeps other processes, and other openings in this one, from locking the file. It ends when
// the file is closed, or with the process. There are file systems without locks: there it does
// nothing.
func Lock(file *os.File) error {
	err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return err
	}

	return nil
}
