package proc

import (
	"os/exec"
	"syscall"
)

// dieWithParent has the kernel end the child when the thread that starts it dies.
func dieWithParent(cmd *exec.Cmd) {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
}
