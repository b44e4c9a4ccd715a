// Package peer has the replicas of Homing tell each other what they have under way and where their requests went.
//
// Invariants: what is told is soft, so whatever is lost, late or wrong costs cache hits or an even load, never a
// request; no pick ever waits for a replica, and what is kept for one that does not read is bounded; and what a
// replica has told is taken back when it is not heard of any more.
//
// Each replica listens to every other: it opens a stream to the address that it was given, so nobody tells it
// anything that it did not ask for.
package peer

import (
	"context"
	"crypto/tls"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/homing-dev/homing/pkg/endpoint"
	"github.com/homing-dev/homing/pkg/peer/peerpb"
	"github.com/homing-dev/homing/pkg/picker"
)

const (
	// interval is how often what is new is told.
	interval = 50 * time.Millisecond
	// heartbeat is how often all is told, new or not.
	heartbeat = time.Second
	// silence is how long a replica, or a pool of its, is believed that is not heard of.
	silence = 3 * time.Second
)

// Options are what [Peers] are made of.
type Options struct {
	Store *endpoint.Store
	// Replicas is how many replicas there are, this one among them, until [Peers.Follow] says which; 1 or more.
	Replicas int
	// TLS is how others are spoken to; nil for plaintext.
	TLS        *tls.Config
	Registerer prometheus.Registerer
	Log        logr.Logger
}

// Other is another replica.
type Other struct {
	// Address is the host and port where it can be listened to.
	Address string
	// Picks says whether it gets requests, as far as is known. If it does and is not heard of, pickers allow for it.
	Picks bool
}

// Peers are the replicas, as this one sees them, and what it tells them. It is safe for concurrent use.
type Peers struct {
	peerpb.UnimplementedPeerServiceServer

	options  Options
	instance uint64
	metrics  *metrics
	changed  chan struct{} // holds a token while there are followers to start or end

	mu        sync.Mutex
	pools     map[string]*pool     // guarded by mu; by name
	listeners map[*listener]bool   // guarded by mu; true for those that were told nothing yet
	others    []Other              // guarded by mu; who should be listened to
	known     bool                 // guarded by mu; others is not a guess
	followers map[string]*follower // guarded by mu; by address
}

// pool is a pool that this replica serves.
type pool struct {
	name   endpoint.PoolName
	picker *picker.Picker
	clock  func() endpoint.Moment
	closed <-chan struct{} // when its port has closed

	// Of [Peers.Start] alone.
	report picker.Report
	told   []picker.Count
	toldAt time.Time
}

// New makes the peers of a replica that knows of none.
func New(o Options) *Peers {
	p := &Peers{
		options: o, instance: rand.Uint64() | 1, changed: make(chan struct{}, 1),
		pools: map[string]*pool{}, listeners: map[*listener]bool{}, followers: map[string]*follower{},
	}
	p.metrics = newMetrics(o.Registerer, p.oldest)
	p.recount()
	return p
}

// Serve shares a pool's picker, whose time is clock, until ctx has ended and the pool is not in the snapshot any
// more. It replaces an older picker of the pool.
func (p *Peers) Serve(ctx context.Context, name endpoint.PoolName, k *picker.Picker, clock func() endpoint.Moment) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pools[name.String()] = &pool{name: name, picker: k, clock: clock, closed: ctx.Done()}
	p.recount()
	for _, f := range p.followers {
		f.wakeLearner()
	}
}

// Follow says which other replicas there are, instead of those before.
func (p *Peers) Follow(others []Other) {
	p.mu.Lock()
	p.others, p.known = others, true
	p.mu.Unlock()
	p.wake()
}

// wake has followers started or ended.
func (p *Peers) wake() {
	select {
	case p.changed <- struct{}{}:
	default:
	}
}

// Start tells and listens until ctx ends. Others listen by way of the server that [Peers.Register] was given.
func (p *Peers) Start(ctx context.Context) {
	var following sync.WaitGroup
	defer following.Wait()
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	var t teller
	for {
		select {
		case <-ctx.Done():
			return
		case <-p.changed:
			p.reconcile(func(f *follower) {
				following.Go(func() { f.run(ctx) })
			})
		case now := <-ticker.C:
			p.tell(&t, now)
		}
	}
}

// reconcile makes the followers those that are wanted. One that is heard, and wanted no more, is heard to its end:
// a replica that goes still has requests under way.
func (p *Peers) reconcile(start func(*follower)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	wanted := make(map[string]bool, len(p.others))
	for _, o := range p.others {
		wanted[o.Address] = true
		f := p.followers[o.Address]
		if f == nil {
			f = newFollower(p, o.Address)
			p.followers[o.Address] = f
			start(f)
		}
		f.picks, f.wanted = o.Picks, true
	}
	for address, f := range p.followers {
		if !wanted[address] {
			f.picks, f.wanted = false, false
			if !f.heard {
				f.stop()
			}
		}
	}
	p.recount()
}

// ended takes note that a follower has.
func (p *Peers) ended(f *follower) {
	p.mu.Lock()
	delete(p.followers, f.address)
	p.recount()
	p.mu.Unlock()
	p.wake() // it may be wanted again
}

// recount tells the pickers how many replicas pick that are not heard of. The caller holds mu, but for New.
func (p *Peers) recount() {
	heard, unheard := 0, 0
	for _, f := range p.followers {
		switch {
		case f.heard:
			heard++
		case f.picks && !f.self:
			unheard++
		}
	}
	if !p.known {
		unheard = max(p.options.Replicas-1-heard, 0)
	}
	p.metrics.heard.Set(float64(heard))
	p.metrics.unheard.Set(float64(unheard))
	for _, pool := range p.pools {
		pool.picker.Unheard(unheard)
	}
}

// pool is the pool of that name, with the snapshot's view of it; nil if this replica does not serve it.
func (p *Peers) pool(name string) (*pool, *endpoint.Pool) {
	p.mu.Lock()
	served := p.pools[name]
	p.mu.Unlock()
	if served == nil {
		return nil, nil
	}
	view := p.options.Store.Snapshot().Pool(served.name)
	if view == nil {
		return nil, nil
	}
	return served, view
}
