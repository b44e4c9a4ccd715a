// Package picker chooses the endpoint of a request and counts it in flight, in one step.
//
// It is pure: no I/O, no clock, no logging, and no allocation in a pick. All strategies but one are the
// same scan over the pool: order the endpoints by (excess load, rendezvous score) and take the first.
// What such a strategy chooses is the key that scores, and the threshold from which load counts as excess.
//
// AdaptivePrefix alone remembers: which prefixes are asked for how often, and where they went. What it
// remembers is soft, bounded, and behind a lock that is never held while endpoints are looked at.
package picker

import (
	"errors"
	"math"
	"math/bits"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/homing-dev/homing/pkg/endpoint"
	"github.com/homing-dev/homing/pkg/prefix"
)

var (
	// ErrNoEndpoints says that the pool has no ready endpoint, or none inside the request's subset.
	ErrNoEndpoints = errors.New("no ready endpoint")
	// ErrSaturated says that every endpoint is at the policy's threshold and the policy refuses overflow.
	ErrSaturated = errors.New("every endpoint is at its concurrency threshold")
)

// MaxFallbacks is how many endpoints beside the picked one an answer names.
const MaxFallbacks = 2

// Request is what a pick depends on.
type Request struct {
	// Key is the request's prefix key; it counts only when HasKey is set.
	Key    prefix.Key
	HasKey bool
	// Subset, unless nil, are the only addresses that may be picked, sorted by netip.AddrPort.Compare.
	// Port 0 stands for every port of an address. See [SortSubset].
	Subset []netip.AddrPort

	// Rungs are the ladder of the prompt, for AdaptivePrefix; at most [prefix.MaxRungs].
	Rungs []prefix.Rung
	// Bytes is how long the prompt is, as far as is known.
	Bytes int64
	// Now is when it is picked for.
	Now endpoint.Moment
}

// SortSubset puts a subset hint in the order that a [Request] wants, in place.
func SortSubset(subset []netip.AddrPort) { slices.SortFunc(subset, netip.AddrPort.Compare) }

// allows says whether a subset hint names the endpoint.
func (r *Request) allows(e *endpoint.Endpoint) bool {
	if _, ok := slices.BinarySearchFunc(r.Subset, e.Addr, netip.AddrPort.Compare); ok {
		return true
	}
	_, ok := slices.BinarySearchFunc(r.Subset, netip.AddrPortFrom(e.Addr.Addr(), 0), netip.AddrPort.Compare)
	return ok
}

// Outcome says why a pick went where it went.
type Outcome uint8

// The outcomes of a pick.
const (
	// NoKey: the strategy does not look at keys, or the request has none.
	NoKey Outcome = iota
	// Home: the endpoint that rendezvous hashing gives the key; with AdaptivePrefix where the anchor went last or is
	// placed, without an anchor where work is least.
	Home
	// Spill: another than home, which is at its threshold or, with AdaptivePrefix, has too much more to do.
	Spill
	// Saturated: every endpoint is at the threshold; the least loaded.
	Saturated
)

var outcomeNames = [...]string{"no_key", "home", "spill", "saturated"}

func (o Outcome) String() string { return outcomeNames[o] }

// Outcomes is every outcome, for metrics that are resolved ahead.
func Outcomes() []Outcome { return []Outcome{NoKey, Home, Spill, Saturated} }

// Pick is a request that is counted in flight at an endpoint, from [Picker.Pick] until
// [Pick.Release]. The zero Pick counts nothing. A Pick belongs to one stream: it is not safe for
// concurrent use.
type Pick struct {
	// Endpoint is where the request is counted, nil when it is counted nowhere.
	Endpoint *endpoint.Endpoint
	// Fallbacks are where a gateway should retry, best first, nil where the pool has no more.
	Fallbacks [MaxFallbacks]*endpoint.Endpoint
	Outcome   Outcome

	// Of AdaptivePrefix, until the prompt is computed.
	picker  *Picker
	pending int64   // bytes to compute that are counted at Endpoint
	ahead   float64 // bytes to compute there when it was sent, these included
	sent    endpoint.Moment
}

// Release ends the request. It says whether there was one to end: of many calls, one says true.
func (p *Pick) Release() bool {
	if p.Endpoint == nil {
		return false
	}
	p.settle()
	p.Endpoint.Load.Release()
	p.Endpoint = nil
	return true
}

