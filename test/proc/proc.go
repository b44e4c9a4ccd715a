// Package proc runs the programs that tests need as child processes.
//
// Invariant: a child ends before the test that started it does, in the reverse order of starting, and with the
// test binary however that dies; what it printed is shown only if the test failed.
package proc

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"testing"
	"time"
)

// grace is how long a child may take to end after SIGTERM.
const grace = 10 * time.Second

// shownBytes is how much of a failed test's logs is shown, from the end of each.
const shownBytes = 8 << 10

// Proc is a child process.
type Proc struct {
	name    string
	cmd     *exec.Cmd
	log     string
	done    chan struct{} // closed when the child has ended
	err     error         // how it ended; read after done
	stopped bool          // ended by us; of the test's goroutine alone
}

// Start runs cmd until the test ends, or until [Proc.Stop] or [Proc.Kill]. Its output goes to a file, shown when
// the test failed, and kept in the folder $TEST_LOGS if that is set. A child that ends by itself fails the test.
func Start(t testing.TB, name string, cmd *exec.Cmd) *Proc {
	t.Helper()
	dir := os.Getenv("TEST_LOGS")
	if dir == "" {
		dir = t.TempDir()
	}
	log, err := os.CreateTemp(dir, name+".*.log")
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log
	dieWithParent(cmd)
	p := &Proc{name: name, cmd: cmd, log: log.Name(), done: make(chan struct{})}

	started := make(chan error)
	go func() {
		// The kernel ends the child with the thread that started it, so that thread has to last.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			p.err = cmd.Wait()
			close(p.done)
		}
	}()
	if err := <-started; err != nil {
		t.Fatalf("starting %s: %v", name, err)
	}
	t.Cleanup(func() {
		if p.Ended() && !p.stopped {
			t.Errorf("%s ended by itself: %v", name, p.err)
		}
		p.Stop()
		if t.Failed() {
			t.Log(p.tail())
		}
	})
	return p
}

// PID is the child's process id.
func (p *Proc) PID() int { return p.cmd.Process.Pid }

// Ended says whether the child has ended.
func (p *Proc) Ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// Stop ends the child with SIGTERM, or with SIGKILL when that took too long, and waits for its end.
func (p *Proc) Stop() { p.end(syscall.SIGTERM) }

// Kill ends the child at once and waits for its end.
func (p *Proc) Kill() { p.end(syscall.SIGKILL) }

func (p *Proc) end(sig os.Signal) {
	p.stopped = true
	_ = p.cmd.Process.Signal(sig) // it may have ended already
	select {
	case <-p.done:
	case <-time.After(grace):
		_ = p.cmd.Process.Kill()
		<-p.done
	}
}

// Output is what the child has printed so far, both streams together.
func (p *Proc) Output() string {
	b, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	return string(b)
}

func (p *Proc) tail() string {
	out, what := p.Output(), "output"
	if len(out) > shownBytes {
		out, what = out[len(out)-shownBytes:], "end of the output"
	}
	return fmt.Sprintf("--- %s of %s\n%s", what, p.name, out)
}

// WaitReady polls ready until it returns nil, and says how long that took since the call. It fails the test when
// the child ends before, or after the timeout.
func (p *Proc) WaitReady(t testing.TB, timeout time.Duration, ready func(context.Context) error) time.Duration {
	t.Helper()
	start := time.Now()
	err := Poll(t.Context(), timeout, func(ctx context.Context) error {
		if p.Ended() {
			return errors.Join(errEnded, p.err)
		}
		return ready(ctx)
	})
	if err != nil {
		t.Fatalf("%s is not ready after %s: %v", p.name, time.Since(start).Round(time.Millisecond), err)
	}
	return time.Since(start)
}

var errEnded = errors.New("the process has ended")

// Poll calls f every 20 ms until it returns nil; after the timeout it returns f's last error.
func Poll(ctx context.Context, timeout time.Duration, f func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		err := f(ctx)
		if err == nil || errors.Is(err, errEnded) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-tick.C:
		}
	}
}

// GetOK is a readiness check: GET url says 200.
func GetOK(client *http.Client, url string) func(context.Context) error {
	return func(ctx context.Context) error {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return err
		}
		res, err := client.Do(req)
		if err != nil {
			return err
		}
		defer res.Body.Close()
		if res.StatusCode != http.StatusOK {
			return fmt.Errorf("GET %s: %s", url, res.Status)
		}
		return nil
	}
}
