package simulate

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// small is hardware whose costs are easy to add up by hand: a step takes 1 ms and 0.01 ms a token.
func small(kvTokens int) *Hardware {
	return &Hardware{
		Overhead: 1, PerToken: 0.01,
		Memory: Memory{KVTokens: kvTokens, BlockTokens: 16, StepTokens: 1000, Sequences: 100},
	}
}

// bench drives one engine by hand.
type bench struct {
	t      *testing.T
	engine *Engine
	now    time.Duration
	first  []*Flight
	done   []*Flight
}

func newBench(t *testing.T, hw *Hardware) *bench {
	return &bench{t: t, engine: newEngine(0, hw)}
}

func request(output int, spans ...Span) *Request {
	return NewRequest(spans, rand.Uint64()|1<<63, output, DefaultCharsPerToken)
}

func (b *bench) send(r *Request) *Flight {
	f := &Flight{Request: r}
	b.engine.enqueue(f, b.now)
	return f
}

// step runs one step and returns how long it took, 0 if there was nothing to do.
func (b *bench) step() time.Duration {
	b.t.Helper()
	took, ok := b.engine.start(b.now)
	b.audit()
	if !ok {
		return 0
	}
	b.now += took
	b.engine.finish(b.now, func(f *Flight) { f.first = b.now; b.first = append(b.first, f) },
		func(f *Flight) { b.done = append(b.done, f) })
	b.audit()
	return took
}

func (b *bench) run() {
	b.t.Helper()
	for range 100_000 {
		if b.step() == 0 {
			return
		}
	}
	b.t.Fatal("the engine does not come to an end")
}

func (b *bench) audit() { b.t.Helper(); audit(b.t, b.engine) }

// audit checks that blocks are conserved, and that lists and counts say the same.
func audit(t *testing.T, e *Engine) {
	t.Helper()
	c := e.cache
	private, cached, idle, pins, ring, pending := 0, 0, 0, 0, 0, 0
	for _, f := range e.running {
		private += f.lease.private
		pins += len(f.lease.pinned)
		pending += f.expected
		if f.lease.private < 0 {
			t.Fatalf("a request holds %d private blocks", f.lease.private)
		}
	}
	for _, f := range e.waiting {
		pending += f.expected
		if len(f.lease.pinned) > 0 || f.lease.private > 0 {
			t.Fatal("a waiting request holds blocks")
		}
	}
	for _, s := range c.segments {
		cached += s.blocks
		pins -= s.pins
		if s.pins == 0 {
			idle += s.blocks
		}
	}
	for s := c.lru.next; s != &c.lru; s = s.next {
		ring += s.blocks
		if s.pins > 0 || s.blocks == 0 {
			t.Fatalf("in the ring: %d pins, %d blocks", s.pins, s.blocks)
		}
	}
	if c.free < 0 || c.free+private+cached != c.capacity {
		t.Fatalf("%d free + %d private + %d cached blocks, want %d", c.free, private, cached, c.capacity)
	}
	if pins != 0 || idle != c.idle || ring != idle {
		t.Fatalf("pins are off by %d; %d blocks idle, %d counted, %d in the ring", pins, idle, c.idle, ring)
	}
	if pending != e.pending {
		t.Fatalf("pending %d, want %d", e.pending, pending)
	}
}

func ms(v float64) time.Duration { return time.Duration(v * float64(time.Millisecond)) }

func TestStepTimeByHand(t *testing.T) {
	hw := Llama70B
	tests := []struct {
		name string
		w    work
		want float64 // ms
	}{
		{"one sequence decodes at 1,000 tokens", work{tokens: 1, decoding: 1, context: 1000}, 4.3 + 7.3 + 1.3 + 0.017 + 0.01},
		{"a prompt of 1,000 tokens", work{tokens: 1000, attention: 500_000}, 4.3 + 28 + 11.5 + 0.365},
		{"a full step after 8,192 tokens", work{tokens: 8192, attention: 8192 * (8192 + 4096)}, 4.3 + 229.376 + 94.208 + 73.4842061},
	}
	for _, test := range tests {
		if got := hw.step(test.w).Seconds() * 1000; got < test.want-1e-4 || got > test.want+1e-4 {
			t.Errorf("%s: %.5f ms, want %.5f", test.name, got, test.want)
		}
	}
}

