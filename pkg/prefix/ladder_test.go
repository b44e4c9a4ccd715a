package prefix

import (
	"bytes"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// nextOf finds messages that begin with '|'.
func nextOf(text []byte, at int) int {
	if i := bytes.IndexByte(text[at+1:], '|'); i >= 0 {
		return at + 1 + i
	}
	return len(text)
}

func build(text string) []Rung {
	var l Ladder
	l.Build(Scope{Model: 1}, []byte(text), nextOf)
	return l.Rungs()
}

func places(rungs []Rung) []int {
	var at []int
	for _, r := range rungs {
		at = append(at, int(r.Bytes))
	}
	return at
}

func TestLadderPlaces(t *testing.T) {
	x := func(n int) string { return strings.Repeat("x", n) }
	for name, test := range map[string]struct {
		text string
		want []int
	}{
		"empty":                     {"", nil},
		"short":                     {x(10), []int{10}},
		"each KiB":                  {x(2500), []int{1024, 2048, 2500}},
		"a whole KiB":               {x(2048), []int{1024, 2048}},
		"message ends":              {x(300) + "|" + x(400) + "|" + x(2000), []int{300, 701, 1024, 2048, 2702}},
		"a short message":           {x(300) + "|" + x(100) + "|" + x(400), []int{300, 802}},
		"messages that sum up":      {x(300) + "|" + x(199) + "|" + x(99) + "|" + x(50), []int{300, 600, 651}},
		"a message at a KiB":        {x(1024) + "|" + x(300), []int{1024, 1325}},
		"an eighth of the way":      {x(21 << 10), []int{1024, 2048, 3072, 4096, 5120, 6144, 7168, 8192, 9216, 10240, 11264, 12288, 13312, 14336, 15360, 16384, 18432, 20480, 21504}},
		"a sixteenth for a message": {x(8400) + "|" + x(200) + "|" + x(150) + "|" + x(10), []int{1024, 2048, 3072, 4096, 5120, 6144, 7168, 8192, 8752, 8763}},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(test.want, places(build(test.text))); diff != "" {
				t.Errorf("places (-want +got):\n%s", diff)
			}
		})
	}
}

// Two texts have equal rungs exactly as far as they begin alike, but for the rung at the end of the shorter.
func TestLaddersAgreeAsFarAsTextsDo(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		text := make([]byte, 1+r.IntN(70_000))
		for i := range text {
			text[i] = 'x'
			if r.IntN(300) == 0 {
				text[i] = '|'
			}
		}
		at := r.IntN(len(text))
		other := bytes.Clone(text)
		other[at] = 'y'
		a, b := build(string(text)), build(string(other))
		for i, rung := range a {
			if int(rung.Bytes) <= at != (i < len(b) && b[i] == rung) {
				t.Fatalf("texts part at %d, rung %d is %v and %v", at, i, rung, b[i])
			}
		}
		cut := build(string(text[:at]))
		for i, rung := range cut[:max(len(cut)-1, 0)] {
			if a[i] != rung {
				t.Fatalf("a text cut at %d has another rung %d: %v, not %v", at, i, rung, a[i])
			}
		}
	}
}

func TestEveryPartOfTheScopeMattersToALadder(t *testing.T) {
	var one, other Ladder
	one.Build(Scope{Model: 1}, []byte("text"), nil)
	other.Build(Scope{Model: 2}, []byte("text"), nil)
	if one.Rungs()[0].Key == other.Rungs()[0].Key {
		t.Error("two models share a key")
	}
}

// The longest routing text has 65536 characters of four bytes, and marks.
func TestTheLongestTextFits(t *testing.T) {
	for every := range 2000 {
		text := make([]byte, 4*65536+4096*18)
		for i := every; every > 0 && i < len(text); i += every {
			text[i] = '|'
		}
		rungs := build(string(text))
		if last := rungs[len(rungs)-1]; int(last.Bytes) != len(text) {
			t.Fatalf("a message each %d bytes: %d rungs end at %d of %d", every, len(rungs), last.Bytes, len(text))
		}
	}
}

func TestBuildingALadderAllocatesNothing(t *testing.T) {
	var l Ladder
	text := bytes.Repeat([]byte("some text|"), 6000)
	if n := testing.AllocsPerRun(10, func() { l.Build(Scope{}, text, nextOf) }); n != 0 {
		t.Errorf("%v allocations, want none", n)
	}
}

func BenchmarkLadder(b *testing.B) {
	var l Ladder
	text := bytes.Repeat([]byte(strings.Repeat("x", 399)+"|"), 160)
	b.SetBytes(int64(len(text)))
	b.ReportAllocs()
	for b.Loop() {
		l.Build(Scope{}, text, nextOf)
	}
}
