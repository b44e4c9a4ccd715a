package picker

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net/netip"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/homing-dev/homing/pkg/endpoint"
	"github.com/homing-dev/homing/pkg/prefix"
)

var poolName = endpoint.PoolName{Namespace: "ns", Name: "llama"}

// specs are n endpoints, one a pod, named pod-0 and on.
func specs(n int) []endpoint.Spec {
	s := make([]endpoint.Spec, n)
	for i := range s {
		s[i] = endpoint.Spec{
			ID:   endpoint.ID{UID: fmt.Sprintf("uid-%d", i), Port: 8000},
			Name: fmt.Sprintf("pod-%d", i),
			Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), 8000),
		}
	}
	return s
}

func publish(s *endpoint.Store, policy endpoint.Policy, endpoints []endpoint.Spec) *endpoint.Pool {
	return s.Publish([]endpoint.PoolSpec{{Name: poolName, Port: 9002, Policy: policy, Endpoints: endpoints}}).Pool(poolName)
}

func newPool(policy endpoint.Policy, endpoints []endpoint.Spec) *endpoint.Pool {
	return publish(endpoint.NewStore(), policy, endpoints)
}

func prefixAware(threshold int) endpoint.Policy {
	p := endpoint.DefaultPolicy()
	p.ConcurrencyThreshold = threshold
	return p
}

func newPicker() *Picker {
	r := rand.New(rand.NewPCG(1, 2))
	var mu sync.Mutex
	return New(func() uint64 {
		mu.Lock()
		defer mu.Unlock()
		return r.Uint64()
	})
}

func keyed(k uint64) *Request { return &Request{Key: prefix.Key(k), HasKey: true} }

func mustPick(t testing.TB, k *Picker, pool *endpoint.Pool, req *Request) *Pick {
	t.Helper()
	var p Pick
	if err := k.Pick(pool, req, &p); err != nil {
		t.Fatalf("Pick: %v", err)
	}
	return &p
}

// homes maps keys to the names of their homes, leaving nothing in flight.
func homes(t *testing.T, pool *endpoint.Pool, keys int) map[uint64]string {
	t.Helper()
	k, got := newPicker(), make(map[uint64]string, keys)
	r := rand.New(rand.NewPCG(7, 7))
	for range keys {
		key := r.Uint64()
		p := mustPick(t, k, pool, keyed(key))
		if p.Outcome != Home {
			t.Fatalf("an idle pool gave outcome %v", p.Outcome)
		}
		got[key] = p.Endpoint.Name
		p.Release()
	}
	return got
}

func TestHomesAreSharedEvenly(t *testing.T) {
	const keys = 20000
	for _, n := range []int{2, 3, 7, 100} {
		count := map[string]int{}
		for _, home := range homes(t, newPool(prefixAware(64), specs(n)), keys) {
			count[home]++
		}
		want := float64(keys) / float64(n)
		slack := 5 * math.Sqrt(want) // five standard deviations
		for name, got := range count {
			if math.Abs(float64(got)-want) > slack {
				t.Errorf("n=%d: %s is home of %d keys, want %.0f +- %.0f", n, name, got, want, slack)
			}
		}
		if len(count) != n {
			t.Errorf("n=%d: only %d endpoints are a home", n, len(count))
		}
	}
}

func TestHomesFollowWeights(t *testing.T) {
	const keys = 30000
	s := specs(3)
	s[0].Weight, s[1].Weight, s[2].Weight = 1, 2, 3
	count := map[string]int{}
	for _, home := range homes(t, newPool(prefixAware(64), s), keys) {
		count[home]++
	}
	for i, name := range []string{"pod-0", "pod-1", "pod-2"} {
		want := float64(keys) * float64(i+1) / 6
		if math.Abs(float64(count[name])-want) > 5*math.Sqrt(want) {
			t.Errorf("%s of weight %d is home of %d keys, want about %.0f", name, i+1, count[name], want)
		}
	}
}

// A weight that is not 1 must not turn the order of the others around.
func TestEqualWeightsGiveTheSameHomesWhateverTheWeight(t *testing.T) {
	one, three := specs(9), specs(9)
	for i := range three {
		three[i].Weight = 3
	}
	mixed := specs(9)
	mixed[0].Weight = 1e-9 // so the weighted path is taken, and pod-0 gets nothing
	a := homes(t, newPool(prefixAware(64), one), 3000)
	b := homes(t, newPool(prefixAware(64), three), 3000)
	c := homes(t, newPool(prefixAware(64), mixed), 3000)
	if diff := cmp.Diff(a, b); diff != "" {
		t.Errorf("weight 3 for all moved homes:\n%s", diff)
	}
	for key, home := range a {
		if home != "pod-0" && home != c[key] {
			t.Fatalf("key %x: home %s with equal weights, %s when scored by weight", key, home, c[key])
		}
	}
}

