package netns

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"testing"
)

// inside, as an environment variable, tells the test binary that it is.
const inside = "HOMING_TEST_NETNS"

// Run runs a package's tests in a network of their own, from TestMain, and gives the exit code. prepare runs before,
// with the machine's network. The short tests run as they are, without prepare. It needs root, or a kernel that lets
// users make user namespaces, and the ip command.
func Run(m *testing.M, prepare func() error) int {
	flag.Parse()
	if testing.Short() {
		return m.Run()
	}
	if os.Getenv(inside) == "" {
		code, err := outside(prepare)
		if err != nil {
			fmt.Fprintln(os.Stderr, "netns:", err)
			return 1
		}
		return code
	}
	for _, args := range [][]string{{"link", "set", "lo", "up"}, {"route", "add", "local", Addresses, "dev", "lo"}} {
		if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "netns: ip %v: %v\n%s", args, err, out)
			return 1
		}
	}
	return m.Run()
}

// outside runs the test binary once more, inside, and gives its exit code.
func outside(prepare func() error) (int, error) {
	if err := prepare(); err != nil {
		return 0, err
	}
	self, err := os.Executable()
	if err != nil {
		return 0, err
	}
	cmd := exec.Command(self, os.Args[1:]...)
	cmd.Env = append(os.Environ(), inside+"=1")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	if uid, gid := os.Geteuid(), os.Getegid(); uid != 0 {
		cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: uid, Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: gid, Size: 1}}
	}
	runtime.LockOSThread() // the kernel ends the child with this thread
	defer runtime.UnlockOSThread()
	err = cmd.Run()
	if ended := (*exec.ExitError)(nil); errors.As(err, &ended) {
		return ended.ExitCode(), nil
	}
	return 0, err
}
