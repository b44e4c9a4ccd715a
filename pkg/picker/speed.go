package picker

import (
	"math"
	"sync/atomic"
)

// speed is what is learned from answers about how fast endpoints compute prompts. Concurrent samples may be
// lost; none is needed. The zero speed knows nothing yet.
type speed struct {
	rate atomic.Uint64 // the bits of a float64, bytes a second
	best atomic.Uint64 // likewise, the fastest of the first samples
	n    atomic.Uint64 // samples
	seen atomic.Uint64 // likewise, the share of answers whose first token was seen, 0..1
}

const (
	// rateUp and rateDown are the factors by which the rate follows a faster and a slower sample: it settles
	// where one sample in eleven is faster. An answer takes longer than its prompt by what it has to say, so
	// only the fastest tell about prompts.
	rateUp, rateDown = 1.05, 0.995
	// rateBytes is the prompt whose sample counts in full: the time of short ones is not spent computing.
	rateBytes = 32 << 10
	// rateFirst is of how many samples at first the second fastest counts: the steps above are small, and the
	// first sample may be a short prompt with a long answer. The fastest may be an answer that its client cut short.
	rateFirst = 16
	// seenStep is the weight of one more answer.
	seenStep = 0.05
)

// learn takes a sample, took in seconds: so many bytes of prompts, the request's own among them, were computed by the time the
// first token came or, if that was not seen, by the end of the answer.
func (s *speed) learn(ahead float64, own int64, took float64, firstToken bool) {
	seen, now := load(&s.seen), 0.
	if firstToken {
		now = 1
	}
	store(&s.seen, seen+seenStep*(now-seen))

	if took <= 0 {
		return
	}
	sample, rate := ahead/took, load(&s.rate)
	weight := min(float64(own)/rateBytes, 1)
	switch {
	case s.n.Add(1) <= rateFirst:
		best := load(&s.best)
		rate = max(rate, min(best, sample))
		store(&s.best, max(best, sample))
	case sample > rate:
		rate *= math.Pow(rateUp, weight)
	default:
		rate *= math.Pow(rateDown, weight)
	}
	store(&s.rate, rate)
}

// drain is how many bytes a second are taken to be computed before an answer tells: 0 if nothing is known,
// or if first tokens tell soon enough.
func (s *speed) drain() float64 {
	if load(&s.seen) > 0.5 {
		return 0
	}
	return load(&s.rate)
}

func load(f *atomic.Uint64) float64     { return math.Float64frombits(f.Load()) }
func store(f *atomic.Uint64, v float64) { f.Store(math.Float64bits(v)) }