func TestOneEndpointMovesOnlyItsOwnShare(t *testing.T) {
	const keys = 20000
	for _, n := range []int{3, 7, 50} {
		before := homes(t, newPool(prefixAware(64), specs(n)), keys)
		after := homes(t, newPool(prefixAware(64), specs(n+1)), keys)
		joined, moved := fmt.Sprintf("pod-%d", n), 0
		for key, home := range after {
			if before[key] == home {
				continue
			}
			moved++
			if home != joined {
				t.Fatalf("n=%d: a key moved from %s to %s, neither of which joined", n, before[key], home)
			}
		}
		want := float64(keys) / float64(n+1)
		if math.Abs(float64(moved)-want) > 5*math.Sqrt(want) {
			t.Errorf("n=%d: %d keys moved, want about %.0f", n, moved, want)
		}
	}
}

func TestOrderOfEndpointsInThePoolDoesNotMatter(t *testing.T) {
	s := specs(20)
	turned := append(append([]endpoint.Spec{}, s[7:]...), s[:7]...)
	a, b := homes(t, newPool(prefixAware(64), s), 2000), homes(t, newPool(prefixAware(64), turned), 2000)
	if diff := cmp.Diff(a, b); diff != "" {
		t.Errorf("homes differ:\n%s", diff)
	}
}

func TestSpillFollowsTheKeysOwnOrder(t *testing.T) {
	const threshold = 3
	k, pool := newPicker(), newPool(prefixAware(threshold), specs(5))
	type step struct {
		Name    string
		Outcome Outcome
	}
	var first *Pick
	var got []step
	for i := range 5 * threshold {
		p := mustPick(t, k, pool, keyed(99))
		if i == 0 {
			first = p
		}
		got = append(got, step{p.Endpoint.Name, p.Outcome})
	}
	for i, s := range got {
		want := Spill
		if i < threshold {
			want = Home
		}
		if s.Outcome != want || s.Name != got[i/threshold*threshold].Name {
			t.Fatalf("pick %d went to %v, want outcome %v and runs of %d: %v", i, s, want, threshold, got)
		}
	}
	if first.Fallbacks[0].Name != got[threshold].Name || first.Fallbacks[1].Name != got[2*threshold].Name {
		t.Errorf("fallbacks of the first pick are %s and %s, want where the next went: %v",
			first.Fallbacks[0].Name, first.Fallbacks[1].Name, got)
	}
	for _, e := range pool.Endpoints {
		if e.Load.InFlight() != threshold {
			t.Errorf("%s has %d in flight, want %d everywhere", e.Name, e.Load.InFlight(), threshold)
		}
	}
	// All at the threshold: the least loaded takes the overflow, one by one.
	for range pool.Endpoints {
		if p := mustPick(t, k, pool, keyed(99)); p.Outcome != Saturated {
			t.Errorf("outcome = %v, want saturated", p.Outcome)
		}
	}
	for _, e := range pool.Endpoints {
		if e.Load.InFlight() != threshold+1 {
			t.Errorf("%s has %d in flight, want the overflow spread evenly", e.Name, e.Load.InFlight())
		}
	}
	// Home is home again as soon as it has room.
	first.Endpoint.Load.Release()
	first.Endpoint.Load.Release()
	if p := mustPick(t, k, pool, keyed(99)); p.Endpoint.Name != got[0].Name || p.Outcome != Home {
		t.Errorf("with room at home the pick went to %s (%v)", p.Endpoint.Name, p.Outcome)
	}
}

func TestTheNextPortOfAPodComesFirst(t *testing.T) {
	var s []endpoint.Spec
	for _, e := range specs(6) {
		for port := uint16(8000); port < 8004; port++ {
			e.ID.Port, e.Addr = port, netip.AddrPortFrom(e.Addr.Addr(), port)
			s = append(s, e)
		}
	}
	pool := newPool(prefixAware(1), s)
	k, firstPorts := newPicker(), map[uint16]int{}
	for key := range uint64(400) {
		var picks []*Pick
		for i := range 4 {
			p := mustPick(t, k, pool, keyed(key))
			picks = append(picks, p)
			if p.Endpoint.Name != picks[0].Endpoint.Name {
				t.Fatalf("key %d: pick %d left pod %s while it had a free port", key, i, picks[0].Endpoint.Name)
			}
		}
		firstPorts[picks[0].Endpoint.ID.Port]++
		for _, p := range picks {
			p.Release()
		}
	}
	for port, n := range firstPorts {
		if n < 50 || n > 150 {
			t.Errorf("port %d is first for %d of 400 keys, want about 100: %v", port, n, firstPorts)
		}
	}
}

