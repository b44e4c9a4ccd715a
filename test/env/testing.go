package env

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"
)

// For makes the Env of one test. It is closed with the test; a test that failed logs what the processes
// wrote last. A Ctrl-C closes it too.
func For(t testing.TB) *Env {
	t.Helper()
	e, err := New(os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	closeOnSignal(e)
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(e.Logs())
		}
		e.Close()
	})
	return e
}

// patience is how long a component may take to become ready, on a machine that builds something else meanwhile.
const patience = 3 * time.Minute

// StartReady is [Env.Start] for a test: it waits until the process is ready, and logs how long that took.
func (e *Env) StartReady(t testing.TB, name string, cmd *exec.Cmd, ready func(context.Context) error) *Process {
	t.Helper()
	begun := time.Now()
	p, err := e.Start(name, cmd)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := p.Await(ctx, 20*time.Millisecond, ready); err != nil {
		t.Fatal(err)
	}
	t.Logf("%s ready in %.1f s", name, time.Since(begun).Seconds())
	return p
}

// Eventually polls f until it says nil, and fails the test with its last error when that takes minutes.
func Eventually(t testing.TB, f func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := Poll(ctx, 20*time.Millisecond, f); err != nil {
		t.Fatal(err)
	}
}

// Port is [FreePort] for a test.
func Port(t testing.TB) int {
	t.Helper()
	port, err := FreePort()
	if err != nil {
		t.Fatal(err)
	}
	return port
}

// Check ends a test that a part of its environment failed, or skips it where the part can't be had. With
// HOMING_ALL_PARTS in the environment, as in CI, that is a failure too.
func Check(t testing.TB, err error) {
	t.Helper()
	if errors.Is(err, ErrUnsupported) && os.Getenv("HOMING_ALL_PARTS") == "" {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// shared holds the real engines that all tests of a program use: a minute to start, so once.
var shared struct {
	once    sync.Once
	env     *Env
	engines []*Engine
	err     error
}

// sharedEngines is how many engines [SharedVLLM] starts: as many as the demo's.
const sharedEngines = 3

// SharedVLLM is three real vLLM engines that serve all tests of this program, started at the first call.
// The test is skipped where they can't run. A program that calls it must run its tests by [Main].
func SharedVLLM(t testing.TB) []*Engine {
	t.Helper()
	if testing.Short() {
		t.Skip("real engines take a minute to start; not with -short")
	}
	shared.once.Do(func() {
		if shared.env, shared.err = New(os.Stderr); shared.err != nil {
			return
		}
		closeOnSignal(shared.env)
		shared.engines, shared.err = shared.env.VLLM(context.Background(), sharedEngines, VLLMOptions{})
	})
	Check(t, shared.err)
	return shared.engines
}

// Main runs a program's tests and then stops what they shared. Call it from TestMain.
func Main(m *testing.M) {
	status := m.Run()
	if shared.env != nil {
		shared.env.Close()
	}
	os.Exit(status)
}

// open is every Env that a signal must close.
var open struct {
	sync.Mutex
	envs   []*Env
	listen sync.Once
}

// closeOnSignal has an Env closed on SIGINT and SIGTERM, before the program ends. The signals that
// [testing] sends to find out where a program hangs (SIGQUIT) are left alone.
func closeOnSignal(e *Env) {
	open.Lock()
	defer open.Unlock()
	open.envs = append(slices.DeleteFunc(open.envs, (*Env).isClosed), e)
	open.listen.Do(func() {
		signals := make(chan os.Signal, 1)
		signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
		go func() {
			<-signals
			open.Lock()
			defer open.Unlock()
			for _, e := range open.envs {
				e.Close()
			}
			os.Exit(130)
		}()
	})
}

func (e *Env) isClosed() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.closed
}
