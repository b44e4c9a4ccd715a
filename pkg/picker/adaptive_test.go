package picker

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/homing-dev/homing/pkg/endpoint"
	"github.com/homing-dev/homing/pkg/prefix"
)

// chat is a request whose messages are these.
func chat(at time.Duration, messages ...string) *Request {
	text := []byte(strings.Join(messages, "|"))
	var l prefix.Ladder
	l.Build(prefix.Scope{}, text, func(text []byte, at int) int {
		if i := bytes.IndexByte(text[at+1:], '|'); i >= 0 {
			return at + 1 + i
		}
		return len(text)
	})
	return &Request{Rungs: slices.Clone(l.Rungs()), Bytes: int64(len(text)), Now: endpoint.MomentOf(at)}
}

const second endpoint.Moment = 256

// message is a message of that many bytes that begins like no other.
func message(size int, name ...any) string {
	text := fmt.Sprint(name...) + " "
	return text + strings.Repeat("x", size-len(text))
}

func adaptivePool(n int) *endpoint.Pool { return newPool(adaptivePolicy(), specs(n)) }

// served picks for the request, has it answered a second later, and names the endpoint.
func served(t testing.TB, k *Picker, pool *endpoint.Pool, req *Request) string {
	t.Helper()
	p := mustPick(t, k, pool, req)
	name := p.Endpoint.Name
	p.Ended(req.Now + second)
	p.Release()
	return name
}

func tunedPicker(change func(*Tuning)) *Picker {
	t := DefaultTuning()
	change(&t)
	return NewTuned(rand.Uint64, t)
}

// counts is how often each name is there, most often first.
func counts[K comparable](names map[K]string) []int {
	by := map[string]int{}
	for _, name := range names {
		by[name]++
	}
	var list []int
	for _, n := range by {
		list = append(list, n)
	}
	slices.SortFunc(list, func(a, b int) int { return b - a })
	return list
}

// tenChats has ten conversations under one system prompt take turns, and returns their homes; it fails if
// one moves.
func tenChats(t *testing.T, k *Picker, pool *endpoint.Pool, from time.Duration) map[int]string {
	t.Helper()
	homes := map[int]string{}
	history := map[int][]string{}
	for turn := range 20 {
		for c := range 10 {
			if turn == 0 {
				history[c] = []string{message(1200, "system")}
			}
			history[c] = append(history[c], message(1500, "question", c, turn))
			at := from + time.Duration(turn*10+c)*2*time.Second
			name := served(t, k, pool, chat(at, history[c]...))
			history[c] = append(history[c], message(300, "answer", c, turn))
			if turn == 0 {
				homes[c] = name
			} else if homes[c] != name {
				t.Fatalf("conversation %d went to %s and then, in turn %d, to %s", c, homes[c], turn, name)
			}
		}
	}
	return homes
}

func TestTenConversationsKeepTheirHomesAndFallEvenly(t *testing.T) {
	homes := tenChats(t, New(rand.Uint64), adaptivePool(3), 0)
	if diff := cmp.Diff([]int{4, 3, 3}, counts(homes)); diff != "" {
		t.Errorf("conversations at each endpoint (-want +got):\n%s", diff)
	}
}

func TestAnEndpointIsNotLeftIdleForWhatItHadToDo(t *testing.T) {
	k, pool := New(rand.Uint64), adaptivePool(3)
	for i := range 20 { // a while ago, one endpoint had all the work
		req := chat(time.Duration(i)*100*time.Millisecond, message(5000, "before", i))
		req.Subset = []netip.AddrPort{pool.Endpoints[1].Addr}
		served(t, k, pool, req)
	}
	homes := map[int]string{}
	for c := range 10 {
		homes[c] = served(t, k, pool, chat(22*time.Second, message(5000, "now", c)))
	}
	if got := counts(homes); len(got) < 3 || got[2] < 2 {
		t.Errorf("ten conversations at once are %v at three endpoints, want some at each", got)
	}
}

