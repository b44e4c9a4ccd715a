package proc

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
)

// fakeT records what a test would have said, and runs its cleanups when asked.
type fakeT struct {
	testing.TB
	dir      string
	failed   bool
	logs     []string
	cleanups []func()
}

func (f *fakeT) Helper()         {}
func (f *fakeT) TempDir() string { return f.dir }
func (f *fakeT) Failed() bool    { return f.failed }
func (f *fakeT) Log(args ...any) { f.logs = append(f.logs, fmt.Sprint(args...)) }
func (f *fakeT) Errorf(s string, a ...any) {
	f.failed = true
	f.logs = append(f.logs, fmt.Sprintf(s, a...))
}
func (f *fakeT) Cleanup(c func()) { f.cleanups = append(f.cleanups, c) }
func (f *fakeT) finish() {
	for i := len(f.cleanups) - 1; i >= 0; i-- {
		f.cleanups[i]()
	}
}

func alive(pid int) bool { return syscall.Kill(pid, 0) == nil }

func TestChildEndsWithItsTest(t *testing.T) {
	ft := &fakeT{TB: t, dir: t.TempDir()}
	first := Start(ft, "first", exec.Command("sleep", "600"))
	second := Start(ft, "second", exec.Command("sh", "-c", "trap '' TERM; echo deaf; while :; do sleep 0.05; done"))
	second.WaitReady(t, 10*time.Second, func(context.Context) error {
		if !strings.Contains(second.Output(), "deaf") {
			return errors.New("nothing printed yet")
		}
		return nil
	})
	if !alive(first.PID()) || !alive(second.PID()) {
		t.Fatal("a child is gone before its test ended")
	}
	second.Kill()
	ft.finish()
	if alive(first.PID()) || alive(second.PID()) {
		t.Error("a child outlived its test")
	}
	if ft.failed || len(ft.logs) != 0 {
		t.Errorf("a test that passed shows %q", ft.logs)
	}
}

func TestFailureShowsOutput(t *testing.T) {
	ft := &fakeT{TB: t, dir: t.TempDir()}
	p := Start(ft, "loud", exec.Command("sh", "-c", "echo to stdout; echo to stderr >&2; exit 3"))
	<-p.done
	ft.finish()
	got := strings.Join(ft.logs, "\n")
	for _, want := range []string{"loud ended by itself: exit status 3", "to stdout", "to stderr"} {
		if !strings.Contains(got, want) {
			t.Errorf("the test's log lacks %q:\n%s", want, got)
		}
	}
}

func TestPollGivesTheLastError(t *testing.T) {
	last := errors.New("not yet")
	if err := Poll(t.Context(), 50*time.Millisecond, func(context.Context) error { return last }); err != last {
		t.Errorf("Poll = %v, want %v", err, last)
	}
	calls := 0
	if err := Poll(t.Context(), time.Minute, func(context.Context) error {
		if calls++; calls < 3 {
			return last
		}
		return nil
	}); err != nil || calls != 3 {
		t.Errorf("Poll = %v after %d calls, want nil after 3", err, calls)
	}
}

func TestFreePortsDiffer(t *testing.T) {
	seen := map[int]bool{}
	for range 50 {
		port := FreePort(t)
		if seen[port] {
			t.Fatalf("port %d given twice", port)
		}
		seen[port] = true
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			t.Fatal(err)
		}
		l.Close()
	}
}

func TestLogsAreKeptWhereAsked(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("TEST_LOGS", dir)
	ft := &fakeT{TB: t, dir: t.TempDir()}
	Start(ft, "kept", exec.Command("sleep", "600"))
	ft.finish()
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 1 || !strings.HasPrefix(entries[0].Name(), "kept.") {
		t.Errorf("in $TEST_LOGS: %v, %v; want one log named after the child", entries, err)
	}
}
