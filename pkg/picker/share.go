package picker

import (
	"iter"
	"sync"

	"github.com/homing-dev/homing/pkg/endpoint"
	"github.com/homing-dev/homing/pkg/prefix"
)

// Report is what one replica tells the others of a pool. What it says is soft: a report that is lost or late
// costs cache hits or an uneven load, never a request.
type Report struct {
	// Counts is all that this replica has under way, by endpoint; those where it has nothing are left out.
	Counts []Count
	// Picks are what AdaptivePrefix chose since the last report. They hold until the next call of Report with
	// the same receiver.
	Picks []Told

	rungs []prefix.Rung
}

// Count is what a replica has under way at an endpoint.
type Count struct {
	Endpoint Tag
	InFlight int64 // requests
	Pending  int64 // bytes of prompts to compute
}

// Told is a pick, as replicas tell each other of it.
type Told struct {
	Endpoint Tag
	Rungs    []prefix.Rung
	// Bytes is how long the prompt is, Uncached how much of it the endpoint had to compute.
	Bytes, Uncached int64
}

// outbox holds the picks for the next report. The zero outbox takes none.
type outbox struct {
	mu    sync.Mutex
	picks []Told        // guarded by mu
	rungs []prefix.Rung // guarded by mu; the picks'
}

const (
	// maxTold and maxToldRungs bound a report, to 1.3 MB; picks beyond are not told.
	maxTold      = 4096
	maxToldRungs = 1 << 16
)

// add puts a pick into the outbox, if anybody reads it and there is room.
func (o *outbox) add(t Told) {
	o.mu.Lock()
	defer o.mu.Unlock()
	n := len(o.rungs)
	if len(o.picks) == cap(o.picks) || n+len(t.Rungs) > cap(o.rungs) {
		return
	}
	o.rungs = append(o.rungs, t.Rungs...)
	t.Rungs = o.rungs[n:len(o.rungs):len(o.rungs)]
	o.picks = append(o.picks, t)
}

// swap takes what is in the outbox, and gives room for what comes next.
func (o *outbox) swap(r *Report) {
	if r.rungs == nil {
		r.Picks, r.rungs = make([]Told, 0, maxTold), make([]prefix.Rung, 0, maxToldRungs)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	r.Picks, o.picks = o.picks, r.Picks[:0]
	r.rungs, o.rungs = o.rungs, r.rungs[:0]
}

// Report fills in what the other replicas should hear. With AdaptivePrefix, picks are kept for it from the first
// call on; there is one reader of them, who calls it with one receiver.
func (k *Picker) Report(pool *endpoint.Pool, r *Report) {
	r.Counts = r.Counts[:0]
	for _, e := range pool.Endpoints {
		if c := (Count{TagOf(e), e.Load.InFlight(), e.Load.Pending()}); c.InFlight != 0 || c.Pending != 0 {
			r.Counts = append(r.Counts, c)
		}
	}
	if pool.Policy.Strategy == endpoint.AdaptivePrefix || r.rungs != nil { // others have no picks to tell
		k.outbox.swap(r)
	}
}

// Unheard says how many other replicas pick for the pool without a word to this one.
func (k *Picker) Unheard(replicas int) { k.others.Store(int64(replicas)) }

// Peer is what another replica last said of a pool. The zero Peer has said nothing. It is not safe for
// concurrent use.
type Peer struct {
	counts map[*endpoint.Load]Count
}

// Hear takes in a report of another replica. What it says of endpoints that the pool does not have is skipped; its
// counts are taken in with the first report after they have come.
func (k *Picker) Hear(pool *endpoint.Pool, from *Peer, r *Report, now endpoint.Moment) {
	loads := make(map[Tag]*endpoint.Load, len(pool.Endpoints))
	for _, e := range pool.Endpoints {
		loads[TagOf(e)] = e.Load
	}
	counts := make(map[*endpoint.Load]Count, len(r.Counts))
	for _, c := range r.Counts {
		if load := loads[c.Endpoint]; load != nil {
			counts[load] = c
		}
	}
	from.replace(counts)
	if len(r.Picks) == 0 {
		return // without AdaptivePrefix there is no memory
	}
	memory := k.remembers()
	for i := range r.Picks {
		t := &r.Picks[i]
		memory.hear(t, now, k.tuning.HalfLife)
		if load := loads[t.Endpoint]; load != nil {
			k.sent(load, float64(t.Uncached), now)
		}
	}
}

// Forget takes back what the replica has under way: it is gone, or not heard of any more.
func (p *Peer) Forget() { p.replace(nil) }

// replace counts what the replica has under way now, instead of what it had.
func (p *Peer) replace(counts map[*endpoint.Load]Count) {
	for load, old := range p.counts {
		if _, still := counts[load]; !still {
			load.AddElsewhere(-old.InFlight, -old.Pending)
		}
	}
	for load, c := range counts {
		old := p.counts[load]
		load.AddElsewhere(c.InFlight-old.InFlight, c.Pending-old.Pending)
	}
	p.counts = counts
}

// Remembered is what a replica remembers of a rung, to tell one that has just begun.
type Remembered struct {
	Key prefix.Key
	// Traffic is how many requests had it lately.
	Traffic float64
	Places  []Place // the latest first
}

// Place is an endpoint that had a rung.
type Place struct {
	Endpoint Tag
	// Age is how many seconds ago.
	Age float64
	// Reach is how long the longest prompt was, in whole KiB, that went there with this rung as its last.
	Reach uint16
}

// Recall is all that the picker remembers, and how many requests came lately. It takes the memory's lock now
// and then, never for long.
func (k *Picker) Recall(now endpoint.Moment) (traffic float64, rungs iter.Seq[Remembered]) {
	m, halfLife := k.remembers(), k.tuning.HalfLife
	return m.total(now, halfLife), func(yield func(Remembered) bool) {
		for i := range m.sets {
			for _, r := range m.recall(i, now, halfLife) {
				if !yield(r) {
					return
				}
			}
		}
	}
}

// Learn takes in what another replica recalls, where this one knows less.
func (k *Picker) Learn(traffic float64, rungs []Remembered, now endpoint.Moment) {
	k.remembers().learn(traffic, rungs, now, k.tuning.HalfLife)
}
