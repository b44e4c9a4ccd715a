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

// TestLadder holds a request's ladder against that of a text with messages at the same places.
func TestLadder(t *testing.T) {
	r := request(1, Span{ID: 1, Tokens: 100, EndsMessage: true}, Span{ID: 2, Tokens: 156}, Span{ID: 3, Tokens: 300, EndsMessage: true}, Span{ID: 4, Tokens: 9_000})
	ends := []int{400, 2224}
	nextMessage := func(text []byte, at int) int {
		for _, end := range ends {
			if end > at {
				return end
			}
		}
		return len(text)
	}
	for _, limit := range []int{1000, 2048, 20_000, 65536} {
		var want prefix.Ladder
		want.Build(prefix.Scope{}, make([]byte, min(limit, r.Chars())), nextMessage)
		rungs := r.Ladder(limit, nil)
		if len(rungs) != len(want.Rungs()) {
			t.Fatalf("limit %d: %d rungs, want %d: %v", limit, len(rungs), len(want.Rungs()), rungs)
		}
		for i, rung := range rungs {
			if rung.Bytes != want.Rungs()[i].Bytes {
				t.Errorf("limit %d: rung %d at %d, want %d", limit, i, rung.Bytes, want.Rungs()[i].Bytes)
			}
			if rung.Key != r.Key(int(rung.Bytes)) {
				t.Errorf("limit %d: rung %d differs from the key of so many characters", limit, i)
			}
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
