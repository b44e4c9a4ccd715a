package main

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// The comparison is fair: every strategy gets conversations of the same shape in the same order, and
// finds nothing of another's in the engines' caches.
func TestStrategiesGetTheSameWorkInWordsOfTheirOwn(t *testing.T) {
	w := kinds["simulated"].work
	shape := func(cs []conversation) (lengths []int) {
		for _, c := range cs {
			lengths = append(lengths, len(strings.Fields(c.turns[0][0].Content)))
		}
		return lengths
	}
	a, b := w.conversationsFor("Random", 1), w.conversationsFor("PrefixAware", 1)
	if diff := cmp.Diff(shape(a), shape(b)); diff != "" {
		t.Errorf("the documents' sizes differ:\n%s", diff)
	}
	if got := len(a) * w.turns; got != w.requests() {
		t.Errorf("%d requests, want %d", got, w.requests())
	}
	begins := map[string]string{} // by the first characters, who sends them
	for name, cs := range map[string][]conversation{"Random": a, "PrefixAware": b} {
		for _, c := range cs {
			begin := c.turns[0][0].Content[:40]
			if other, taken := begins[begin]; taken && other != name {
				t.Errorf("%s and %s both send %q", name, other, begin)
			}
			begins[begin] = name
		}
	}
	if want := 2 * w.documents; len(begins) != want {
		t.Errorf("%d documents begin differently, want %d", len(begins), want)
	}
}

func TestDocumentsAreLongerThanThePrefixLength(t *testing.T) {
	for name, k := range kinds {
		for _, c := range k.work.conversationsFor("Random", 1) {
			if n := len(c.turns[0][0].Content); n < prefixLength {
				t.Errorf("%s: a document of %d characters; the key wants %d", name, n, prefixLength)
			}
		}
	}
}

func TestTurnsBeginWithWhatWasSaid(t *testing.T) {
	c := kinds["vllm"].work.conversationsFor("Random", 1)[0]
	first, second := c.history(0), c.history(1)
	if diff := cmp.Diff(first, second[:len(first)]); diff != "" {
		t.Errorf("the second turn does not begin with the first:\n%s", diff)
	}
	if len(second) != len(first)+2 {
		t.Errorf("%d messages after %d, want the answer and the next question", len(second), len(first))
	}
}

func TestQuantile(t *testing.T) {
	sorted := []time.Duration{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}
	for percent, want := range map[int]time.Duration{50: 5, 90: 9, 99: 10, 100: 10} {
		if got := quantile(sorted, percent); got != want {
			t.Errorf("quantile(%d) = %d, want %d", percent, got, want)
		}
	}
	if got := quantile(nil, 50); got != 0 {
		t.Errorf("quantile of nothing = %d", got)
	}
}

func TestTableComparesTheLastWithTheFirst(t *testing.T) {
	var b strings.Builder
	printTable(&b, []result{
		{strategy: "Random", hits: 40, queries: 100, perEngine: []float64{3, 5}, ttft: []time.Duration{2 * time.Second}, added: []time.Duration{time.Millisecond}},
		{strategy: "PrefixAware", hits: 80, queries: 100, perEngine: []float64{4, 4}, ttft: []time.Duration{time.Second}, added: []time.Duration{time.Millisecond}},
	})
	for _, want := range []string{"40 %", "2000 ms", "3 5", "found 2.0 times", "0.50 times"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q in\n%s", want, b.String())
		}
	}
}
