package simulate

import (
	"math/rand/v2"
	"testing"

	"github.com/homing-dev/homing/pkg/prefix"
)

func TestKeyIsOfTheTextAlone(t *testing.T) {
	a := request(1, Span{ID: 1, Tokens: 100}, Span{ID: 2, Tokens: 300})
	b := request(1, Span{ID: 1, Tokens: 100}, Span{ID: 3, Tokens: 300})
	for _, test := range []struct {
		chars int
		equal bool
	}{{4, true}, {200, true}, {400, true}, {404, false}, {1600, false}, {65536, false}} {
		if got := a.Key(test.chars) == b.Key(test.chars); got != test.equal {
			t.Errorf("keys of the first %d characters equal: %t, want %t", test.chars, got, test.equal)
		}
	}
	if a.Key(1600) != a.Key(65536) {
		t.Error("a prompt that is shorter than the length must be keyed whole")
	}
	seen := map[prefix.Key]int{}
	for chars := 4; chars <= 1600; chars += 4 {
		if at, twice := seen[a.Key(chars)]; twice {
			t.Errorf("the first %d and %d characters have one key", at, chars)
		}
		seen[a.Key(chars)] = chars
	}
}

func TestKeyDoesNotDependOnTheAnswer(t *testing.T) {
	spans := []Span{{ID: 1, Tokens: 10}}
	a, b := NewRequest(spans, 5, 10, 4), NewRequest(spans, 6, 20, 4)
	if a.Key(65536) != b.Key(65536) {
		t.Error("equal prompts with other answers have other keys")
	}
}

func TestLadder(t *testing.T) {
	r := request(1, Span{ID: 1, Tokens: 100, EndsMessage: true}, Span{ID: 2, Tokens: 156}, Span{ID: 3, Tokens: 300, EndsMessage: true}, Span{ID: 4, Tokens: 5})
	rungs := r.Ladder(1024, nil)
	want := []int{400, 1024, 2048, 2224, 2244} // a message, 1 KiB at a span's end, 2 KiB inside one, a message, the end
	if len(rungs) != len(want) {
		t.Fatalf("%d rungs, want %d: %v", len(rungs), len(want), rungs)
	}
	for i, rung := range rungs {
		if rung.Chars != want[i] {
			t.Errorf("rung %d at %d, want %d", i, rung.Chars, want[i])
		}
		if rung.Key != r.Key(rung.Chars) {
			t.Errorf("rung %d differs from the key of so many characters", i)
		}
	}
}

func TestBlockKeysAreKeys(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	var spans []Span
	for i := range uint64(20) {
		spans = append(spans, Span{ID: i, Tokens: 1 + r.IntN(90)})
	}
	q := request(1, spans...)
	keys := q.blockKeys(16, 1000, nil)
	if want := q.Prompt / 16; len(keys) != want {
		t.Fatalf("%d keys, want %d", len(keys), want)
	}
	for i, k := range keys {
		if want := q.Key((i + 1) * 16 * DefaultCharsPerToken); prefix.Key(k) != want {
			t.Errorf("block %d has another key", i)
		}
	}
	if got := len(q.blockKeys(16, 3, nil)); got != 3 {
		t.Errorf("%d keys, want at most 3", got)
	}
}