func TestASharedPromptHerdsNobody(t *testing.T) {
	k, pool := New(rand.Uint64), adaptivePool(5)
	homes := map[int]string{}
	for c := range 500 {
		req := chat(time.Duration(c)*100*time.Millisecond, message(8000, "system"), message(2000, "question", c))
		homes[c] = served(t, k, pool, req)
	}
	for _, n := range counts(homes)[:5] {
		if n < 80 || n > 120 {
			t.Errorf("500 conversations are %v at 5 endpoints, want about 100 at each", counts(homes))
			break
		}
	}
}

// Without load to tell endpoints apart, the one that got the first prompt is the cheapest for all that begin like it.
func TestASharedPromptHerdsNobodyInQuietTimes(t *testing.T) {
	for _, test := range []struct{ endpoints, prompts, conversations, most int }{
		{3, 1, 10, 5}, {7, 1, 28, 7}, {7, 3, 42, 10},
	} {
		k, pool := New(rand.Uint64), adaptivePool(test.endpoints)
		homes := map[int]string{}
		for c := range test.conversations {
			req := chat(time.Duration(c)*10*time.Second, message(20_000, "system", c%test.prompts), message(1000, "question", c))
			homes[c] = served(t, k, pool, req)
		}
		if got := counts(homes); len(got) < test.endpoints || got[0] > test.most {
			t.Errorf("%d conversations under %d prompts, one at a time, are %v at %d endpoints",
				test.conversations, test.prompts, got, test.endpoints)
		}
	}
}

// A prefix lives on about twice as many endpoints as its share of the traffic takes, and a rare one on one.
func TestAPrefixLivesWhereItsShareNeeds(t *testing.T) {
	for _, test := range []struct {
		every, min, max int // one of so many requests has it, and so many endpoints should
	}{
		{1, 9, 10}, {5, 3, 5}, {8, 2, 3}, {100, 1, 1},
	} {
		k, pool := New(rand.Uint64), adaptivePool(10)
		used := map[string]bool{}
		for i := range 2000 {
			prompt := message(6000, "document", i)
			hot := i%test.every == 0
			if hot {
				prompt = message(6000, "the hot one")
			}
			name := served(t, k, pool, chat(time.Duration(i)*50*time.Millisecond, prompt, message(400, "question", i)))
			if hot && i > 1000 {
				used[name] = true
			}
		}
		if len(used) < test.min || len(used) > test.max {
			t.Errorf("a prefix of 1/%d of the traffic lives on %d of 10, want %d..%d", test.every, len(used), test.min, test.max)
		}
	}
}

// A prefix that is suddenly all that is asked for leaves its home before its share of the traffic is known.
func TestAFlashOfHeatSpreadsAtOnce(t *testing.T) {
	k, pool := New(rand.Uint64), adaptivePool(7)
	for i := range 500 {
		served(t, k, pool, chat(time.Duration(i)*100*time.Millisecond, message(6000, "document", i%100)))
	}
	inFlight := map[string]int{}
	for i := range 140 { // nothing of this is answered
		req := chat(50*time.Second+time.Duration(i)*time.Millisecond, message(6000, "flash"), message(100, "question", i))
		inFlight[mustPick(t, k, pool, req).Endpoint.Name]++
	}
	for _, n := range inFlight {
		if len(inFlight) != 7 || n > 35 {
			t.Fatalf("140 requests at once are %v at 7 endpoints, want about 20 at each", inFlight)
		}
	}
}

func TestHomeIsLeftOnlyIfItHasMuchMoreToDo(t *testing.T) {
	k, pool := New(rand.Uint64), adaptivePool(2)
	for i := range 100 {
		served(t, k, pool, chat(0, message(8000, "other", i)))
	}
	home := served(t, k, pool, chat(0, message(8000, "conversation")))
	turn := func(i int) *Pick { // what was computed before is cached; the question is new, and waits
		return mustPick(t, k, pool, chat(time.Second, message(8000, "conversation"), message(4000, "question", i)))
	}
	for i := range 20 {
		p := turn(i)
		if p.Outcome == Home && p.Endpoint.Name == home {
			continue
		}
		if i < 2 || p.Outcome != Spill || p.Endpoint.Name == home {
			t.Errorf("pick %d went to %s with outcome %v, home is %s", i, p.Endpoint.Name, p.Outcome, home)
		}
		if next := turn(i + 1); next.Outcome != Home || next.Endpoint != p.Endpoint {
			t.Errorf("home did not follow to %s: %s, %v", p.Endpoint.Name, next.Endpoint.Name, next.Outcome)
		}
		return
	}
	t.Error("20 requests wait at home, and none at the other endpoint")
}

