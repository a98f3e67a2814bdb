//go:build unix

package dlqweb

import (
	"errors"
	"os"
	"syscall"
)

// lockFile keeps two consoles from one folder. The lock ends with the process, however that does.
func lockFile(file *os.File) error {
	err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return err
	}

	return nil // there are file systems without locks
}
