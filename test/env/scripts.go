package env

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"strings"
)

// ErrUnsupported says that a part can't be had on this platform, and why.
var ErrUnsupported = errors.New("not available here")

// unsupportedStatus is the exit status by which a script in hack/ says the same.
const unsupportedStatus = 3

// script runs a script of hack/ that makes a part ready, and returns the last line it prints: where the
// part is. The script's progress goes to the Env's.
func (e *Env) script(ctx context.Context, name string) (string, error) {
	cmd := exec.CommandContext(ctx, filepath.Join(Root(), "hack", name))
	var said bytes.Buffer
	cmd.Stderr = io.MultiWriter(e.progress, &said)
	out, err := cmd.Output()
	if cmd.ProcessState != nil && cmd.ProcessState.ExitCode() == unsupportedStatus {
		return "", fmt.Errorf("%w: %s", ErrUnsupported, strings.TrimSpace(said.String()))
	}
	if err != nil {
		return "", fmt.Errorf("hack/%s: %w\n%s", name, err, said.String())
	}
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	return lines[len(lines)-1], nil
}

// Python is the Python with the client libraries that people use: openai, anthropic and
// langchain-openai. The error is [ErrUnsupported] where there is none.
func (e *Env) Python(ctx context.Context) (string, error) { return e.script(ctx, "clients/setup.sh") }
