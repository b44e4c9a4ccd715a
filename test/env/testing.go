package env

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"slices"
	"sync"
	"syscall"
	"testing"
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

// Check ends a test that a part of its environment failed, or skips it where the part can't be had.
func Check(t testing.TB, err error) {
	t.Helper()
	if errors.Is(err, ErrUnsupported) {
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
