package picker

import (
	"math"
	"sync"

	"github.com/homing-dev/homing/pkg/endpoint"
	"github.com/homing-dev/homing/pkg/prefix"
)

// adaptive is one AdaptivePrefix pick under way: working space, reused.
type adaptive struct {
	*Picker
	Request         // a copy: a pointer kept here would put every request on the heap
	drain   float64 // bytes a second; see speed
	others  float64 // replicas that are not heard of

	weighted bool // some endpoints weigh more than others

	seen    [prefix.MaxRungs]sighting
	options []option // the endpoints that may serve; first those that the ladder narrows them to
	kept    int      // how many of the options that is
	anchor  int      // the rung that needs one endpoint, -1 if none does
	// Of the mean endpoint: what all replicas that are heard have under way there.
	meanInFlight, meanPending float64
}

// option is an endpoint that may serve, as one pick sees it.
type option struct {
	endpoint *endpoint.Endpoint
	tag      Tag
	full     bool    // at the policy's threshold, while another is not
	own      int64   // requests in flight that this replica picked it for
	inFlight int64   // all that are known of
	cached   int64   // bytes of the prompt that it is thought to hold
	pending  float64 // bytes of prompts that it has yet to compute
	work     float64
	score    uint64
}

var adaptives = sync.Pool{New: func() any { return new(adaptive) }}

// Tag names an endpoint in the memory, and to other replicas. It is never 0. Two endpoints of a pool share one
// about once in 2^31; then each is thought to hold what the other does.
type Tag uint32

// TagOf is the endpoint's tag, the same in every replica.
func TagOf(e *endpoint.Endpoint) Tag {
	return Tag(mix(e.Seed, uint64(e.ID.Port))) | 1 //nolint:gosec // half of it will do
}

// pickAdaptive walks down the request's ladder to its home, and goes there unless that has too much more to
// do than another endpoint.
func (k *Picker) pickAdaptive(pool *endpoint.Pool, req *Request, p *Pick) error {
	a := adaptives.Get().(*adaptive)
	a.Picker, a.Request = k, *req
	a.drain, a.others = k.speed.drain(), float64(k.others.Load())
	err := a.pick(pool, p)
	a.Picker, a.Request = nil, Request{}
	clear(a.options) // endpoints are not to be kept
	adaptives.Put(a)
	return err
}

func (a *adaptive) pick(pool *endpoint.Pool, p *Pick) error {
	memory := a.remembers()
	doubt := a.tuning.Doubt * float64(len(pool.Endpoints))
	memory.note(a.Rungs, a.Now, a.tuning.HalfLife, doubt, a.seen[:])
	a.weighted = !pool.EqualWeights
	for try := 0; ; try++ {
		if err := a.survey(pool); err != nil {
			return err
		}
		a.noteCached()
		a.narrow()
		home := a.home()
		chosen := a.choose(home)
		o := &a.options[chosen]
		if !o.endpoint.Load.Acquire(o.own) {
			if try < maxRescans {
				continue
			}
			o.endpoint.Load.Add()
		}
		a.fill(p, chosen)
		p.Outcome = Spill
		switch {
		case o.inFlight >= int64(pool.Policy.ConcurrencyThreshold):
			p.Outcome = Saturated
		case chosen == home:
			p.Outcome = Home
		}
		memory.put(a.Rungs, a.Bytes, o.tag, a.Now, a.others == 0)
		a.outbox.add(Told{Endpoint: o.tag, Rungs: a.Rungs, Bytes: a.Bytes, Uncached: p.pending})
		return nil
	}
}

// survey takes stock of the endpoints that may serve.
func (a *adaptive) survey(pool *endpoint.Pool) error {
	a.options = a.options[:0]
	threshold := int64(pool.Policy.ConcurrencyThreshold)
	least := int64(math.MaxInt64)
	a.meanInFlight, a.meanPending = 0, 0
	for _, e := range pool.Endpoints {
		if a.Subset != nil && !a.allows(e) {
			continue
		}
		o := option{endpoint: e, tag: TagOf(e), own: e.Load.InFlight()}
		inFlight, pending := e.Load.Elsewhere()
		o.inFlight, o.pending = o.own+inFlight, a.backlog(e.Load, pending)
		least = min(least, o.inFlight)
		a.meanInFlight += float64(o.inFlight)
		a.meanPending += o.pending
		a.options = append(a.options, o)
	}
	if len(a.options) == 0 {
		return ErrNoEndpoints
	}
	if least >= threshold && pool.Policy.Reject {
		return ErrSaturated
	}
	n := float64(len(a.options))
	a.meanInFlight, a.meanPending = a.meanInFlight/n, a.meanPending/n
	if least < threshold {
		for i := range a.options {
			a.options[i].full = a.options[i].inFlight >= threshold
		}
	}
	return nil
}