// Started says that the answer's first token has come: the endpoint has computed the prompt.
func (p *Pick) Started(now endpoint.Moment) { p.answered(now, true) }

// Ended says that the answer has come to its end. Nothing need be said of one that failed.
func (p *Pick) Ended(now endpoint.Moment) { p.answered(now, false) }

func (p *Pick) answered(now endpoint.Moment, firstToken bool) {
	if p.Endpoint == nil || p.picker == nil {
		return
	}
	p.picker.speed.learn(p.ahead, p.pending, now.Since(p.sent), firstToken)
	p.settle()
}

// settle no longer counts the prompt as something to compute.
func (p *Pick) settle() {
	if p.picker != nil {
		p.Endpoint.Load.AddPending(-p.pending)
		p.picker, p.pending = nil, 0
	}
}

// move counts the request at another endpoint instead, the one that really serves it. A Pick that was
// released stays released.
func (p *Pick) move(to *endpoint.Endpoint) {
	if p.Endpoint == nil || p.Endpoint.Load == to.Load {
		return
	}
	to.Load.Add()
	to.Load.AddPending(p.pending)
	p.Endpoint.Load.AddPending(-p.pending)
	p.Endpoint.Load.Release()
	p.Endpoint = to
}

// Picker picks the endpoints of one pool. It is safe for concurrent use.
type Picker struct {
	random func() uint64
	tuning Tuning
	speed  speed
	// remembers is the memory, made when it is first needed.
	remembers func() *memory
	// others is how many more replicas pick for the pool without a word to this one.
	others atomic.Int64
	outbox outbox
}

// New returns the picker of a pool. It draws from random, a source of uniform 64-bit numbers that is safe
// for concurrent use.
func New(random func() uint64) *Picker { return NewTuned(random, DefaultTuning()) }

// NewTuned returns a picker with other constants for AdaptivePrefix.
func NewTuned(random func() uint64, t Tuning) *Picker {
	k := &Picker{
		random: random, tuning: t,
		remembers: sync.OnceValue(func() *memory { return newMemory(t.Rungs) }),
	}
	k.others.Store(int64(t.Others))
	return k
}

// Moved notes that another endpoint than the picked one serves the request: its home follows it there.
func (k *Picker) Moved(req *Request, p *Pick, to *endpoint.Endpoint) {
	p.move(to)
	if len(req.Rungs) > 0 {
		k.remembers().put(req.Rungs, req.Bytes, TagOf(to), req.Now, k.others.Load() == 0)
		k.outbox.add(Told{Endpoint: TagOf(to), Rungs: req.Rungs, Bytes: req.Bytes})
	}
}

// Pick chooses an endpoint of the pool by its policy's strategy, counts the request there, and notes
// both in p, which must be zero or released. It waits for nothing, except that
// AdaptivePrefix takes its memory's lock and its outbox's. The errors are [ErrNoEndpoints] and
// [ErrSaturated]; with either, nothing is counted.
func (k *Picker) Pick(pool *endpoint.Pool, req *Request, p *Pick) error {
	key, threshold := uint64(req.Key), int64(pool.Policy.ConcurrencyThreshold)
	keyed := false
	switch {
	case pool.Policy.Strategy == endpoint.AdaptivePrefix && len(req.Rungs) > 0:
		return k.pickAdaptive(pool, req, p)
	case pool.Policy.Strategy == endpoint.Random:
		key, threshold = k.random(), math.MaxInt64
	case pool.Policy.Strategy.UsesKey() && req.HasKey: // AdaptivePrefix has a key alone if there is no text
		keyed = true
	default: // least outstanding: every unit of load is excess, and a random key breaks ties
		key, threshold = k.random(), 0
	}
	return pick(pool, req, order{key: key, threshold: threshold, keyed: keyed}, p)
}

// order is what ranks the endpoints of a pool for one request.
type order struct {
	key       uint64
	threshold int64 // in-flight requests from which on load outranks score
	keyed     bool  // the key is the request's own, so the top score is its home
}

// maxRescans bounds the retries against other picks. Each failed try means that another pick
// succeeded, so the bound is met only under a storm; then an exact count matters less than an answer.
const maxRescans = 64