func TestOnePromptByHand(t *testing.T) {
	b := newBench(t, small(100_000))
	f := b.send(request(3, Span{ID: 1, Tokens: 2500}))
	// Chunks of 1,000, 1,000 and 500, which gives the first token, and two more tokens.
	var got []time.Duration
	for took := b.step(); took > 0; took = b.step() {
		got = append(got, took)
	}
	want := []time.Duration{ms(11), ms(11), ms(6), ms(1.01), ms(1.01)}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("step times (-want +got):\n%s", d)
	}
	if f.first != ms(28) || len(b.done) != 1 || f.produced != 3 {
		t.Errorf("first token at %v with %d tokens in all, want 28ms and 3", f.first, f.produced)
	}
	if got := b.engine.totals; got.Prompt != 2500 || got.Computed != 2500 || got.Output != 3 || got.Cached != 0 {
		t.Errorf("totals %+v", got)
	}
}

func TestPrefixIsFoundInWholeBlocks(t *testing.T) {
	tests := []struct {
		name   string
		second []Span
		want   int
	}{
		{"the same again: the last token is computed", []Span{{ID: 1, Tokens: 96}, {ID: 2, Tokens: 64}}, 144},
		{"another end", []Span{{ID: 1, Tokens: 96}, {ID: 3, Tokens: 64}}, 96},
		{"a longer end", []Span{{ID: 1, Tokens: 96}, {ID: 2, Tokens: 64}, {ID: 4, Tokens: 40}}, 160},
		{"another start", []Span{{ID: 9, Tokens: 96}, {ID: 2, Tokens: 64}}, 0},
	}
	for _, test := range tests {
		b := newBench(t, small(100_000))
		b.send(request(1, Span{ID: 1, Tokens: 96}, Span{ID: 2, Tokens: 64}))
		b.run()
		r := request(1, test.second...)
		if got := b.engine.Cached(r); got != test.want {
			t.Errorf("%s: %d tokens cached, want %d", test.name, got, test.want)
		}
		f := b.send(r)
		b.run()
		if f.Hit != test.want {
			t.Errorf("%s: %d tokens hit, want %d", test.name, f.Hit, test.want)
		}
	}
}

func TestBlockAcrossTwoSpansBelongsToBoth(t *testing.T) {
	b := newBench(t, small(100_000))
	b.send(request(1, Span{ID: 1, Tokens: 40}, Span{ID: 2, Tokens: 40}))
	b.run()
	for second, want := range map[uint64]int{2: 64, 3: 32} { // 32..48 holds 8 tokens of the second span
		if got := b.engine.Cached(request(1, Span{ID: 1, Tokens: 40}, Span{ID: second, Tokens: 40})); got != want {
			t.Errorf("second span %d: %d cached, want %d", second, got, want)
		}
	}
}

func TestAnswerIsFoundByTheNextTurn(t *testing.T) {
	b := newBench(t, small(100_000))
	b.send(NewRequest([]Span{{ID: 1, Tokens: 32}}, 7, 33, 4))
	b.run()
	next := request(1, Span{ID: 1, Tokens: 32}, Span{ID: 7, Tokens: 33}, Span{ID: 2, Tokens: 10})
	if got := b.engine.Cached(next); got != 64 {
		t.Errorf("%d tokens cached, want 64: the last token of an answer is never computed", got)
	}
}

func TestLeastRecentlyUsedGoesFirstFromItsEnd(t *testing.T) {
	b := newBench(t, small(16*16)) // 16 blocks
	long := func(id uint64) *Request { return request(1, Span{ID: id, Tokens: 16 * 5}) }
	for _, id := range []uint64{1, 2, 3, 1} { // 15 blocks; 2 is now the oldest
		b.send(long(id))
		b.run()
	}
	b.send(request(1, Span{ID: 40, Tokens: 16 * 3})) // one block is free, two must go
	b.run()
	for id, want := range map[uint64]int{1: 64, 2: 48, 3: 64} {
		if got := b.engine.Cached(long(id)); got != want {
			t.Errorf("prompt %d: %d tokens cached, want %d", id, got, want)
		}
	}
}

