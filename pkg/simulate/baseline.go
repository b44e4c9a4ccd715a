package simulate

import (
	"math"
	"sort"
	"time"
)

// The baselines were written from what their projects publish about them; see each one's comment. They
// stand for a manner of routing, not for a product: versions and settings differ.
func baselines() []Strategy {
	return []Strategy{
		{Name: "RoundRobin", About: "each engine in turn", New: func(env Env) Router {
			return &roundRobin{tally: newTally(env)}
		}},
		{
			Name: "BoundedHash", About: "consistent hashing of the first prefixLength characters with bounded loads, as KubeAI does",
			UsesLength: true,
			New:        func(env Env) Router { return &boundedHash{tally: newTally(env)} },
		},
		{
			Name: "PrefixScorer", About: "the reference picker's scores: approximate prefix index 3, queue 2, KV cache in use 2",
			New: func(env Env) Router { return &prefixScorer{tally: newTally(env), index: newIndex()} },
		},
		{
			Name: "RadixRouter", About: "longest match in a radix tree, else the smallest tree, or the shortest queue when load is uneven, as SGLang's router does",
			New: func(env Env) Router { return &radixRouter{tally: newTally(env), index: newIndex()} },
		},
		{
			Name: "RadixLeastLoad", About: "the same, but else the least loaded, as SMG's documentation has it today",
			New: func(env Env) Router { return &radixRouter{tally: newTally(env), index: newIndex(), leastLoad: true} },
		},
	}
}

// tally counts requests in flight, as every router does.
type tally struct {
	Env
	members  []int
	inFlight map[int]int
}

func newTally(env Env) tally { return tally{Env: env, inFlight: map[int]int{}} }

func (t *tally) Publish(members []int) { t.members = members }

func (t *tally) send(f *Flight, to int) {
	f.Engine = to
	t.inFlight[to]++
}

func (t *tally) Move(_ time.Duration, f *Flight, to int) {
	t.inFlight[f.Engine]--
	t.send(f, to)
}

func (t *tally) Done(_ time.Duration, f *Flight) { t.inFlight[f.Engine]-- }

// best is the member with the greatest score; among equals chance decides.
func (t *tally) best(score func(member int) float64) int {
	best, top, equals := -1, math.Inf(-1), 0
	for _, m := range t.members {
		switch s := score(m); {
		case best < 0 || s > top:
			best, top, equals = m, s, 1
		case s == top:
			equals++
			if t.Rand.IntN(equals) == 0 {
				best = m
			}
		}
	}
	return best
}

// fewest is the member with the fewest requests in flight.
func (t *tally) fewest() int { return t.best(func(m int) float64 { return -float64(t.inFlight[m]) }) }

type roundRobin struct {
	tally
	next int
}

func (r *roundRobin) Pick(_ time.Duration, f *Flight) error {
	r.send(f, r.members[r.next%len(r.members)])
	r.next++
	return nil
}

// boundedHash is consistent hashing with bounded loads (Mirrokni, Thorup and Zadimoghaddam, 2016) in the
// manner of KubeAI's PrefixHash: 256 places an engine on a ring; the key's first engine clockwise with
// fewer than 1.25 times the mean requests in flight. KubeAI hashes 100 characters by default; here it is
// given the policy's prefixLength, so that it sees as much as PrefixAware.
type boundedHash struct {
	tally
	ring []place
}

type place struct {
	at     uint64
	member int
}

const (
	ringPlaces     = 256
	ringLoadFactor = 1.25
)

func (b *boundedHash) Publish(members []int) {
	b.members, b.ring = members, nil
	for _, m := range members {
		seed := hashString(b.Name(m))
		for i := range uint64(ringPlaces) {
			b.ring = append(b.ring, place{mix(seed, i), m})
		}
	}
	sort.Slice(b.ring, func(i, j int) bool { return b.ring[i].at < b.ring[j].at })
}

