// Package env runs the real parts that Homing works with - Envoy, model servers, Homing itself - on
// loopback, for the demo, the data-plane tests and the benchmarks.
//
// Its invariant: no process outlives its Env. Close ends them all, in the reverse order of their
// start; should the program die without Close, Linux ends them with it.
package env

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
)

// Env owns the processes and the files of one run. It is safe for concurrent use.
type Env struct {
	dir      string
	progress io.Writer

	mu        sync.Mutex
	processes []*Process // in the order of their start
	quotas    []*quota
	closed    bool
}

// New makes an Env that writes progress lines to progress. The caller must Close it.
func New(progress io.Writer) (*Env, error) {
	dir, err := os.MkdirTemp("", "homing-")
	if err != nil {
		return nil, err
	}
	return &Env{dir: dir, progress: progress}, nil
}

// Dir is a folder of the Env's own; Close removes it.
func (e *Env) Dir() string { return e.dir }

// Close ends every process and removes the Env's files. Later calls do nothing.
func (e *Env) Close() {
	e.stop()
	_ = os.RemoveAll(e.dir) // a leftover in the system's temporary folder harms nobody
}

// stop ends every process and leaves the files, among them the logs.
func (e *Env) stop() {
	e.mu.Lock()
	e.closed = true
	processes, quotas := e.processes, e.quotas
	e.processes, e.quotas = nil, nil
	e.mu.Unlock()
	for _, p := range slices.Backward(processes) {
		p.Stop()
	}
	for _, q := range quotas {
		q.close()
	}
}

// Logs is the end of each process's output, for a report of a failure.
func (e *Env) Logs() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	var b strings.Builder
	for _, p := range e.processes {
		fmt.Fprintf(&b, "--- %s (%s)\n%s\n", p.Name, p.logFile, p.Tail(40))
	}
	return b.String()
}

func (e *Env) say(format string, args ...any) {
	_, _ = fmt.Fprintf(e.progress, format+"\n", args...)
}

// file is the path of a new file in the Env's folder.
func (e *Env) file(name string) string { return filepath.Join(e.dir, name) }

// Root is the root folder of the checkout that this package was built from.
func Root() string {
	_, file, _, _ := runtime.Caller(0)
	return filepath.Dir(filepath.Dir(filepath.Dir(file)))
}

// cacheDir is where the scripts in hack/, and this package, keep what they made.
func cacheDir() string {
	if dir := os.Getenv("HOMING_CACHE"); dir != "" {
		return dir
	}
	return filepath.Join(Root(), ".cache")
}
