package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/homing-dev/homing/pkg/simulate"
	"github.com/homing-dev/homing/test/env"
)

func TestReplacePutsASectionInItsPlace(t *testing.T) {
	const page = "before\n<!-- a -->\nold\n<!-- /a -->\nafter\n"
	got, ok := replace(page, "a", "new\n")
	if want := "before\n<!-- a -->\nnew\n<!-- /a -->\nafter\n"; got != want || !ok {
		t.Errorf("got %q, %v", got, ok)
	}
	if got, ok := replace(page, "b", "new\n"); got != page || ok {
		t.Errorf("a page without that place: got %q, %v", got, ok)
	}
}

func TestTable(t *testing.T) {
	table := newTable("a", "b")
	table.row("1")
	table.cellf("%d %%", 2)
	table.row("3")
	table.cell("4 %")
	if want := "| a | b |\n|---|---|\n| 1 | 2 % |\n| 3 | 4 % |\n"; table.String() != want {
		t.Errorf("got\n%s", table)
	}
}

// What the page shows has a place there, and the page shows what is made for it.
func TestEverySectionHasItsPlace(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(env.Root(), "docs/evaluation.md"))
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]bool{"events": true, "sagemaker": true, "constants": true, "sensitivity": true, "engines": true}
	for _, c := range crowds {
		want["means-"+c.name()], want["aims-"+c.name()] = true, true
	}
	for _, name := range realWorkloads {
		want["real-"+name] = true
	}
	for _, m := range regexp.MustCompile(`(?m)^<!-- ([a-z0-9-]+) -->$`).FindAllSubmatch(text, -1) {
		if name := string(m[1]); !want[name] {
			t.Errorf("the page has a place for %s, which nothing makes", name)
		} else {
			delete(want, name)
		}
	}
	for name := range want {
		t.Errorf("the page has no place for %s", name)
	}
}

func TestVerdictFindsTheGreatestDifferences(t *testing.T) {
	side := func(name string, real, realHits, simulated, hits float64) both {
		return both{way: way{name: name}, real: medians{mean: real, hits: realHits}, simulated: medians{mean: simulated, hits: hits}, seeds: 5}
	}
	got := sides{
		side("random", 1, .4, 2, .41), side("a", .5, .8, 1.1, .79), side("b", .3, .9, .6, .85), side("c", .31, .8, .5, .8),
	}.verdict()
	for _, want := range []string{"5.0 points at most (b)", "19 % (c)", "of 5 pairs", "5 are in the same order"} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in %q", want, got)
		}
	}
}

func TestEveryRealWorkloadIsSimulated(t *testing.T) {
	for _, name := range realWorkloads {
		w, err := load{name: name, rate: 1, engines: realEngines}.workload(simulate.All, 1)
		if err != nil {
			t.Fatal(err)
		}
		if w.Clients == 0 {
			t.Errorf("%s has no clients: real engines are asked in a closed loop", name)
		}
	}
	for _, w := range ways() {
		if _, err := simulate.FindStrategies([]string{w.simulated}); err != nil {
			t.Errorf("%s: %v", w.name, err)
		}
	}
}