func TestAdaptiveKeepsTheThreshold(t *testing.T) {
	policy := adaptivePolicy()
	policy.ConcurrencyThreshold = 3
	k, pool := New(rand.Uint64), newPool(policy, specs(2))
	home := ""
	for i := range 6 {
		p := mustPick(t, k, pool, chat(0, message(8000, "prompt")))
		p.Ended(second) // nothing left to compute, but in flight
		if i == 0 {
			home = p.Endpoint.Name
		}
		if got := p.Endpoint.Load.InFlight(); got > 3 || p.Outcome == Saturated {
			t.Errorf("pick %d: %d in flight at %s, outcome %v; want at most 3", i, got, p.Endpoint.Name, p.Outcome)
		}
	}
	if p := mustPick(t, k, pool, chat(0, message(8000, "prompt"))); p.Outcome != Saturated || p.Endpoint.Name != home {
		t.Errorf("all full: %s with outcome %v, want home %s saturated", p.Endpoint.Name, p.Outcome, home)
	}
	policy.Reject = true
	full := *pool
	full.Policy = policy
	var p Pick
	if err := k.Pick(&full, chat(0, message(8000, "prompt")), &p); !errors.Is(err, ErrSaturated) || p.Endpoint != nil {
		t.Errorf("all full and Reject: %v", err)
	}
}

func TestAdaptiveStaysInTheSubset(t *testing.T) {
	k, pool := New(rand.Uint64), adaptivePool(5)
	req := chat(0, message(3000, "prompt"))
	home := served(t, k, pool, req)
	var other *endpoint.Endpoint
	for _, e := range pool.Endpoints {
		if e.Name != home {
			other = e
		}
	}
	req.Subset = []netip.AddrPort{other.Addr}
	if got := served(t, k, pool, req); got != other.Name {
		t.Errorf("picked %s outside the subset", got)
	}
	req.Subset = []netip.AddrPort{}
	var p Pick
	if err := k.Pick(pool, req, &p); !errors.Is(err, ErrNoEndpoints) {
		t.Errorf("an empty subset: %v, want ErrNoEndpoints", err)
	}
}

// Fallbacks are those with the least work but the picked one, of the subset.
func TestAdaptiveFallbacksHaveTheLeastWork(t *testing.T) {
	for _, test := range []struct {
		endpoints, subset int
		want              []string
	}{
		{1, 1, nil}, {2, 2, []string{"pod-1"}}, {5, 5, []string{"pod-1", "pod-2"}}, {5, 2, []string{"pod-1"}}, {5, 1, nil},
	} {
		k, pool := New(rand.Uint64), adaptivePool(test.endpoints)
		for i, e := range pool.Endpoints { // the later, the more there is to do
			e.Load.AddPending(int64(i) * 100_000)
		}
		req := chat(0, message(3000, "prompt"))
		for _, e := range pool.Endpoints[:test.subset] {
			req.Subset = append(req.Subset, e.Addr)
		}
		SortSubset(req.Subset)
		p := mustPick(t, k, pool, req)
		var got []string
		for _, f := range p.Fallbacks {
			if f != nil {
				got = append(got, f.Name)
			}
		}
		if p.Endpoint.Name != "pod-0" || !slices.Equal(got, test.want) {
			t.Errorf("%d of %d endpoints: picked %s and then %v, want pod-0 and then %v",
				test.subset, test.endpoints, p.Endpoint.Name, got, test.want)
		}
	}
}

func TestWithoutRungsAdaptiveGoesByTheKeyOrTheLoad(t *testing.T) {
	k, pool := New(rand.Uint64), adaptivePool(5)
	first := served(t, k, pool, keyed(7))
	if again := served(t, k, pool, keyed(7)); again != first {
		t.Errorf("one key at %s and %s", first, again)
	}
	if p := mustPick(t, k, pool, &Request{}); p.Outcome != NoKey {
		t.Errorf("neither rungs nor key: %v", p.Outcome)
	}
}

