//go:build !unix

package dlqweb

import "os"

// lockFile has no lock to take here.
func lockFile(*os.File) error { return nil }
