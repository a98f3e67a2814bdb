//go:build !unix

package dlqcmd

import "os/exec"

func asGroup(*exec.Cmd) {}
