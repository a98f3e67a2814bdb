//go:build !unix

package dlqcmd

import "os"

func lock(*os.File) error { return nil }
