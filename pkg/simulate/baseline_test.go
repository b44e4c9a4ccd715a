package simulate

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/homing-dev/homing/pkg/endpoint"
)

// stage is a router over four engines that nothing runs on.
type stage struct {
	router  Router
	engines []*Engine
}

func newStage(t *testing.T, name string) *stage {
	t.Helper()
	strategy, err := findStrategy(name)
	if err != nil {
		t.Fatal(err)
	}
	s := &stage{}
	for i := range 4 {
		s.engines = append(s.engines, newEngine(i, &Llama70B))
	}
	s.router = strategy.New(Env{
		Rand: rand.New(rand.NewPCG(1, 1)), Policy: endpoint.DefaultPolicy(),
		Name:   func(i int) string { return string(rune('a' + i)) },
		Engine: func(i int) *Engine { return s.engines[i] },
	})
	s.router.Publish([]int{0, 1, 2, 3})
	return s
}

func (s *stage) pick(t *testing.T, r *Request) *Flight {
	t.Helper()
	f := &Flight{Request: r}
	if err := s.router.Pick(0, f); err != nil {
		t.Fatal(err)
	}
	return f
}

func TestBoundedHashKeepsItsBound(t *testing.T) {
	s := newStage(t, "BoundedHash")
	counts := map[int]int{}
	for n := 1; n <= 100; n++ {
		counts[s.pick(t, request(1, Span{ID: 1, Tokens: 2000})).Engine]++
		for m, c := range counts {
			if bound := int(math.Ceil(ringLoadFactor * float64(n) / 4)); c > bound {
				t.Fatalf("of %d requests %d went to engine %d, want at most %d", n, c, m, bound)
			}
		}
	}
	idle := newStage(t, "BoundedHash")
	at := map[int]bool{}
	for range 20 {
		f := idle.pick(t, request(1, Span{ID: 1, Tokens: 2000}))
		at[f.Engine] = true
		idle.router.Done(0, f)
	}
	if len(at) != 1 {
		t.Errorf("an idle pool served one prefix from %d engines, want 1", len(at))
	}
}

func TestPrefixScorerGoesWhereThePrefixWentUnlessItQueues(t *testing.T) {
	s := newStage(t, "PrefixScorer")
	home := s.pick(t, request(1, Span{ID: 1, Tokens: 2000})).Engine
	for range 20 {
		if got := s.pick(t, request(1, Span{ID: 1, Tokens: 2000})).Engine; got != home {
			t.Fatalf("engine %d, want %d again", got, home)
		}
	}
	// Prefix 3 against queue 2: a queue alone does not drive it away, a queue and a full cache do.
	s.engines[home].scraped.stats = Stats{Waiting: 10}
	if got := s.pick(t, request(1, Span{ID: 1, Tokens: 2000})).Engine; got != home {
		t.Errorf("engine %d, want %d in spite of its queue", got, home)
	}
	s.engines[home].scraped.stats = Stats{Waiting: 10, KVUsage: 1}
	if got := s.pick(t, request(1, Span{ID: 1, Tokens: 2000})).Engine; got == home {
		t.Errorf("engine %d, want another: 3 for the prefix against 4 for an idle one", got)
	}
}

func TestRadixRouterSwitchesToTheShortestQueue(t *testing.T) {
	s := newStage(t, "RadixRouter")
	r := request(1, Span{ID: 1, Tokens: 2000})
	home := s.pick(t, r).Engine
	for n := 2; n <= radixAbsolute+1; n++ {
		if got := s.pick(t, r).Engine; got != home {
			t.Fatalf("request %d went to engine %d, want %d", n, got, home)
		}
	}
	if got := s.pick(t, r).Engine; got == home {
		t.Errorf("the request after %d on engine %d went there too", radixAbsolute+1, got)
	}
}

func TestRadixRouterGrowsTreesEvenly(t *testing.T) {
	s := newStage(t, "RadixRouter")
	counts := map[int]int{}
	for id := range uint64(40) {
		f := s.pick(t, request(1, Span{ID: id + 1, Tokens: 1000}))
		counts[f.Engine]++
		s.router.Done(0, f)
	}
	for m, n := range counts {
		if n != 10 {
			t.Errorf("engine %d got %d of 40 new prompts, want 10", m, n)
		}
	}
}

func TestKnownGroupsAreSpreadAndStay(t *testing.T) {
	s := newStage(t, "KnownGroups")
	home, counts := map[uint64]int{}, map[int]int{}
	for round := range 3 {
		for g := range uint64(10) {
			r := request(1, Span{ID: g + 1, Tokens: 100})
			r.Group = g
			at := s.pick(t, r).Engine
			if round == 0 {
				home[g] = at
				counts[at]++
			} else if home[g] != at {
				t.Errorf("group %d moved from %d to %d", g, home[g], at)
			}
		}
	}
	for m, n := range counts {
		if n < 2 || n > 3 {
			t.Errorf("engine %d has %d of 10 groups, want 2 or 3", m, n)
		}
	}
}

func TestOraclesSeeWhatIsCached(t *testing.T) {
	for _, name := range []string{"OracleGreedy", "OracleWork"} {
		s := newStage(t, name)
		r := request(1, Span{ID: 1, Tokens: 3000})
		b := &bench{t: t, engine: s.engines[2]}
		b.send(r)
		if got := s.pick(t, r).Engine; got != 2 {
			t.Errorf("%s: engine %d, want 2, which is about to compute the prompt", name, got)
		}
		b.run()
		if got := s.pick(t, r).Engine; got != 2 {
			t.Errorf("%s: engine %d, want 2, which holds the prompt", name, got)
		}
		b.send(request(1, Span{ID: 9, Tokens: 50_000}))
		if got := s.pick(t, r).Engine; got == 2 {
			t.Errorf("%s: engine 2, though it has 50,000 tokens to compute first", name)
		}
	}
}

func TestIndexForgetsTheLeastRecentlyUsed(t *testing.T) {
	x := newIndex()
	one := func(int) int { return 1 }
	x.add(0, []uint64{1, 2, 3}, one, 5)
	x.add(0, []uint64{10, 11}, one, 5)
	x.add(0, []uint64{1, 2, 3}, one, 5) // now 10, 11 are the oldest, 11 before 10
	x.add(0, []uint64{20}, one, 5)
	for _, test := range []struct {
		keys []uint64
		want int
	}{{[]uint64{1, 2, 3}, 3}, {[]uint64{10, 11}, 1}, {[]uint64{20}, 1}, {[]uint64{5}, 0}} {
		if got := x.match(0, test.keys); got != test.want {
			t.Errorf("%d of %v matched, want %d", got, test.keys, test.want)
		}
	}
	if x.size(0) != 5 || x.size(1) != 0 || x.match(1, []uint64{1}) != 0 {
		t.Errorf("sizes %d and %d, want 5 and 0", x.size(0), x.size(1))
	}
}

func TestScrapedIsOfTheLastTick(t *testing.T) {
	b := newBench(t, small(100_000))
	b.send(request(1, Span{ID: 1, Tokens: 100}))
	if got := b.engine.Scraped(ScrapeInterval - 1); got.Waiting != 0 {
		t.Errorf("%d waiting, want what the metrics said at 0", got.Waiting)
	}
	if got := b.engine.Scraped(ScrapeInterval); got.Waiting != 1 {
		t.Errorf("%d waiting, want 1 at the next tick", got.Waiting)
	}
}
