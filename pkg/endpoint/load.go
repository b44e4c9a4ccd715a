package endpoint

import (
	"math"
	"sync/atomic"
	"time"
)

// Load is what is under way at one endpoint, as far as this process knows. It fills a cache line of its
// own, so that two busy endpoints do not slow each other down.
type Load struct {
	inFlight atomic.Int64
	pending  atomic.Int64
	// What other replicas count here, as far as this one has heard.
	inFlightElsewhere atomic.Int64
	pendingElsewhere  atomic.Int64
	// Backlog is what the endpoint had to compute, in bytes of prompts, when it was last sent something.
	Backlog Reading
	// Lately is how much was sent to compute, in bytes, each part counting for less as time goes by.
	Lately Reading
	_      [16]byte
}

// InFlight is the number of requests picked for this endpoint and not yet ended.
func (l *Load) InFlight() int64 { return l.inFlight.Load() }

// Acquire counts one more request if exactly seen were in flight, and says whether it did.
func (l *Load) Acquire(seen int64) bool { return l.inFlight.CompareAndSwap(seen, seen+1) }

// Add counts one more request, whatever is in flight.
func (l *Load) Add() { l.inFlight.Add(1) }

// Release takes back one request that was counted on this Load.
func (l *Load) Release() { l.inFlight.Add(-1) }

// Pending is how many bytes of prompts were sent here and are not known to be computed.
func (l *Load) Pending() int64 { return l.pending.Load() }

// AddPending counts n more bytes to compute, or with a negative n, that many computed.
func (l *Load) AddPending(n int64) { l.pending.Add(n) }

// Elsewhere is how many requests, and how many bytes of prompts to compute, other replicas have under way
// here, as far as this one has heard.
func (l *Load) Elsewhere() (inFlight, pending int64) {
	return l.inFlightElsewhere.Load(), l.pendingElsewhere.Load()
}

// AddElsewhere notes that other replicas have so much more under way here, or with negative numbers less.
func (l *Load) AddElsewhere(inFlight, pending int64) {
	l.inFlightElsewhere.Add(inFlight)
	l.pendingElsewhere.Add(pending)
}

// Moment is a time in 1/256 s since a fixed one. It wraps after half a year, which soft state bears: only
// differences count.
type Moment uint32

// MomentOf is the moment at a time since a fixed one.
func MomentOf(since time.Duration) Moment {
	return Moment(since / (time.Second / 256)) //nolint:gosec // it may wrap
}

// Since is the time from then to m in seconds, 0 if m is the earlier.
func (m Moment) Since(then Moment) float64 {
	return max(float64(int32(m-then))/256, 0) //nolint:gosec // it may wrap
}

// Before is the moment that many seconds before m.
func (m Moment) Before(seconds float64) Moment { return m - Moment(seconds*256) }

// Reading is a number and when it was so, read and written in one. The zero Reading is 0.
type Reading struct{ word atomic.Uint64 }

// Load is the number and its moment.
func (r *Reading) Load() (value float64, at Moment) { return split(r.word.Load()) }

// Update replaces the number by what it has become by now.
func (r *Reading) Update(now Moment, become func(value, elapsed float64) float64) {
	for {
		old := r.word.Load()
		value, at := split(old)
		next := math.Float32bits(float32(become(value, now.Since(at))))
		if r.word.CompareAndSwap(old, uint64(next)<<32|uint64(now)) {
			return
		}
	}
}

func split(word uint64) (value float64, at Moment) {
	return float64(math.Float32frombits(uint32(word >> 32))), Moment(word) //nolint:gosec // the halves
}
