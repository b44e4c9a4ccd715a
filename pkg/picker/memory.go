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
	tag uint32
	at  endpoint.Moment
	// reach is how long the longest prompt was that went there with this rung as its last.
	reach int32
}

// decaying is a sum whose parts halve in weight with each half-life.
type decaying struct {
	sum float32
	at  endpoint.Moment
}

// add adds to the sum, and returns it.
func (d *decaying) add(amount float64, now endpoint.Moment, halfLife float64) float64 {
	sum := decay(float64(d.sum), now.Since(d.at), halfLife) + amount
	d.sum, d.at = float32(sum), now
	return sum
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
		e := m.entry(rungs[i].Key)
		traffic := e.traffic.add(1, now, halfLife)
		seen[i] = sighting{share: traffic / total, traffic: traffic, places: e.places}
	}
}

// sighting is what the memory had of a rung.
type sighting struct {
	share   float64 // of the traffic, 0..1
	traffic float64 // requests
	places  [maxPlaces]place
}

// put notes that a prompt of that many bytes went to the endpoint tagged so.
func (m *memory) put(rungs []prefix.Rung, bytes int64, tag uint32, now endpoint.Moment) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for i := range rungs {
		reach := int32(0)
		if i == len(rungs)-1 {
			reach = int32(min(bytes, math.MaxInt32)) //nolint:gosec // bounded
		}
		m.entry(rungs[i].Key).put(place{tag, now, reach})
	}
}

// entry finds what is remembered of a rung, or takes the place of the one idle longest. The caller holds mu.
func (m *memory) entry(key prefix.Key) *rungMemory {
	set := &m.sets[uint64(key)&uint64(len(m.sets)-1)]
	oldest := 0
	for i, k := range set.keys {
		if k == key {
			return &set.entries[i]
		}
		if int32(set.entries[i].traffic.at-set.entries[oldest].traffic.at) < 0 { //nolint:gosec // it may wrap
			oldest = i
		}
	}
	set.keys[oldest], set.entries[oldest] = key, rungMemory{}
	return &set.entries[oldest]
}

// put puts a place before the others.
func (e *rungMemory) put(p place) {
	i := 0
	for i < maxPlaces-1 && e.places[i].tag != p.tag {
		i++
	}
	if e.places[i].tag == p.tag {
		p.reach = max(p.reach, e.places[i].reach)
	}
	copy(e.places[1:i+1], e.places[:i])
	e.places[0] = p
}
