//go:build unix

package dlqcmd

import (
	"os/exec"
	"syscall"
)

// asGroup makes a command end with everything that it has started. A ^C on the terminal does not
// reach it: the context ends it.
func asGroup(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
}