func TestLeastOutstanding(t *testing.T) {
	policy := endpoint.DefaultPolicy()
	policy.Strategy = endpoint.LeastOutstandingRequests
	k, pool := newPicker(), newPool(policy, specs(5))
	for i := range 50 {
		p := mustPick(t, k, pool, keyed(1))
		if p.Outcome != NoKey {
			t.Fatalf("outcome = %v, want no_key", p.Outcome)
		}
		for _, e := range pool.Endpoints {
			if low, got := int64(i+1)/5, e.Load.InFlight(); got < low || got > low+1 {
				t.Fatalf("after %d picks %s has %d in flight", i+1, e.Name, got)
			}
		}
	}
}

func TestPrefixAwareWithoutAKeyIsLeastOutstanding(t *testing.T) {
	k, pool := newPicker(), newPool(prefixAware(64), specs(4))
	for range 40 {
		if p := mustPick(t, k, pool, &Request{}); p.Outcome != NoKey {
			t.Fatalf("outcome = %v, want no_key", p.Outcome)
		}
	}
	for _, e := range pool.Endpoints {
		if e.Load.InFlight() != 10 {
			t.Errorf("%s has %d in flight, want 10", e.Name, e.Load.InFlight())
		}
	}
}

func TestRandomIsEvenAndIgnoresLoad(t *testing.T) {
	policy := endpoint.DefaultPolicy()
	policy.Strategy = endpoint.Random
	k, pool := newPicker(), newPool(policy, specs(4))
	pool.Endpoints[0].Load.Add()
	const n = 20000
	count := map[string]int{}
	for range n {
		p := mustPick(t, k, pool, keyed(1))
		count[p.Endpoint.Name]++
		p.Release()
	}
	for name, got := range count {
		if math.Abs(float64(got)-n/4) > 5*math.Sqrt(n/4) {
			t.Errorf("%s was drawn %d times of %d", name, got, n)
		}
	}
}

func TestRejectRefusesOnlyWhenEveryEndpointIsFull(t *testing.T) {
	for _, strategy := range []endpoint.Strategy{endpoint.Random, endpoint.LeastOutstandingRequests, endpoint.PrefixAware} {
		policy := prefixAware(4)
		policy.Strategy, policy.Reject = strategy, true
		k, pool := newPicker(), newPool(policy, specs(5))
		var picks []*Pick
		for range 20 {
			picks = append(picks, mustPick(t, k, pool, keyed(5)))
		}
		var p Pick
		if err := k.Pick(pool, keyed(5), &p); !errors.Is(err, ErrSaturated) || p.Endpoint != nil {
			t.Fatalf("%v: the 21st pick gave %v, %v, want ErrSaturated", strategy, p.Endpoint, err)
		}
		for _, e := range pool.Endpoints {
			if e.Load.InFlight() != 4 {
				t.Errorf("%v: %s has %d in flight, want 4", strategy, e.Name, e.Load.InFlight())
			}
		}
		picks[7].Release()
		mustPick(t, k, pool, keyed(5))
	}
}

func TestSubset(t *testing.T) {
	k := newPicker()
	for _, strategy := range []endpoint.Strategy{endpoint.Random, endpoint.LeastOutstandingRequests, endpoint.PrefixAware} {
		policy := endpoint.DefaultPolicy()
		policy.Strategy = strategy
		pool := newPool(policy, specs(6))
		for _, tt := range []struct {
			name   string
			subset []string
			want   map[string]bool // nil: no endpoints
		}{
			{"two addresses", []string{"10.0.0.4:8000", "10.0.0.1:8000"}, map[string]bool{"pod-4": true, "pod-1": true}},
			{"an ip alone", []string{"10.0.0.2:0"}, map[string]bool{"pod-2": true}},
			{"another port", []string{"10.0.0.2:8001"}, nil},
			{"empty", []string{}, nil},
		} {
			req := &Request{Key: 3, HasKey: true, Subset: []netip.AddrPort{}}
			for _, a := range tt.subset {
				req.Subset = append(req.Subset, netip.MustParseAddrPort(a))
			}
			SortSubset(req.Subset)
			for range 30 {
				var p Pick
				err := k.Pick(pool, req, &p)
				if tt.want == nil {
					if !errors.Is(err, ErrNoEndpoints) {
						t.Fatalf("%v, %s: error %v, want ErrNoEndpoints", strategy, tt.name, err)
					}
					continue
				}
				if err != nil || !tt.want[p.Endpoint.Name] {
					t.Fatalf("%v, %s: picked %+v, %v", strategy, tt.name, p.Endpoint, err)
				}
				for _, f := range p.Fallbacks {
					if f != nil && !tt.want[f.Name] {
						t.Fatalf("%v, %s: fallback %s is outside the subset", strategy, tt.name, f.Name)
					}
				}
				p.Release()
			}
		}
	}
}

