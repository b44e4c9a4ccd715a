package simulate

import "time"

// Engine is one model server, in the manner of vLLM: each step runs every decoding sequence and as much
// of the waiting prompts as the token budget allows, first come first served.
type Engine struct {
	// Index is its place in the cluster; it never changes hands.
	Index int

	hw      *Hardware
	slow    float64 // factor on step times, 1 unless an event slowed it
	crowded float64 // factor on the present step's time, for other engines on the same processors
	cache   *cache
	waiting []*Flight // first come first; those that were preempted come before all others
	running []*Flight // in the order they were admitted
	stepped []*Flight // those that the present step works on
	busy    bool
	ends    time.Duration // of the present step, when busy
	dead    bool
	epoch   int // of events: those of a former life are void

	pending int // tokens of prompts that are still to be computed, as admission found them
	totals  EngineTotals
	scraped scrape
}

// EngineTotals is what an engine has done so far.
type EngineTotals struct {
	Requests    int
	Preemptions int
	// Prompt and Cached count a prompt's tokens and those found in the cache, when it is first admitted.
	Prompt, Cached int
	// Computed counts tokens of prompts that were computed, Output those that were generated.
	Computed, Output int
	// InFlight is the sum of the times that requests were in flight here.
	InFlight time.Duration
}

func newEngine(index int, hw *Hardware) *Engine {
	return &Engine{Index: index, hw: hw, slow: 1, crowded: 1, cache: newCache(hw.Memory)}
}

// Cached is how many tokens of the prompt the engine would find in its cache now.
func (e *Engine) Cached(r *Request) int {
	return e.usable(e.cache.match(r.prompt()), r.Prompt) * e.cache.block
}

// usable is how many of the cached blocks a prompt may use: its last token is always computed.
func (e *Engine) usable(blocks, tokens int) int { return min(blocks, (tokens-1)/e.cache.block) }

// Pending is how many tokens of prompts are still to be computed here.
func (e *Engine) Pending() int { return e.pending }

// InFlight is how many requests wait or run here.
func (e *Engine) InFlight() int { return len(e.waiting) + len(e.running) }

// enqueue hands the engine a request. Start a step if it is not busy.
func (e *Engine) enqueue(f *Flight, now time.Duration) {
	e.scrape(now)
	f.expected = f.Prompt - e.Cached(f.Request)
	e.pending += f.expected
	e.waiting = append(e.waiting, f)
}

// start plans a step and says how long it takes. ok is false when there is nothing to do.
func (e *Engine) start(now time.Duration) (took time.Duration, ok bool) {
	e.scrape(now)
	e.stepped = e.stepped[:0]
	var w work
	preempted := e.planRunning(&w)
	if !preempted {
		e.planWaiting(&w)
	}
	if len(e.stepped) == 0 {
		return 0, false
	}
	took = time.Duration(float64(e.hw.step(w)) * e.slow * e.crowded)
	e.busy, e.ends = true, now+took
	return took, true
}

func (e *Engine) planRunning(w *work) (preempted bool) {
	for i := 0; i < len(e.running) && w.tokens < e.hw.StepTokens; i++ {
		f := e.running[i]
		chunk := min(f.target()-f.computed, e.hw.StepTokens-w.tokens)
		for !e.cache.grow(&f.lease, e.blocks(f.computed+chunk)) {
			last := e.running[len(e.running)-1]
			e.running = e.running[:len(e.running)-1]
			e.preempt(last)
			preempted = true
			if last == f {
				return true
			}
		}
		e.plan(f, chunk, w)
	}
	return preempted
}

func (e *Engine) planWaiting(w *work) {
	for len(e.waiting) > 0 && w.tokens < e.hw.StepTokens && len(e.running) < e.hw.Sequences {
		f := e.waiting[0]
		e.cache.open(&f.lease, f.spans, e.usable(e.cache.match(f.known()), f.target()))
		found := f.lease.shared * e.cache.block
		chunk := min(f.target()-found, e.hw.StepTokens-w.tokens)
		if !e.cache.grow(&f.lease, e.blocks(found+chunk)) {
			e.cache.close(&f.lease)
			return
		}
		e.waiting = e.waiting[1:]
		e.running = append(e.running, f)
		e.admit(f, found)
		e.plan(f, chunk, w)
	}
}

// admit notes what the cache held of a prompt.
func (e *Engine) admit(f *Flight, found int) {
	f.computed = found
	e.pending -= f.expected
	f.expected = f.target() - found
	e.pending += f.expected
	if f.admitted {
		return // preempted before: not a new request
	}
	f.admitted = true
	f.Hit = found
	e.totals.Requests++
	e.totals.Prompt += f.Prompt
	e.totals.Cached += found
}

func (e *Engine) preempt(f *Flight) {
	e.cache.close(&f.lease)
	f.computed = 0
	e.pending -= f.expected
	f.expected = f.target()
	e.pending += f.expected
	e.waiting = append([]*Flight{f}, e.waiting...)
	e.totals.Preemptions++
}