func (b *boundedHash) Pick(_ time.Duration, f *Flight) error {
	total := 1
	for _, m := range b.members {
		total += b.inFlight[m]
	}
	bound := int(math.Ceil(ringLoadFactor * float64(total) / float64(len(b.members))))
	key := uint64(f.Key(b.Policy.PrefixLength))
	start := sort.Search(len(b.ring), func(i int) bool { return b.ring[i].at >= key })
	for i := range b.ring {
		p := b.ring[(start+i)%len(b.ring)]
		if b.inFlight[p.member] < bound {
			b.send(f, p.member)
			return nil
		}
	}
	b.send(f, b.fewest()) // not reached: some member is under the mean
	return nil
}

func hashString(s string) (h uint64) {
	for _, c := range []byte(s) {
		h = mix(h, uint64(c))
	}
	return h
}

// prefixScorer follows the default profile of the Gateway API Inference Extension's endpoint picker
// (v1.5.0, its configuration guide and defaults): 3 x prefix + 2 x queue + 2 x KV cache, highest total
// wins. The prefix index learns from this replica's own picks; blocks are 16 tokens' worth of characters,
// 256 of them at most are looked at, and an engine's list is as long as its cache, as the engine's metrics
// tell. Queue depth and KV use are scraped every 50 ms.
type prefixScorer struct {
	tally
	index index
	keys  []uint64
}

const (
	scorerBlock     = 16
	scorerMaxBlocks = 256
)

func (p *prefixScorer) Pick(now time.Duration, f *Flight) error {
	p.keys = f.blockKeys(scorerBlock, scorerMaxBlocks, p.keys[:0])
	least, most := math.MaxInt, 0
	for _, m := range p.members {
		waiting := p.Engine(m).Scraped(now).Waiting
		least, most = min(least, waiting), max(most, waiting)
	}
	to := p.best(func(m int) float64 {
		stats := p.Engine(m).Scraped(now)
		queue := 1.
		if most > least {
			queue = float64(most-stats.Waiting) / float64(most-least)
		}
		prefix := 0.
		if len(p.keys) > 0 {
			prefix = float64(p.index.match(m, p.keys)) / float64(len(p.keys))
		}
		return 3*prefix + 2*queue + 2*(1-stats.KVUsage)
	})
	capacity := p.Engine(to).cache.capacity
	p.index.add(to, p.keys, func(int) int { return 1 }, capacity)
	p.send(f, to)
	return nil
}

// radixRouter follows the cache-aware policy of SGLang's router and of SMG, its successor, as they describe
// it: when the loads differ by more than 64 requests and by more than 1.5 times, the shortest queue; else
// the engine whose tree matches most of the prompt, if that is more than 0.3 of it; else the one with the
// smallest tree (SGLang) or the least load (SMG). A tree holds 2^26, which is taken for characters; here it
// forgets at once what is over, there every two minutes.
type radixRouter struct {
	tally
	index     index
	keys      []uint64
	leastLoad bool
}

const (
	radixMatch    = 0.3
	radixAbsolute = 64
	radixRelative = 1.5
	radixTree     = 1 << 26
)

func (r *radixRouter) Pick(_ time.Duration, f *Flight) error {
	r.keys = r.keys[:0]
	for _, s := range f.prompt() {
		r.keys = append(r.keys, s.chain)
	}
	to := r.choose(f)
	chars := func(i int) int {
		if i == 0 {
			return int(f.spans[0].end) * f.charsPerToken
		}
		return int(f.spans[i].end-f.spans[i-1].end) * f.charsPerToken
	}
	r.index.add(to, r.keys, chars, radixTree)
	r.send(f, to)
	return nil
}

func (r *radixRouter) choose(f *Flight) int {
	least, most := math.MaxInt, 0
	for _, m := range r.members {
		least, most = min(least, r.inFlight[m]), max(most, r.inFlight[m])
	}
	if most-least > radixAbsolute && float64(most) > radixRelative*float64(least) {
		return r.fewest()
	}
	matched := func(m int) float64 {
		if n := r.index.match(m, r.keys); n > 0 {
			return float64(f.spans[n-1].end) / float64(f.Prompt)
		}
		return 0
	}
	if to := r.best(matched); matched(to) > radixMatch {
		return to
	}
	if r.leastLoad {
		return r.fewest()
	}
	return r.best(func(m int) float64 { return -float64(r.index.size(m)) })
}
