package main

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"time"
)

// lineInterval is how often a status becomes a line where there is no terminal to redraw.
const lineInterval = 3 * time.Second

// screen is where progress goes. On a terminal the status is one line that is redrawn; elsewhere it is a
// line now and then.
type screen struct {
	mu       sync.Mutex
	out      *os.File
	terminal bool
	lastLine time.Time // of a status, where there is no terminal
}

func newScreen(out *os.File) *screen {
	info, err := out.Stat()
	return &screen{out: out, terminal: err == nil && info.Mode()&os.ModeCharDevice != 0}
}

// Write prints lines of progress, above the status.
func (s *screen) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.terminal {
		fmt.Fprint(s.out, "\r\033[K")
	}
	return s.out.Write(p)
}

func (s *screen) say(format string, args ...any) { fmt.Fprintf(s, format+"\n", args...) }

// status replaces the status.
func (s *screen) status(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.terminal {
		fmt.Fprintf(s.out, "\r\033[K"+format, args...)
		return
	}
	if time.Since(s.lastLine) >= lineInterval {
		s.lastLine = time.Now()
		fmt.Fprintf(s.out, format+"\n", args...)
	}
}

// bar draws how much of a whole is done.
func bar(done, whole int) string {
	const width = 30
	n := width * done / max(whole, 1)
	return "[" + strings.Repeat("#", n) + strings.Repeat(".", width-n) + "]"
}
