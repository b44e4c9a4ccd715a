package picker

import (
	"math"
	"sync"

	"github.com/homing-dev/homing/pkg/endpoint"
	"github.com/homing-dev/homing/pkg/prefix"
)

// memory is what a picker remembers of its pool's traffic: of each rung of the ladders it saw, how much of
// the traffic had it and where that went. It is soft state in a fixed amount of space; forgetting costs
// cache hits, never a request.
type memory struct {
	mu      sync.Mutex
	sets    []memorySet // guarded by mu; a power of two of them
	traffic decaying    // guarded by mu; requests
}

const (
	// memoryWays is in how many places of the memory a rung may be.
	memoryWays = 8
	// maxPlaces is how many endpoints are remembered of a rung.
	maxPlaces = 4
)

// memorySet is where the rungs whose keys agree in some bits compete; the one idle longest gives way.
type memorySet struct {
	keys    [memoryWays]prefix.Key
	entries [memoryWays]rungMemory
}

// rungMemory is what is remembered of a rung.
type rungMemory struct {
	traffic decaying
	places  [maxPlaces]place // where it went, the latest first
}

// place is an endpoint that had a rung, and when. The zero place is none.
type place struct {
	tag Tag
	at  endpoint.Moment
	// reach is how long the longest prompt was that went there with this rung as its last, in whole KiB.
	reach uint16
	// agreed says that all replicas were heard of when it was chosen, so that they know of it too.
	agreed bool
}

// decaying is a sum whose parts halve in weight with each half-life.
type decaying struct {
	sum float32
	at  endpoint.Moment
}

// value is what the sum has become.
func (d *decaying) value(now endpoint.Moment, halfLife float64) float64 {
	return decay(float64(d.sum), now.Since(d.at), halfLife)
}

// add adds to the sum, and returns it.
func (d *decaying) add(amount float64, now endpoint.Moment, halfLife float64) float64 {
	sum := d.value(now, halfLife) + amount
	d.sum, d.at = float32(sum), now
	return sum
}

// atLeast raises the sum to least, if it is lower.
func (d *decaying) atLeast(least float64, now endpoint.Moment, halfLife float64) {
	d.add(max(least-d.value(now, halfLife), 0), now, halfLife)
}

func decay(sum, elapsed, halfLife float64) float64 {
	if elapsed == 0 || sum == 0 {
		return sum
	}
	return sum * math.Exp2(-elapsed/halfLife)
}

func newMemory(rungs int) *memory {
	sets := 1
	for sets*memoryWays < rungs {
		sets *= 2
	}
	return &memory{sets: make([]memorySet, sets)}
}

// note counts a request with these rungs, and fills in for each its share of all traffic and where it went.
// doubt is how many requests without the rung are taken to have come too.
func (m *memory) note(rungs []prefix.Rung, now endpoint.Moment, halfLife, doubt float64, seen []sighting) {
	m.mu.Lock()
	defer m.mu.Unlock()
	total := m.traffic.add(1, now, halfLife) + doubt
	for i := range rungs {
		e := m.entry(rungs[i].Key, now)
		traffic := e.traffic.add(1, now, halfLife)
		seen[i] = sighting{share: traffic / total, places: e.places}
	}
}

// sighting is what the memory had of a rung.
type sighting struct {
	share  float64 // of the traffic, 0..1
	places [maxPlaces]place
}

// put notes that a prompt of that many bytes went to the endpoint tagged so.
func (m *memory) put(rungs []prefix.Rung, bytes int64, tag Tag, now endpoint.Moment, agreed bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.place(rungs, bytes, tag, now, agreed)
}

// place is put. The caller holds mu.
func (m *memory) place(rungs []prefix.Rung, bytes int64, tag Tag, now endpoint.Moment, agreed bool) {
	for i := range rungs {
		p := place{tag: tag, at: now, agreed: agreed}
		if i == len(rungs)-1 {
			p.reach = uint16(min(bytes>>10, math.MaxUint16)) //nolint:gosec // bounded
		}
		m.entry(rungs[i].Key, now).put(p)
	}
}

// hear notes a pick that another replica made.
func (m *memory) hear(t *Told, now endpoint.Moment, halfLife float64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.traffic.add(1, now, halfLife)
	for i := range t.Rungs {
		m.entry(t.Rungs[i].Key, now).traffic.add(1, now, halfLife)
	}
	m.place(t.Rungs, t.Bytes, t.Endpoint, now, true)
}

// total is how many requests came lately.
func (m *memory) total(now endpoint.Moment, halfLife float64) float64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.traffic.value(now, halfLife)
}

// recall is what one set remembers.
func (m *memory) recall(set int, now endpoint.Moment, halfLife float64) (rungs []Remembered) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for i, key := range m.sets[set].keys {
		e := &m.sets[set].entries[i]
		r := Remembered{Key: key, Traffic: e.traffic.value(now, halfLife)}
		for _, p := range e.places {
			if p.tag != 0 {
				r.Places = append(r.Places, Place{p.tag, now.Since(p.at), p.reach})
			}
		}
		if r.Places != nil {
			rungs = append(rungs, r)
		}
	}
	return rungs
}

// learn takes in what another memory recalls. What is known already stays.
func (m *memory) learn(traffic float64, rungs []Remembered, now endpoint.Moment, halfLife float64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.traffic.atLeast(traffic, now, halfLife)
	for i := range rungs {
		e := m.entry(rungs[i].Key, now)
		e.traffic.atLeast(rungs[i].Traffic, now, halfLife)
		if e.places[0].tag != 0 {
			continue
		}
		for j, p := range rungs[i].Places[:min(len(rungs[i].Places), maxPlaces)] {
			e.places[j] = place{tag: p.Endpoint, at: now.Before(p.Age), reach: p.Reach, agreed: true}
		}
	}
}

// entry finds what is remembered of a rung, or takes the place of the one idle longest. The caller holds mu.
func (m *memory) entry(key prefix.Key, now endpoint.Moment) *rungMemory {
	set := &m.sets[uint64(key)&uint64(len(m.sets)-1)]
	oldest, longest := 0, int64(-1)
	for i, k := range set.keys {
		if k == key {
			return &set.entries[i]
		}
		if age := set.entries[i].idle(now); age > longest {
			longest, oldest = age, i
		}
	}
	set.keys[oldest], set.entries[oldest] = key, rungMemory{}
	return &set.entries[oldest]
}

// idle is how long ago the rung was asked for, in moments; one that never was has been idle the longest.
func (e *rungMemory) idle(now endpoint.Moment) int64 {
	if e.traffic == (decaying{}) {
		return math.MaxInt64
	}
	return int64(now - e.traffic.at) // it may wrap
}

// put puts a place before the others.
func (e *rungMemory) put(p place) {
	i := 0
	for i < maxPlaces-1 && e.places[i].tag != p.tag {
		i++
	}
	if e.places[i].tag == p.tag {
		p.reach = max(p.reach, e.places[i].reach)
		p.agreed = p.agreed || e.places[i].agreed
	}
	copy(e.places[1:i+1], e.places[:i])
	e.places[0] = p
}
