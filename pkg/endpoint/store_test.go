package endpoint

import (
	"net/netip"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var poolA = PoolName{"ns", "a"}

func spec(uid string, port uint16) Spec {
	return Spec{ID: ID{uid, port}, Name: uid, Addr: netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), port)}
}

func pools(endpoints ...Spec) []PoolSpec {
	return []PoolSpec{{Name: poolA, Port: 9002, Policy: DefaultPolicy(), Endpoints: endpoints}}
}

func TestPublishCarriesLoadsByIdentity(t *testing.T) {
	s := NewStore()
	first := s.Publish(pools(spec("u1", 8000), spec("u2", 8000))).Pool(poolA)
	first.Endpoints[0].Load.Add()

	moved := spec("u1", 8000)
	moved.Addr = netip.MustParseAddrPort("10.0.0.9:8000")
	taken := spec("u3", 8000) // another pod got the address u1 had
	second := s.Publish(pools(moved, taken)).Pool(poolA)

	if second.Endpoints[0].Load != first.Endpoints[0].Load {
		t.Error("the same identity at a new address lost its load")
	}
	if got := second.Endpoints[1].Load.InFlight(); got != 0 {
		t.Errorf("a new pod at an old address starts with %d in flight, want 0", got)
	}
	if second.Endpoints[0].Address != "10.0.0.9:8000" {
		t.Errorf("address = %s, want the new one", second.Endpoints[0].Address)
	}
}

func TestPublishKeepsTheLoadOfAFlappingEndpoint(t *testing.T) {
	s := NewStore()
	busy := s.Publish(pools(spec("busy", 1), spec("idle", 1))).Pool(poolA)
	busy.Endpoints[0].Load.Add()

	s.Publish(pools())
	s.Publish(pools()) // gone for longer than one publication
	if len(s.loads) != 1 {
		t.Errorf("%d loads kept, want the busy one alone", len(s.loads))
	}
	back := s.Publish(pools(spec("busy", 1))).Pool(poolA)
	if got := back.Endpoints[0].Load.InFlight(); got != 1 {
		t.Errorf("in flight after the flap = %d, want 1", got)
	}
	busy.Endpoints[0].Load.Release() // through the pointer that was incremented
	if got := back.Endpoints[0].Load.InFlight(); got != 0 {
		t.Errorf("in flight after the release = %d, want 0", got)
	}
	s.Publish(pools())
	if len(s.loads) != 0 {
		t.Errorf("%d loads kept after the last request ended, want 0", len(s.loads))
	}
}

func TestPublishReusesWhatDidNotChange(t *testing.T) {
	s := NewStore()
	first := s.Publish(pools(spec("u1", 1), spec("u2", 1))).Pool(poolA)
	if same := s.Publish(pools(spec("u1", 1), spec("u2", 1))).Pool(poolA); same != first {
		t.Error("an unchanged pool was rebuilt")
	}
	grown := s.Publish(pools(spec("u1", 1), spec("u2", 1), spec("u3", 1))).Pool(poolA)
	if grown == first || grown.Endpoints[0] != first.Endpoints[0] {
		t.Error("a grown pool must be new and keep its unchanged endpoints")
	}
	changed := pools(spec("u1", 1), spec("u2", 1), spec("u3", 1))
	changed[0].Policy.PrefixLength = 2048
	next := s.Publish(changed).Pool(poolA)
	if next == grown || next.Policy.PrefixLength != 2048 || next.Endpoints[0] != grown.Endpoints[0] {
		t.Error("a policy change must make a new pool of the same endpoints")
	}
}

func TestPublishTakesTheFirstOfTwins(t *testing.T) {
	twin := spec("u1", 1)
	twin.Name = "second"
	specs := append(pools(spec("u1", 1), twin, spec("u1", 2)), PoolSpec{Name: poolA, Port: 1})
	got := NewStore().Publish(specs).Pool(poolA)
	var names []string
	for _, e := range got.Endpoints {
		names = append(names, e.Name)
	}
	if diff := cmp.Diff([]string{"u1", "u1"}, names); diff != "" || got.Port != 9002 {
		t.Errorf("port %d, names (-want +got):\n%s", got.Port, diff)
	}
}

func TestPoolsThatShareAPodCountApart(t *testing.T) {
	b := PoolName{"ns", "b"}
	specs := append(pools(spec("u1", 1)), PoolSpec{Name: b, Port: 9100, Endpoints: []Spec{spec("u1", 1)}})
	snap := NewStore().Publish(specs)
	snap.Pool(poolA).Endpoints[0].Load.Add()
	if got := snap.Pool(b).Endpoints[0].Load.InFlight(); got != 0 {
		t.Errorf("in flight in the other pool = %d, want 0", got)
	}
}

func TestWeights(t *testing.T) {
	heavy := spec("u2", 1)
	heavy.Weight = 2
	s := NewStore()
	if p := s.Publish(pools(spec("u1", 1), spec("u3", 1))).Pool(poolA); !p.EqualWeights || p.Endpoints[0].Weight != 1 {
		t.Errorf("unset weights: equal %t, weight %v, want true and 1", p.EqualWeights, p.Endpoints[0].Weight)
	}
	if p := s.Publish(pools(spec("u1", 1), heavy)).Pool(poolA); p.EqualWeights {
		t.Error("weights 1 and 2 were called equal")
	}
}

func TestChangedIsClosedByPublish(t *testing.T) {
	s := NewStore()
	var wg sync.WaitGroup
	changed := s.Changed()
	wg.Go(func() { <-changed })
	s.Publish(nil)
	wg.Wait()
	select {
	case <-s.Changed():
		t.Error("the next channel is closed already")
	default:
	}
}

func TestAcquireOnlyFromTheCountSeen(t *testing.T) {
	var l Load
	if !l.Acquire(0) || l.Acquire(0) || !l.Acquire(1) {
		t.Error("Acquire must count from exactly the number seen")
	}
	if got := l.InFlight(); got != 2 {
		t.Errorf("in flight = %d, want 2", got)
	}
}

func TestStrategyNames(t *testing.T) {
	for _, s := range []Strategy{Random, LeastOutstandingRequests, PrefixAware, AdaptivePrefix} {
		got, err := ParseStrategy(s.String())
		if err != nil || got != s {
			t.Errorf("ParseStrategy(%q) = %v, %v", s, got, err)
		}
	}
	if _, err := ParseStrategy("prefixaware"); err == nil {
		t.Error("a name in the wrong case was accepted")
	}
}