// Replicas that share nothing agree on homes, and so does one that has lost its memory: as with PrefixAware,
// home is a matter of the prompt and the endpoints alone.
func TestReplicasThatShareNothingAgree(t *testing.T) {
	pool := adaptivePool(7)
	replica := func() *Picker { return tunedPicker(func(t *Tuning) { t.Others = 2 }) }
	a, b := replica(), replica()
	for i := range 300 {
		now := time.Duration(i) * time.Second
		home := served(t, a, pool, chat(now, message(2000, "prompt", i)))
		if other := served(t, b, pool, chat(now, message(2000, "prompt", i))); other != home {
			t.Errorf("prompt %d: %s and %s", i, home, other)
		}
		grown := chat(now, message(2000, "prompt", i), message(500, "more"))
		if lost := served(t, replica(), pool, grown); lost != home {
			t.Errorf("prompt %d: %s, and %s without memory", i, home, lost)
		}
	}
}

// Alone, a picker that lost its memory gives conversations new homes, evenly, and these stay.
func TestHomesStayAfterTheMemoryIsLost(t *testing.T) {
	pool := adaptivePool(3)
	tenChats(t, New(rand.Uint64), pool, 0)
	homes := tenChats(t, New(rand.Uint64), pool, time.Hour)
	if got := counts(homes); got[0] > 4 {
		t.Errorf("conversations at each endpoint: %v, want 4, 3, 3", got)
	}
}

func TestAnEndpointThatGoesMovesOnlyItsOwn(t *testing.T) {
	store, k := endpoint.NewStore(), New(rand.Uint64)
	pool := publish(store, adaptivePolicy(), specs(4))
	before := map[int]string{}
	now := time.Duration(0)
	next := func(c int) *Request {
		now += time.Second
		return chat(now, message(1500, "system"), message(2000, "conversation", c))
	}
	for c := range 40 {
		before[c] = served(t, k, pool, next(c))
	}
	fewer := publish(store, adaptivePolicy(), specs(4)[1:])
	after := map[int]string{}
	for c := range 40 {
		after[c] = served(t, k, fewer, next(c))
		if before[c] != "pod-0" && after[c] != before[c] || after[c] == "pod-0" {
			t.Errorf("conversation %d moved from %s to %s when pod-0 went", c, before[c], after[c])
		}
	}
	back := publish(store, adaptivePolicy(), specs(5)[1:])
	for c := range 40 {
		if got := served(t, k, back, next(c)); got != after[c] {
			t.Errorf("conversation %d moved from %s to %s when an endpoint came", c, after[c], got)
		}
	}
	if got := served(t, k, back, next(99)); got != "pod-4" {
		t.Errorf("a new conversation went to %s, want the endpoint that had nothing yet", got)
	}
}

func TestHomeFollowsARequestServedElsewhere(t *testing.T) {
	k, pool := New(rand.Uint64), adaptivePool(3)
	req := chat(0, message(4000, "conversation"))
	p := mustPick(t, k, pool, req)
	to := pool.Endpoints[0]
	if p.Endpoint == to {
		to = pool.Endpoints[1]
	}
	from := p.Endpoint
	k.Moved(req, p, to)
	if from.Load.InFlight() != 0 || from.Load.Pending() != 0 || to.Load.InFlight() != 1 || to.Load.Pending() == 0 {
		t.Errorf("after the move: %d and %d bytes in flight at the old, %d and %d at the new", from.Load.InFlight(), from.Load.Pending(), to.Load.InFlight(), to.Load.Pending())
	}
	p.Ended(second)
	p.Release()
	if got := served(t, k, pool, chat(2*time.Second, message(4000, "conversation"), message(400, "more"))); got != to.Name {
		t.Errorf("the next turn went to %s, want %s, which served the last", got, to.Name)
	}
}

