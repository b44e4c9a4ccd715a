package endpoint

import (
	"slices"
	"sync"
	"sync/atomic"
)

// Store holds the current snapshot behind one atomic pointer. Readers never wait; publishers take
// turns.
type Store struct {
	current atomic.Pointer[Snapshot]

	mu      sync.Mutex        // held by publishers, and by Changed
	loads   map[loadKey]*Load // guarded by mu; every Load a request may still be counted on
	changed chan struct{}     // guarded by mu; closed, and replaced, by each Publish
}

// loadKey is an endpoint of a pool: a pod that two pools select is two endpoints, each with its own load.
type loadKey struct {
	pool PoolName
	id   ID
}

// NewStore returns a store with an empty snapshot.
func NewStore() *Store {
	s := &Store{loads: map[loadKey]*Load{}, changed: make(chan struct{})}
	s.current.Store(&Snapshot{})
	return s
}

// Snapshot is the latest view. It stays valid, and unchanged, for as long as the caller keeps it.
func (s *Store) Snapshot() *Snapshot { return s.current.Load() }

// Publish replaces the snapshot by one that holds exactly these pools. Endpoints and pools that did
// not change are carried over; the load of an endpoint that went away is kept while requests are
// counted on it, so one that comes back with the same ID finds them. Of two specs with the same pool
// name or the same endpoint ID within a pool, the first counts.
func (s *Store) Publish(specs []PoolSpec) *Snapshot {
	s.mu.Lock()
	defer s.mu.Unlock()

	old := s.current.Load()
	loads := make(map[loadKey]*Load, len(s.loads))
	next := &Snapshot{pools: make(map[PoolName]*Pool, len(specs))}
	for _, spec := range specs {
		if next.pools[spec.Name] == nil {
			next.pools[spec.Name] = s.buildPool(spec, old.Pool(spec.Name), loads)
		}
	}
	for key, load := range s.loads {
		if load.InFlight() != 0 {
			loads[key] = load
		}
	}
	s.loads = loads
	s.current.Store(next)
	close(s.changed)
	s.changed = make(chan struct{})
	return next
}

// Changed returns a channel that is closed by the next Publish. Take the channel first and the
// snapshot after it, and no change is missed.
func (s *Store) Changed() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.changed
}

// buildPool makes the pool of a spec from what prev has in common with it, and notes its loads.
func (s *Store) buildPool(spec PoolSpec, prev *Pool, loads map[loadKey]*Load) *Pool {
	before := map[ID]*Endpoint{}
	if prev != nil {
		for _, e := range prev.Endpoints {
			before[e.ID] = e
		}
	}
	pool := &Pool{Name: spec.Name, Port: spec.Port, Policy: spec.Policy, EqualWeights: true}
	pool.Endpoints = make([]*Endpoint, 0, len(spec.Endpoints))
	for _, es := range spec.Endpoints {
		key := loadKey{spec.Name, es.ID}
		if _, twice := loads[key]; twice {
			continue
		}
		load := s.loads[key]
		if load == nil {
			load = &Load{}
		}
		loads[key] = load
		if es.Weight <= 0 {
			es.Weight = 1
		}
		e := before[es.ID]
		if e == nil || e.Spec != es || e.Load != load {
			e = newEndpoint(es, load)
		}
		pool.Endpoints = append(pool.Endpoints, e)
	}
	for _, e := range pool.Endpoints {
		pool.EqualWeights = pool.EqualWeights && e.Weight == pool.Endpoints[0].Weight
	}
	if prev != nil && prev.Port == pool.Port && prev.Policy == pool.Policy && slices.Equal(prev.Endpoints, pool.Endpoints) {
		return prev
	}
	return pool
}