// plan puts a chunk of f into the step.
func (e *Engine) plan(f *Flight, chunk int, w *work) {
	w.tokens += chunk
	if chunk == 1 && f.produced > 0 {
		w.decoding++
		w.context += f.computed
	} else {
		w.attention += chunk * (2*f.computed + chunk) / 2
	}
	f.chunk = chunk
	e.stepped = append(e.stepped, f)
}

func (e *Engine) blocks(tokens int) int { return (tokens + e.cache.block - 1) / e.cache.block }

// finish ends the step: what it computed is cached, and each sequence whose text is complete gets a token.
// It calls first for first tokens and done for answers that are complete.
func (e *Engine) finish(now time.Duration, first, done func(*Flight)) {
	e.scrape(now)
	e.busy = false
	for _, f := range e.stepped {
		f.computed += f.chunk
		if f.produced == 0 || f.chunk > 1 {
			e.totals.Computed += f.chunk
		}
		used := min(f.chunk, f.expected)
		f.expected -= used
		e.pending -= used
		f.chunk = 0
		e.cache.publish(&f.lease, f.spans, f.computed/e.cache.block)
		if f.computed < f.target() {
			continue
		}
		f.produced++
		e.totals.Output++
		if f.produced == 1 {
			first(f)
		}
	}
	e.retire(done)
}

// retire lets the sequences go that have produced all their tokens.
func (e *Engine) retire(done func(*Flight)) {
	kept := e.running[:0]
	for _, f := range e.running {
		if f.produced < f.Output {
			kept = append(kept, f)
			continue
		}
		e.cache.close(&f.lease)
		done(f)
	}
	clear(e.running[len(kept):])
	e.running = kept
}

// kill empties the engine and returns the requests that it had.
func (e *Engine) kill() []*Flight {
	lost := append(append([]*Flight(nil), e.running...), e.waiting...)
	e.waiting, e.running, e.stepped = nil, nil, nil
	e.cache = newCache(e.hw.Memory)
	e.pending, e.busy, e.dead = 0, false, true
	e.epoch++
	return lost
}

// Stats is what an engine's metrics say.
type Stats struct {
	Running, Waiting int
	// KVUsage is the share of blocks that running requests hold, 0..1, as vLLM counts it.
	KVUsage float64
}

func (e *Engine) stats() Stats {
	return Stats{
		Running: len(e.running), Waiting: len(e.waiting),
		KVUsage: 1 - float64(e.cache.room())/float64(e.cache.capacity),
	}
}

// ScrapeInterval is how often a picker that reads metrics reads them: the reference picker's default.
const ScrapeInterval = 50 * time.Millisecond

// scrape holds what the metrics said at the last multiple of ScrapeInterval.
type scrape struct {
	tick  time.Duration
	stats Stats
}

// scrape is called before the engine changes, so that a reading is of the time of its tick.
func (e *Engine) scrape(now time.Duration) {
	if tick := now / ScrapeInterval; tick > e.scraped.tick {
		e.scraped = scrape{tick: tick, stats: e.stats()}
	}
}

// Scraped is what a picker that reads metrics every ScrapeInterval knows.
func (e *Engine) Scraped(now time.Duration) Stats {
	e.scrape(now)
	return e.scraped.stats
}

// rest is how long the present step still takes.
func (e *Engine) rest(now time.Duration) time.Duration {
	if !e.busy {
		return 0
	}
	return e.ends - now
}

// prefill is about how long steps that compute so many tokens of prompts take, beside what is decoding.
func (e *Engine) prefill(tokens, attention int) time.Duration {
	w := work{tokens: len(e.running), decoding: len(e.running), attention: attention}
	took := time.Duration(0)
	for ; tokens > 0; tokens -= e.hw.StepTokens {
		w.tokens = len(e.running) + min(tokens, e.hw.StepTokens)
		took += e.hw.step(w)
		w.attention = 0
	}
	return time.Duration(float64(took) * e.slow)
}

// Promised is how many tokens of the prompt the engine holds or is about to: Cached, or what it has in
// common with a prompt that runs or waits there.
func (e *Engine) Promised(r *Request) int {
	blocks := e.cache.match(r.prompt())
	for _, list := range [2][]*Flight{e.waiting, e.running} {
		for _, f := range list {
			blocks = max(blocks, int(common(r, f.Request))/e.cache.block)
		}
	}
	return e.usable(blocks, r.Prompt) * e.cache.block
}

// common is how many tokens two prompts share from the start.
func common(a, b *Request) (tokens int32) {
	p, q := a.prompt(), b.prompt()
	for i := range min(len(p), len(q)) {
		if p[i].chain != q[i].chain {
			break
		}
		tokens = p[i].end
	}
	return tokens
}