func TestWeightsSetSharesOfConversations(t *testing.T) {
	for _, test := range []struct {
		weight   float64
		others   int
		min, max int // of 1,000 conversations
	}{
		{2, 0, 430, 570}, {2, 1, 430, 570}, {8, 0, 680, 870}, {8, 1, 730, 870}, {0.25, 0, 80, 150}, {0.25, 1, 80, 150},
	} {
		s := specs(3)
		s[0].Weight = test.weight
		k, pool := tunedPicker(func(t *Tuning) { t.Others = test.others }), newPool(adaptivePolicy(), s)
		got := 0
		for c := range 1000 {
			if served(t, k, pool, chat(time.Duration(c)*time.Second, message(2000, "conversation", c))) == "pod-0" {
				got++
			}
		}
		if got < test.min || got > test.max {
			t.Errorf("an endpoint of weight %v beside two of 1 got %d of 1000 conversations with %d other pickers, want %d..%d",
				test.weight, got, test.others, test.min, test.max)
		}
	}
}

// Whatever ends a request takes back all it counted, whatever is published meanwhile.
func TestAdaptiveCountsAreExactUnderStorm(t *testing.T) {
	store, k := endpoint.NewStore(), New(rand.Uint64)
	pool := publish(store, adaptivePolicy(), specs(8))
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(uint64(g), 1))
			for i := range 400 {
				req := chat(time.Duration(i)*time.Millisecond, message(1100, "system"), message(1500, r.IntN(20)))
				now := store.Snapshot().Pool(poolName)
				var p Pick
				if err := k.Pick(now, req, &p); err != nil {
					t.Error(err)
				}
				switch r.IntN(4) {
				case 0:
					k.Moved(req, &p, now.Endpoints[r.IntN(len(now.Endpoints))])
					p.Started(req.Now + second)
				case 1:
					p.Started(req.Now + second)
					p.Ended(req.Now + 2*second)
				case 2:
					p.Ended(req.Now + second)
				}
				if !p.Release() || p.Release() {
					t.Error("a pick must be released once")
				}
				if g == 0 {
					publish(store, adaptivePolicy(), specs(4+i%5))
				}
			}
		})
	}
	wg.Wait()
	for _, e := range pool.Endpoints {
		if e.Load.InFlight() != 0 || e.Load.Pending() != 0 {
			t.Errorf("%s has %d requests and %d bytes left", e.Name, e.Load.InFlight(), e.Load.Pending())
		}
	}
}

func TestAdaptivePicksAllocateNothing(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector has sync.Pool forget")
	}
	k, pool := New(rand.Uint64), adaptivePool(100)
	r := rand.New(rand.NewPCG(1, 2))
	shared := fullLadder(r, nil)
	var p Pick
	req := Request{Bytes: 1 << 16}
	var ladders [20][]prefix.Rung
	for i := range ladders {
		ladders[i] = fullLadder(r, shared[:64])
	}
	i := 0
	if n := testing.AllocsPerRun(200, func() {
		i++
		req.Rungs, req.Now = ladders[i%len(ladders)], endpoint.Moment(i)
		if err := k.Pick(pool, &req, &p); err != nil {
			t.Fatal(err)
		}
		p.Started(req.Now + 1)
		p.Release()
	}); n != 0 {
		t.Errorf("%v allocations a pick, want none", n)
	}
}

func TestRankIsRendezvous(t *testing.T) {
	a := &adaptive{Picker: New(rand.Uint64)}
	for n := 1; n < 40; n++ {
		for best := 1; best <= n; best++ {
			a.options = a.options[:0]
			for _, e := range adaptivePool(n).Endpoints {
				a.options = append(a.options, option{endpoint: e, tag: TagOf(e)})
			}
			a.rank(prefix.Key(n*100+best), a.options, best)
			worst, rest := slices.MinFunc(a.options[:best], byScore).score, a.options[best:]
			if len(rest) > 0 && slices.MaxFunc(rest, byScore).score > worst {
				t.Fatalf("the first %d of %d are not the best", best, n)
			}
		}
	}
}

func byScore(a, b option) int {
	switch {
	case a.score < b.score:
		return -1
	case a.score > b.score:
		return 1
	}
	return 0
}
