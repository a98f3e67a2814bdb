//go:build unix

package dlqcmd

import (
	"errors"
	"os"
	"syscall"
)

// lock keeps two imports of one file from working at a time. It ends with the process, however that
// does.
func lock(file *os.File) error {
	err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return err
	}

	return nil // there are file systems without locks
}