func TestEmptyPool(t *testing.T) {
	var p Pick
	if err := newPicker().Pick(newPool(prefixAware(1), nil), keyed(1), &p); !errors.Is(err, ErrNoEndpoints) {
		t.Errorf("error = %v, want ErrNoEndpoints", err)
	}
	if p.Release() {
		t.Error("a failed pick had something to release")
	}
}

func TestReleaseAndMoveCountOnce(t *testing.T) {
	k, pool := newPicker(), newPool(prefixAware(64), specs(2))
	p := mustPick(t, k, pool, keyed(1))
	other := p.Fallbacks[0]
	p.move(other)
	p.move(other)
	if got := other.Load.InFlight(); got != 1 || p.Endpoint != other {
		t.Errorf("after the move %s has %d in flight, want 1", other.Name, got)
	}
	if !p.Release() || p.Release() {
		t.Error("of two releases the first alone must count")
	}
	p.move(other)
	for _, e := range pool.Endpoints {
		if e.Load.InFlight() != 0 {
			t.Errorf("%s has %d in flight at the end", e.Name, e.Load.InFlight())
		}
	}
}

// Equal requests at once must see each other: under a threshold nobody passes it, and least
// outstanding spreads them evenly.
func TestConcurrentPicksSeeEachOther(t *testing.T) {
	for _, strategy := range []endpoint.Strategy{endpoint.LeastOutstandingRequests, endpoint.PrefixAware} {
		policy := prefixAware(10)
		policy.Strategy = strategy
		k, pool := newPicker(), newPool(policy, specs(10))
		var wg sync.WaitGroup
		for range 100 {
			wg.Go(func() { mustPick(t, k, pool, keyed(42)) })
		}
		wg.Wait()
		for _, e := range pool.Endpoints {
			if got := e.Load.InFlight(); got != 10 {
				t.Errorf("%v: %s has %d in flight, want 10 on each", strategy, e.Name, got)
			}
		}
	}
}

// Acquired equals released, whatever is published meanwhile.
func TestNothingLeaksWhileSnapshotsChange(t *testing.T) {
	k, store := newPicker(), endpoint.NewStore()
	all := specs(12)
	publish(store, prefixAware(4), all)
	seen := map[*endpoint.Load]bool{} // every load there ever was
	stop := make(chan struct{})
	var publisher, pickers sync.WaitGroup
	publisher.Go(func() {
		r := rand.New(rand.NewPCG(3, 3))
		for {
			select {
			case <-stop:
				return
			default:
			}
			for _, e := range publish(store, prefixAware(1+r.IntN(8)), all[:1+r.IntN(len(all))]).Endpoints {
				seen[e.Load] = true
			}
		}
	})
	for w := range uint64(8) {
		pickers.Go(func() {
			r := rand.New(rand.NewPCG(w, 9))
			for range 2000 {
				var p Pick
				pool := store.Snapshot().Pool(poolName)
				if err := k.Pick(pool, keyed(r.Uint64N(50)), &p); err != nil {
					t.Errorf("Pick: %v", err)
					return
				}
				if p.Fallbacks[0] != nil && r.IntN(10) == 0 {
					p.move(p.Fallbacks[0])
				}
				p.Release()
			}
		})
	}
	pickers.Wait()
	close(stop)
	publisher.Wait()
	for load := range seen {
		if got := load.InFlight(); got != 0 {
			t.Errorf("a load ends with %d in flight", got)
		}
	}
}

func TestPickDoesNotAllocate(t *testing.T) {
	k := New(rand.Uint64)
	for _, strategy := range []endpoint.Strategy{endpoint.Random, endpoint.LeastOutstandingRequests, endpoint.PrefixAware} {
		policy := prefixAware(64)
		policy.Strategy = strategy
		pool := newPool(policy, specs(100))
		var p Pick
		req := keyed(0)
		got := testing.AllocsPerRun(200, func() {
			req.Key++
			if err := k.Pick(pool, req, &p); err != nil {
				t.Fatal(err)
			}
			p.Release()
		})
		if got != 0 {
			t.Errorf("%v: %v allocations a pick, want 0", strategy, got)
		}
	}
}
