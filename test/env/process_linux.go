package env

import "syscall"

// childAttributes puts a child into a process group of its own and ends it with this program.
func childAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
