package env

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"
)

// stopGrace is how long a process has between SIGTERM and SIGKILL.
const stopGrace = 10 * time.Second

// Process is a child process whose output goes to a file.
type Process struct {
	Name    string
	cmd     *exec.Cmd
	logFile string
	done    chan struct{}
	err     error // how it ended; guarded by done
}

// spawner starts every child. Linux sends a child its death signal when the thread that started it
// ends, and Envoy asks for one even unasked, so that thread must live as long as the program.
var spawner = sync.OnceValue(func() chan<- func() {
	jobs := make(chan func())
	go func() {
		runtime.LockOSThread()
		for job := range jobs {
			job()
		}
	}()
	return jobs
})

// Start runs a command as a process of the Env, in a process group of its own, so that a Ctrl-C at the
// terminal reaches it by way of Close only.
func (e *Env) Start(name string, cmd *exec.Cmd) (*Process, error) {
	log, err := os.CreateTemp(e.dir, name+"-*.log")
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = childAttributes()
	p := &Process{Name: name, cmd: cmd, logFile: log.Name(), done: make(chan struct{})}

	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return nil, fmt.Errorf("starting %s: the environment is closed", name)
	}
	started := make(chan error)
	spawner() <- func() { started <- cmd.Start() }
	if err := <-started; err != nil {
		return nil, fmt.Errorf("starting %s: %w", name, err)
	}
	go func() {
		p.err = cmd.Wait()
		close(p.done)
	}()
	e.processes = append(e.processes, p)
	return p, nil
}

// Pid is the process's id.
func (p *Process) Pid() int { return p.cmd.Process.Pid }

// Signal sends a signal to the process.
func (p *Process) Signal(s os.Signal) error { return p.cmd.Process.Signal(s) }

// Done is closed when the process has ended; then Err says how.
func (p *Process) Done() <-chan struct{} { return p.done }

// Err waits for the process's end and says how it ended: nil, or an [exec.ExitError].
func (p *Process) Err() error {
	<-p.done
	return p.err
}

// Stop asks the process to end, and after ten seconds makes it. It returns when the process has ended.
func (p *Process) Stop() {
	_ = p.Signal(syscall.SIGTERM) // an error means that it has ended
	select {
	case <-p.done:
	case <-time.After(stopGrace):
		_ = syscall.Kill(-p.Pid(), syscall.SIGKILL) // the group: a server's workers too
		<-p.done
	}
}

// LogFile is where its output goes.
func (p *Process) LogFile() string { return p.logFile }

// Log is all that the process has written.
func (p *Process) Log() string {
	b, err := os.ReadFile(p.logFile)
	if err != nil {
		return err.Error()
	}
	return string(b)
}

// Tail is the last n lines that the process has written.
func (p *Process) Tail(n int) string {
	lines := strings.Split(strings.TrimSpace(p.Log()), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}

// Await polls ready each interval until it says nil. It fails when ctx ends, with ready's last error,
// or when the process does, with the end of its output.
func (p *Process) Await(ctx context.Context, interval time.Duration, ready func(context.Context) error) error {
	err := poll(ctx, interval, p.done, ready)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, errEnded):
		return fmt.Errorf("%s ended early: %w\n%s", p.Name, p.err, p.Tail(20))
	default:
		return fmt.Errorf("%s is not ready: %w\n%s", p.Name, err, p.Tail(20))
	}
}

// Poll calls ready each interval until it says nil. It fails when ctx ends, with ready's last error.
func Poll(ctx context.Context, interval time.Duration, ready func(context.Context) error) error {
	return poll(ctx, interval, nil, ready)
}

var errEnded = errors.New("the process has ended")

func poll(ctx context.Context, interval time.Duration, ended <-chan struct{}, ready func(context.Context) error) error {
	for {
		err := ready(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ended:
			return errEnded
		case <-ctx.Done():
			return fmt.Errorf("%w (%w)", err, ctx.Err())
		case <-time.After(interval):
		}
	}
}

// Answers200 says nil once a GET of the URL is answered with 200.
func Answers200(client *http.Client, url string) func(context.Context) error {
	return func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return err
		}
		resp, err := client.Do(req)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			return fmt.Errorf("GET %s: %s", url, resp.Status)
		}
		return nil
	}
}