// noteCached notes which options are thought to hold how much of the prompt: who got a rung of it lately.
func (a *adaptive) noteCached() {
	const known = 16 // that many endpoints are looked at
	var tags [known]Tag
	var cached [known]int64
	n := 0
	for i := len(a.Rungs) - 1; i >= 0 && n < known; i-- {
		for _, pl := range a.seen[i].places {
			if pl.tag == 0 || a.Now.Since(pl.at) > a.tuning.Forget || n == known {
				break // the latest come first
			}
			j := 0
			for j < n && tags[j] != pl.tag {
				j++
			}
			if j < n {
				continue // it has a longer one
			}
			tags[n], cached[n] = pl.tag, int64(a.Rungs[i].Bytes)
			if beyond := min(int64(pl.reach)<<10, a.Bytes) - cached[n]; i == len(a.Rungs)-1 && beyond > 0 {
				cached[n] += int64(a.tuning.Beyond * float64(beyond))
			}
			n++
		}
	}
	for i := range a.options {
		for j := range n {
			if a.options[i].tag == tags[j] {
				a.options[i].cached = cached[j]
			}
		}
	}
}

// narrow walks down the ladder: a rung keeps as many of the options as its share of the traffic needs, in
// its rendezvous order. One with more traffic than is one endpoint's part is taken to be on all of these, or the first
// that got a prompt that all share would be everyone's home. The first rung that needs one endpoint is the anchor.
func (a *adaptive) narrow() {
	n := float64(len(a.options))
	a.kept, a.anchor = len(a.options), -1
	for i := range a.Rungs {
		share := a.seen[i].share
		keep := int(math.Ceil(a.tuning.Replication * share * n))
		if keep <= 1 {
			a.anchor = i
			return
		}
		if keep <= a.kept/2 { // by halves, so that it is seldom done and small changes of a share change nothing
			a.rank(a.Rungs[i].Key, a.options[:a.kept], keep)
			a.kept = keep
		}
		if share*n > 1 {
			for j := range a.options[:a.kept] {
				a.options[j].cached = max(a.options[j].cached, int64(a.Rungs[i].Bytes))
			}
		}
	}
}

// rank puts the best of the options by the key's rendezvous order to the front, in no order.
func (a *adaptive) rank(key prefix.Key, options []option, best int) {
	for i := range options {
		o := &options[i]
		o.score = mix(uint64(key), uint64(o.tag)^o.endpoint.Seed)
		if a.weighted {
			o.score = weighted(o.score, o.endpoint.Weight)
		}
	}
	for from, to := 0, len(options); to-from > 1 && best > from && best < to; {
		pivot := options[from+(to-from)/2].score // quickselect
		i, j := from, to-1
		for i <= j {
			switch {
			case options[i].score > pivot:
				i++
			case options[j].score < pivot:
				j--
			default:
				options[i], options[j] = options[j], options[i]
				i++
				j--
			}
		}
		switch {
		case best <= j+1:
			to = j + 1
		case best >= i:
			from = i
		default:
			return
		}
	}
}

// home is which option is home: where the anchor went last, or where it is placed; without an anchor, the
// one of those kept with the least work. What another replica does not know of is no home.
func (a *adaptive) home() int {
	if a.anchor < 0 {
		return a.least(a.options[:a.kept], a.workOf)
	}
	for _, pl := range a.seen[a.anchor].places {
		if a.others > 0 && !pl.agreed {
			continue
		}
		for i := range a.options {
			if a.options[i].tag == pl.tag {
				return i
			}
		}
	}
	if a.others > 0 || a.tuning.ByRendezvous {
		a.rank(a.Rungs[a.anchor].Key, a.options[:a.kept], 1)
		o := &a.options[0]
		if a.others > 0 {
			o.cached = max(o.cached, int64(a.tuning.Presumed*float64(a.Bytes)))
		}
		return 0
	}
	return a.least(a.options[:a.kept], a.latelyOf)
}

