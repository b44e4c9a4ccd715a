package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/homing-dev/homing/test/env"
)

// page is what was made for docs/evaluation.md so far.
type page struct {
	mu    sync.Mutex
	text  map[string]string // guarded by mu; what goes between <!-- NAME --> and <!-- /NAME -->
	files map[string]string // guarded by mu; what goes beside the page
}

// job makes a piece of the page, and says in a few words what came of it.
type job struct {
	name string
	run  func(context.Context) (string, error)
}

// writePage runs the jobs of the sections named, all if none is, and puts what they made into the page: what
// is around that is written by hand.
func writePage(ctx context.Context, only string) error {
	p := &page{text: map[string]string{}, files: map[string]string{}}
	var list []job
	for _, s := range []struct {
		name string
		jobs func(*page) []job
	}{
		{"comparison", comparison}, {"edges", edges}, {"events", events}, {"sagemaker", sageMaker}, {"constants", constants}, {"real", sideBySide},
	} {
		if only == "" || strings.Contains(","+only+",", ","+s.name+",") {
			list = append(list, s.jobs(p)...)
		}
	}
	if err := runAll(ctx, list); err != nil {
		return err
	}
	return p.write()
}

// section puts a text between <!-- NAME --> and <!-- /NAME -->.
func (p *page) section(name, text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.text[name] = text
}

// part is a job that makes some rows of a table.
type part struct {
	name string
	rows func(context.Context) (string, error)
}

// tableOf makes a section of a table whose parts are made one by one, each in its place.
func (p *page) tableOf(section string, head *table, parts []part) (list []job) {
	top, rows := head.String(), make([]string, len(parts))
	for i, part := range parts {
		list = append(list, job{part.name, func(ctx context.Context) (string, error) {
			made, err := part.rows(ctx)
			if err != nil {
				return "", err
			}
			p.mu.Lock()
			defer p.mu.Unlock()
			rows[i] = made
			p.text[section] = top + strings.Join(rows, "")
			return "done", nil
		}})
	}
	return list
}

// runAll runs the jobs, one on each processor, until one fails.
func runAll(ctx context.Context, list []job) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	begun := time.Now()
	var mu sync.Mutex
	ended := 0
	jobs := make(chan job)
	var workers sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		workers.Go(func() {
			for j := range jobs {
				said, err := j.run(ctx)
				if err != nil {
					cancel(fmt.Errorf("%s: %w", j.name, err))
					return
				}
				mu.Lock()
				ended++
				fmt.Printf("%4.0f s  %3d of %d  %s: %s\n", time.Since(begun).Seconds(), ended, len(list), j.name, said)
				mu.Unlock()
			}
		})
	}
	for _, j := range list {
		select {
		case jobs <- j:
		case <-ctx.Done():
		}
	}
	close(jobs)
	workers.Wait()
	return context.Cause(ctx)
}

// write puts everything in its place.
func (p *page) write() error {
	dir := filepath.Join(env.Root(), "docs/evaluation")
	for name, text := range p.files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	file := dir + ".md"
	read, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	text := string(read)
	for name, section := range p.text {
		var replaced bool
		if text, replaced = replace(text, name, section); !replaced {
			err = errors.Join(err, fmt.Errorf("docs/evaluation.md has no lines <!-- %s --> and <!-- /%s -->", name, name))
		}
	}
	return errors.Join(err, os.WriteFile(file, []byte(text), 0o644))
}

// replace puts a section in its place in the page.
func replace(page, name, section string) (string, bool) {
	begin, end := "<!-- "+name+" -->\n", "<!-- /"+name+" -->"
	before, rest, found := strings.Cut(page, begin)
	_, after, closed := strings.Cut(rest, end)
	if !found || !closed {
		return page, false
	}
	return before + begin + section + end + after, true
}

// table is a Markdown table under way.
type table struct {
	b       strings.Builder
	columns int
	body    bool
}

func newTable(titles ...string) *table {
	t := &table{columns: len(titles)}
	for _, title := range titles {
		t.cell(title)
	}
	return t
}

// row begins a row.
func (t *table) row(first string) {
	t.end()
	t.b.WriteString("| " + first + " ")
}

func (t *table) cell(text string) { t.b.WriteString("| " + text + " ") }

func (t *table) cellf(format string, args ...any) { t.cell(fmt.Sprintf(format, args...)) }

// end ends the line under way; the first is the head.
func (t *table) end() {
	if t.b.Len() > 0 && !strings.HasSuffix(t.b.String(), "\n") {
		t.b.WriteString("|\n")
	}
	if t.columns > 0 && !t.body {
		t.b.WriteString(strings.Repeat("|---", t.columns) + "|\n")
		t.body = true
	}
}

func (t *table) String() string {
	t.end()
	return t.b.String()
}

// seconds is a time without its leading zero, to fit into a table.
func seconds(v float64) string { return strings.TrimPrefix(fmt.Sprintf("%.3f", v), "0") }

// change is how much a differs from b, in percent.
func change(a, b float64) string { return fmt.Sprintf("%+.0f %%", 100*(a/b-1)) }