func TestPinnedBlocksStay(t *testing.T) {
	b := newBench(t, small(16*10))
	holder := b.send(request(60, Span{ID: 1, Tokens: 16 * 4})) // runs for long
	b.step()
	for id := range uint64(5) {
		b.send(request(1, Span{ID: 10 + id, Tokens: 16 * 4}))
		for range 3 {
			b.step()
		}
	}
	if got := b.engine.cache.match(holder.spans); got < 4 {
		t.Errorf("%d blocks of a running request are cached, want 4 or more", got)
	}
	b.run()
	if len(b.done) != 6 {
		t.Errorf("%d requests done, want 6", len(b.done))
	}
}

func TestFullCachePreemptsTheLastAndServesItLater(t *testing.T) {
	b := newBench(t, small(16*8))
	first := b.send(request(40, Span{ID: 1, Tokens: 48}))
	second := b.send(request(40, Span{ID: 2, Tokens: 48}))
	b.run()
	if b.engine.totals.Preemptions == 0 {
		t.Error("nothing was preempted, though both do not fit")
	}
	if len(b.done) != 2 || b.done[0] != first || second.produced != 40 {
		t.Errorf("%d done; the second has %d tokens, want 40", len(b.done), second.produced)
	}
	if got := b.engine.totals; got.Output != 80 || got.Prompt != 96 || got.Requests != 2 {
		t.Errorf("totals %+v: a preempted request must count once", got)
	}
}

func TestFirstComeFirstServedWithinTheBudget(t *testing.T) {
	b := newBench(t, small(100_000))
	var sent []*Flight
	for id := range uint64(4) {
		sent = append(sent, b.send(request(1, Span{ID: id + 1, Tokens: 700})))
	}
	// 1,000 tokens a step: 700 + 300, 400 + 600, 100 + 700.
	for _, want := range []time.Duration{ms(11), ms(11), ms(9)} {
		if got := b.step(); got != want {
			t.Errorf("a step took %v, want %v", got, want)
		}
	}
	b.run()
	for i, f := range b.first {
		if f != sent[i] {
			t.Fatalf("request %d was served out of turn", i)
		}
	}
}

func TestSequencesAreBounded(t *testing.T) {
	hw := small(100_000)
	hw.Sequences = 2
	b := newBench(t, hw)
	for id := range uint64(5) {
		b.send(request(5, Span{ID: id + 1, Tokens: 20}))
	}
	b.step()
	if got := len(b.engine.running); got != 2 {
		t.Errorf("%d sequences run, want 2", got)
	}
	b.run()
	if len(b.done) != 5 {
		t.Errorf("%d done, want 5", len(b.done))
	}
}

// TestRandomTrafficConservesBlocks has many prompts that share much of their text run under KV pressure,
// with every step audited.
func TestRandomTrafficConservesBlocks(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	hw := small(16 * 60)
	hw.StepTokens = 100
	b := newBench(t, hw)
	asked, prompts := 0, 0
	for range 400 {
		var spans []Span
		for range 1 + r.IntN(5) {
			id := uint64(1 + r.IntN(4))
			spans = append(spans, Span{ID: id, Tokens: int(7 + 13*id)})
		}
		f := b.send(NewRequest(spans, uint64(r.IntN(3)), 1+r.IntN(60), 4))
		asked += f.Output
		prompts += f.Prompt
		for range r.IntN(12) {
			b.step()
		}
	}
	b.run()
	got := b.engine.totals
	if got.Output != asked || got.Prompt != prompts || len(b.done) != 400 || got.Requests != 400 {
		t.Errorf("served %d of %d tokens for %d of %d, %d requests done", got.Output, asked, got.Prompt, prompts, len(b.done))
	}
	if got.Preemptions == 0 || got.Cached == 0 {
		t.Errorf("%d preemptions, %d tokens hit: the test is to see both", got.Preemptions, got.Cached)
	}
	if c := b.engine.cache; c.room() != c.capacity {
		t.Errorf("%d of %d blocks can be had at the end", c.room(), c.capacity)
	}
	if b.engine.pending != 0 {
		t.Errorf("%d tokens pending at the end", b.engine.pending)
	}
}