// least is the option with the least of something.
func (a *adaptive) least(options []option, of func(*option) float64) int {
	best, least := 0, math.Inf(1)
	for i := range options {
		if v := of(&options[i]); v < least {
			best, least = i, v
		}
	}
	return best
}

func (a *adaptive) latelyOf(o *option) float64 {
	sum, at := o.endpoint.Load.Lately.Load()
	return decay(sum, a.Now.Since(at), a.tuning.Recent) / o.endpoint.Weight
}

// uncached is how many bytes of the prompt the option would have to compute.
func (a *adaptive) uncached(o *option) float64 { return float64(max(a.Bytes-o.cached, 1)) }

// workOf is the option's marginal work: what it has to compute, and this request's part weighted, times the
// requests that this keeps busy and a few more. A heavier endpoint bears more load for the same work; an idle one
// is no better for its weight, or conversations would all leave the light ones.
func (a *adaptive) workOf(o *option) float64 {
	if o.full {
		return math.Inf(1)
	}
	t := &a.tuning
	inFlight, pending := float64(o.inFlight), o.pending
	if a.others > 0 {
		inFlight += a.others * (t.Alike*inFlight + (1-t.Alike)*a.meanInFlight)
		pending += a.others * (t.Alike*pending + (1-t.Alike)*a.meanPending)
	}
	weight := o.endpoint.Weight
	return (pending/weight + t.Uncached*a.uncached(o)) * (inFlight/weight + t.Base)
}

// choose is home, unless another has so much less to do.
func (a *adaptive) choose(home int) int {
	for i := range a.options {
		a.options[i].work = a.workOf(&a.options[i])
	}
	best := home
	for i := range a.options {
		if a.options[i].work < a.options[best].work {
			best = i
		}
	}
	if a.options[home].work > a.tuning.Leave*a.options[best].work {
		return best
	}
	return home
}

// fill counts what the chosen option has to compute, and names it and the two with the least work beside it.
func (a *adaptive) fill(p *Pick, chosen int) {
	o := &a.options[chosen]
	uncached := a.uncached(o)
	p.Endpoint, p.Fallbacks = o.endpoint, [MaxFallbacks]*endpoint.Endpoint{}
	p.picker, p.pending, p.sent, p.ahead = a.Picker, int64(uncached), a.Now, o.pending+uncached
	load := o.endpoint.Load
	load.AddPending(p.pending)
	a.sent(load, uncached, a.Now)

	var work [MaxFallbacks]float64
	for i := range a.options {
		if i == chosen {
			continue
		}
		o := &a.options[i]
		for j := range p.Fallbacks {
			if p.Fallbacks[j] == nil || o.work < work[j] {
				copy(p.Fallbacks[j+1:], p.Fallbacks[j:])
				copy(work[j+1:], work[j:])
				p.Fallbacks[j], work[j] = o.endpoint, o.work
				break
			}
		}
	}
}

// sent notes that the endpoint got so many bytes to compute.
func (k *Picker) sent(load *endpoint.Load, uncached float64, now endpoint.Moment) {
	drain := k.speed.drain()
	load.Backlog.Update(now, func(backlog, elapsed float64) float64 {
		return max(backlog-drain*elapsed, 0) + uncached
	})
	load.Lately.Update(now, func(lately, elapsed float64) float64 {
		return decay(lately, elapsed, k.tuning.Recent) + uncached
	})
}

// backlog is how many bytes of prompts the endpoint has yet to compute: those not known to be computed, and
// where only ends of answers are seen, no more than what is left at the usual rate. Elsewhere is what other
// replicas have pending there.
func (a *adaptive) backlog(load *endpoint.Load, elsewhere int64) float64 {
	pending := float64(load.Pending() + elsewhere)
	if a.drain == 0 || pending == 0 {
		return pending
	}
	backlog, at := load.Backlog.Load()
	return min(pending, max(backlog-a.drain*a.Now.Since(at), 0))
}
