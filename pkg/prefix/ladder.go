package prefix

import "github.com/zeebo/xxh3"

// MaxRungs bounds a ladder. It covers what the longest prefixLength gives: 65536 characters of four
// bytes with 4096 marks between, a message end wherever [Spacing] takes one.
const MaxRungs = 128

// Rung is one step of a ladder: the key of a text's beginning.
type Rung struct {
	Key Key
	// Bytes is how long that beginning is, in bytes of routing text.
	Bytes int32
}

// Ladder is the keys of a text's growing beginnings, at the places that [Spacing] takes and at the text's
// end. Texts that begin alike have equal rungs as far as they do. The zero Ladder is empty.
type Ladder struct {
	rungs [MaxRungs]Rung
	n     int
}

// Rungs are the steps, shortest first, until the next Build.
func (l *Ladder) Rungs() []Rung { return l.rungs[:l.n] }

// Build replaces the ladder by that of text under scope. nextMessage is where the next message of the text
// begins behind at, which is 0 or where one begins, and len(text) if there is none; nil for text without messages. What lies
// beyond MaxRungs steps is left out.
func (l *Ladder) Build(scope Scope, text []byte, nextMessage func(text []byte, at int) int) {
	l.n = 0
	chain := uint64(OfDigest(scope, 0))
	message := len(text)
	if nextMessage != nil && len(text) > 0 {
		message = nextMessage(text, 0)
	}
	var spacing Spacing
	for from := 0; from < len(text) && l.n < len(l.rungs); {
		to := min(spacing.Next(), len(text))
		for message < to {
			end := message
			message = nextMessage(text, end)
			if spacing.Message(end) {
				to = end
			}
		}
		spacing.Take(to)
		chain = xxh3.HashSeed(text[from:to], chain)
		l.rungs[l.n] = Rung{Key: Key(chain), Bytes: int32(to)} //nolint:gosec // far shorter
		l.n++
		from = to
	}
}

// Spacing says where rungs are: one each KiB up to 8 KiB and from there each eighth of the way, so that
// what a rung is off by stays small beside the prompt; and one at each message end that is 256 bytes and a
// sixteenth of the way from the rung before, because there conversations grow and part. Where a rung is
// depends on the text before it alone. The zero Spacing is at the start of a text.
type Spacing struct{ last, next int }

// Next is where the next rung is at the latest, in bytes from the start.
func (s *Spacing) Next() int { return max(s.next, 1024) }

// Message says whether a message that ends at the given place, before Next, gets a rung there.
func (s *Spacing) Message(end int) bool { return end-s.last >= max(256, end/16) }

// Take notes a rung.
func (s *Spacing) Take(at int) {
	s.last = at
	for s.Next() <= at {
		s.next = s.Next() + max(1024, s.Next()/8/1024*1024)
	}
}