func pick(pool *endpoint.Pool, req *Request, o order, p *Pick) error {
	limit := int64(math.MaxInt64)
	if pool.Policy.Reject {
		limit = int64(pool.Policy.ConcurrencyThreshold)
	}
	for try := 0; ; try++ {
		r := rank(pool, req, o)
		best := r.top[0]
		if best.endpoint == nil {
			return ErrNoEndpoints
		}
		if r.least >= limit {
			return ErrSaturated
		}
		if best.inFlight >= limit {
			// Only Random gets here: its draw fell on a full endpoint while another has room.
			o.threshold = limit
			continue
		}
		if !best.endpoint.Load.Acquire(best.own) {
			if try < maxRescans {
				continue
			}
			best.endpoint.Load.Add()
		}
		p.Endpoint = best.endpoint
		for i := range p.Fallbacks {
			p.Fallbacks[i] = r.top[i+1].endpoint
		}
		p.Outcome = o.outcome(r)
		return nil
	}
}

func (o order) outcome(r ranking) Outcome {
	best := r.top[0]
	switch {
	case !o.keyed:
		return NoKey
	case best.inFlight >= o.threshold:
		return Saturated
	case best.endpoint == r.home.endpoint:
		return Home
	default:
		return Spill
	}
}

// ranking is the head of a pool's order for one request.
type ranking struct {
	top   [1 + MaxFallbacks]candidate
	home  candidate // the best score, whatever its load
	least int64     // in-flight count of the least loaded endpoint
}

type candidate struct {
	endpoint *endpoint.Endpoint // nil: the place is free, and everything comes before it
	own      int64              // requests in flight that this replica picked it for
	inFlight int64              // all that are known of
	excess   int64              // in-flight count, once at the threshold; else 0
	score    uint64             // by rendezvous, equal for all ports of a pod; more is better
}

// outscores orders by rendezvous alone. The ports of a pod share its score; which of them is first
// depends on the key, so that one port does not become the home of all.
func (c *candidate) outscores(d *candidate) bool {
	if c.score != d.score || d.endpoint == nil {
		return c.score >= d.score
	}
	return mix(c.score, uint64(c.endpoint.ID.Port)) < mix(d.score, uint64(d.endpoint.ID.Port))
}

func (c *candidate) before(d *candidate) bool {
	if c.excess != d.excess {
		return c.excess < d.excess
	}
	return c.outscores(d)
}

func rank(pool *endpoint.Pool, req *Request, o order) (r ranking) {
	r.least = math.MaxInt64
	for i := range r.top {
		r.top[i].excess = math.MaxInt64
	}
	worst := &r.top[len(r.top)-1]
	for _, e := range pool.Endpoints {
		if req.Subset != nil && !req.allows(e) {
			continue
		}
		c := candidate{endpoint: e, own: e.Load.InFlight(), score: mix(o.key, e.Seed)}
		elsewhere, _ := e.Load.Elsewhere()
		c.inFlight = c.own + elsewhere
		if c.inFlight >= o.threshold {
			c.excess = c.inFlight
		}
		if !pool.EqualWeights {
			c.score = weighted(c.score, e.Weight)
		}
		r.least = min(r.least, c.inFlight)
		if c.score >= r.home.score && c.outscores(&r.home) {
			r.home = c
		}
		if c.excess <= worst.excess && c.before(worst) { // the first test settles most
			r.insert(c)
		}
	}
	return r
}

// insert puts c, which comes before the last of the best, in its place among them.
func (r *ranking) insert(c candidate) {
	i := len(r.top) - 1
	for ; i > 0 && c.before(&r.top[i-1]); i-- {
		r.top[i] = r.top[i-1]
	}
	r.top[i] = c
}

// mix is a hash of two words: the two halves of their 128-bit product, folded, as in wyhash.
func mix(a, b uint64) uint64 {
	hi, lo := bits.Mul64(a^0x9e3779b97f4a7c15, b^0xe7037ed1a0b428db)
	hi, lo = bits.Mul64(hi^lo^0xa0761d6478bd642f, a^0x8ebc6af09c88c6e3)
	return hi ^ lo
}

// weighted is the score of weighted rendezvous hashing, -w / ln(u) with u uniform in (0, 1): the share
// of keys is proportional to the weight, and a changed weight moves only the keys it gains or loses.
// With equal weights it orders as h does, so that is used as it is. The bits of a positive
// floating-point number order as the number does.
func weighted(h uint64, weight float64) uint64 {
	u := (float64(h>>11) + 0.5) / (1 << 53)
	return math.Float64bits(-weight / math.Log(u))
}
