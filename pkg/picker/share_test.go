package picker

import (
	"math"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/homing-dev/homing/pkg/endpoint"
	"github.com/homing-dev/homing/pkg/prefix"
)

// elsewhere is what other replicas have in flight and pending, by endpoint.
func elsewhere(pool *endpoint.Pool) map[string][2]int64 {
	m := map[string][2]int64{}
	for _, e := range pool.Endpoints {
		if inFlight, pending := e.Load.Elsewhere(); inFlight != 0 || pending != 0 {
			m[e.Name] = [2]int64{inFlight, pending}
		}
	}
	return m
}

func TestAReportReplacesTheCountsOfTheLast(t *testing.T) {
	k, pool := New(rand.Uint64), adaptivePool(3)
	tag := func(i int) Tag { return TagOf(pool.Endpoints[i]) }
	var a, b Peer
	k.Hear(pool, &a, &Report{Counts: []Count{{tag(0), 3, 300}, {tag(1), 1, 10}}}, 0)
	k.Hear(pool, &b, &Report{Counts: []Count{{tag(0), 2, 20}}}, 0)
	if diff := cmp.Diff(map[string][2]int64{"pod-0": {5, 320}, "pod-1": {1, 10}}, elsewhere(pool)); diff != "" {
		t.Errorf("of two replicas (-want +got):\n%s", diff)
	}
	k.Hear(pool, &a, &Report{Counts: []Count{{tag(0), 1, 0}, {tag(2), 7, 70}}}, 0)
	if diff := cmp.Diff(map[string][2]int64{"pod-0": {3, 20}, "pod-2": {7, 70}}, elsewhere(pool)); diff != "" {
		t.Errorf("after another report (-want +got):\n%s", diff)
	}
	b.Forget()
	b.Forget()
	k.Hear(pool, &a, &Report{}, 0)
	if diff := cmp.Diff(map[string][2]int64{}, elsewhere(pool)); diff != "" {
		t.Errorf("in the end (-want +got):\n%s", diff)
	}
}

// What is told of an endpoint that is not known here is skipped, and counted once it has come.
func TestAnEndpointThatIsNotKnownIsCountedOnceItIs(t *testing.T) {
	store, k := endpoint.NewStore(), New(rand.Uint64)
	all := newPool(adaptivePolicy(), specs(3))
	report := &Report{Counts: []Count{{TagOf(all.Endpoints[0]), 1, 1}, {TagOf(all.Endpoints[2]), 5, 50}}}
	var from Peer
	fewer := publish(store, adaptivePolicy(), specs(2))
	k.Hear(fewer, &from, report, 0)
	if diff := cmp.Diff(map[string][2]int64{"pod-0": {1, 1}}, elsewhere(fewer)); diff != "" {
		t.Errorf("with two endpoints (-want +got):\n%s", diff)
	}
	more := publish(store, adaptivePolicy(), specs(3))
	k.Hear(more, &from, report, 0)
	if diff := cmp.Diff(map[string][2]int64{"pod-0": {1, 1}, "pod-2": {5, 50}}, elsewhere(more)); diff != "" {
		t.Errorf("with three (-want +got):\n%s", diff)
	}
	// Gone and back, it counts from nothing here, and once what is told.
	publish(store, adaptivePolicy(), specs(2))
	back := publish(store, adaptivePolicy(), specs(3))
	k.Hear(back, &from, report, 0)
	if diff := cmp.Diff(map[string][2]int64{"pod-0": {1, 1}, "pod-2": {5, 50}}, elsewhere(back)); diff != "" {
		t.Errorf("back again (-want +got):\n%s", diff)
	}
}

// Replicas that pick, tell and forget all at once leave nothing behind.
func TestForgetTakesAllBackUnderStorm(t *testing.T) {
	type replica struct {
		picker *Picker
		store  *endpoint.Store
	}
	list := make([]replica, 3)
	for i := range list {
		list[i] = replica{New(rand.Uint64), endpoint.NewStore()}
		publish(list[i].store, adaptivePolicy(), specs(6))
	}
	var mu sync.Mutex
	loads := map[*endpoint.Load]string{} // all there ever were
	note := func(s *endpoint.Store) {
		mu.Lock()
		defer mu.Unlock()
		for _, e := range s.Snapshot().Pool(poolName).Endpoints {
			loads[e.Load] = e.Name
		}
	}
	for _, r := range list {
		note(r.store)
	}
	var wg sync.WaitGroup
	for i, r := range list {
		for g := range 2 {
			wg.Go(func() { // picks
				rnd := rand.New(rand.NewPCG(uint64(i), uint64(g)))
				for n := range 300 {
					req := chat(time.Duration(n)*time.Millisecond, message(1500, rnd.IntN(20)))
					p := mustPick(t, r.picker, r.store.Snapshot().Pool(poolName), req)
					if n%2 == 0 {
						p.Ended(req.Now + 1)
					}
					p.Release()
				}
			})
		}
		wg.Go(func() { // its only reader tells the others
			peers, report := make([]Peer, len(list)), Report{}
			for n := range 300 {
				r.picker.Report(r.store.Snapshot().Pool(poolName), &report)
				for j, o := range list {
					if j != i {
						o.picker.Hear(o.store.Snapshot().Pool(poolName), &peers[j], &report, endpoint.Moment(n))
					}
					if n%7 == 0 {
						peers[j].Forget()
						o.picker.Unheard(n % 2)
					}
				}
			}
			for j := range peers {
				peers[j].Forget()
			}
		})
		wg.Go(func() { // endpoints come and go
			for n := range 100 {
				publish(r.store, adaptivePolicy(), specs(4+n%3))
				note(r.store)
			}
		})
	}
	wg.Wait()
	for load, name := range loads {
		if inFlight, pending := load.Elsewhere(); inFlight != 0 || pending != 0 || load.InFlight() != 0 || load.Pending() != 0 {
			t.Errorf("%s has %d requests and %d bytes left of others, %d and %d of its own", name, inFlight, pending, load.InFlight(), load.Pending())
		}
	}
}

// Thresholds count the requests of all replicas.
func TestTheThresholdCountsOtherReplicas(t *testing.T) {
	for _, policy := range []endpoint.Policy{prefixAware(4), adaptivePolicy()} {
		policy.ConcurrencyThreshold = 4
		k, pool := New(rand.Uint64), newPool(policy, specs(2))
		req := chat(0, message(1500, "prompt"))
		req.Key, req.HasKey = 1, true
		home := mustPick(t, k, pool, req)
		var full Peer
		k.Hear(pool, &full, &Report{Counts: []Count{{Endpoint: TagOf(home.Endpoint), InFlight: 3}}}, 0)
		if p := mustPick(t, k, pool, req); p.Endpoint == home.Endpoint {
			t.Errorf("%s: home is picked with 4 in flight, 3 of them another's", policy.Strategy)
		}
	}
}

// linked has a report of one picker heard by another.
func linked(from, to *Picker, pool *endpoint.Pool, peer *Peer, report *Report, now endpoint.Moment) {
	from.Report(pool, report)
	to.Hear(pool, peer, report, now)
}

// What is placed while all are heard stays home while one is away; what is placed meanwhile goes by rendezvous, as
// the one that is away has it too.
func TestAgreedHomesStayWhileAReplicaIsAway(t *testing.T) {
	pool := adaptivePool(7)
	a, b := New(rand.Uint64), New(rand.Uint64)
	var peer Peer
	var report Report
	a.Report(pool, &report) // from now on picks are kept
	agreed := map[int]string{}
	for c := range 40 {
		now := time.Duration(c) * time.Second
		agreed[c] = served(t, a, pool, chat(now, message(2000, "agreed", c)))
		linked(a, b, pool, &peer, &report, endpoint.MomentOf(now))
	}
	byRendezvous := tunedPicker(func(t *Tuning) { t.Others = 1 })
	a.Unheard(1)
	b.Unheard(1)
	for c := range 40 {
		now := time.Duration(100+c) * time.Second
		for name, k := range map[string]*Picker{"a": a, "b": b} {
			if got := served(t, k, pool, chat(now, message(2000, "agreed", c), message(500, "more"))); got != agreed[c] {
				t.Errorf("%s: agreed conversation %d went to %s, home is %s", name, c, got, agreed[c])
			}
			req := chat(now, message(2000, "new", c))
			if got, want := served(t, k, pool, req), served(t, byRendezvous, pool, req); got != want {
				t.Errorf("%s: new conversation %d went to %s, by rendezvous %s", name, c, got, want)
			}
		}
	}
}

func TestRecallAndLearn(t *testing.T) {
	pool := adaptivePool(5)
	old, now := New(rand.Uint64), 1000*time.Second
	homes := map[int]string{}
	for c := range 200 {
		homes[c] = served(t, old, pool, chat(now, message(1200, "system"), message(2000, "conversation", c)))
	}
	const later = 1000 // seconds by which the other's clock is ahead
	restarted := New(rand.Uint64)
	traffic, rungs := old.Recall(endpoint.MomentOf(now + 10*time.Second))
	var parts []Remembered
	for r := range rungs {
		parts = append(parts, r)
	}
	if len(parts) < 200 {
		t.Fatalf("%d rungs are recalled of 200 conversations", len(parts))
	}
	for len(parts) > 0 {
		n := min(len(parts), 64)
		restarted.Learn(traffic, parts[:n], endpoint.MomentOf(now+(later+10)*time.Second))
		parts = parts[n:]
	}
	for c := range 200 {
		req := chat(now+(later+20)*time.Second, message(1200, "system"), message(2000, "conversation", c), message(500, "more"))
		if got := served(t, restarted, pool, req); got != homes[c] {
			t.Errorf("conversation %d went to %s, home is %s", c, got, homes[c])
		}
	}
	// It knows as much as the other, and no more for being told twice.
	at := endpoint.MomentOf(now + 10*time.Second)
	twice := New(rand.Uint64)
	for range 2 {
		traffic, rungs := old.Recall(at)
		for r := range rungs {
			twice.Learn(traffic, []Remembered{r}, at)
		}
	}
	again, _ := twice.Recall(at)
	if math.Abs(again-traffic) > 1e-3 {
		t.Errorf("traffic %v, want %v", again, traffic)
	}
	want, got := recalledBy(old, at), recalledBy(twice, at)
	if diff := cmp.Diff(want, got, cmp.Comparer(func(a, b float64) bool { return math.Abs(a-b) < .01 })); diff != "" {
		t.Errorf("what is recalled (-want +got):\n%s", diff)
	}
}

func recalledBy(k *Picker, now endpoint.Moment) map[prefix.Key]Remembered {
	_, rungs := k.Recall(now)
	m := map[prefix.Key]Remembered{}
	for r := range rungs {
		m[r.Key] = r
	}
	return m
}

// What is known already is not replaced by what is told.
func TestLearningKeepsWhatIsKnown(t *testing.T) {
	k, pool := New(rand.Uint64), adaptivePool(3)
	req := chat(0, message(1500, "prompt"))
	home := served(t, k, pool, req)
	for _, e := range pool.Endpoints {
		k.Learn(1, []Remembered{{Key: req.Rungs[0].Key, Traffic: 1, Places: []Place{{Endpoint: TagOf(e)}}}}, 1)
	}
	if got := served(t, k, pool, chat(time.Second, message(1500, "prompt"))); got != home {
		t.Errorf("home moved from %s to %s", home, got)
	}
}

// Nobody reads the outbox: it fills, and no more.
func TestTheOutboxIsBounded(t *testing.T) {
	k, pool := New(rand.Uint64), adaptivePool(3)
	var report Report
	r := rand.New(rand.NewPCG(1, 2))
	one := Request{Rungs: fullLadder(r, nil), Bytes: 1 << 16}
	k.Report(pool, &report)
	var p Pick
	for range 2 * maxTold {
		if err := k.Pick(pool, &one, &p); err != nil {
			t.Fatal(err)
		}
		p.Release()
	}
	k.Report(pool, &report)
	rungs := 0
	for _, told := range report.Picks {
		rungs += len(told.Rungs)
	}
	if want := maxToldRungs / len(one.Rungs); len(report.Picks) != want || rungs > maxToldRungs {
		t.Errorf("%d picks with %d rungs are told, want %d", len(report.Picks), rungs, want)
	}
	served(t, k, pool, chat(0, message(1500, "prompt")))
	k.Report(pool, &report)
	if len(report.Picks) != 1 {
		t.Errorf("%d picks are told, want the one since the last report", len(report.Picks))
	}
}

func TestPicksAllocateNothingWithTheOutboxOpen(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector has sync.Pool forget")
	}
	k, pool := New(rand.Uint64), adaptivePool(100)
	var report Report
	k.Report(pool, &report)
	r := rand.New(rand.NewPCG(1, 2))
	req := Request{Bytes: 1 << 16, Rungs: fullLadder(r, nil)}
	var p Pick
	told := 0
	if n := testing.AllocsPerRun(200, func() {
		req.Now++
		if err := k.Pick(pool, &req, &p); err != nil {
			t.Fatal(err)
		}
		p.Release()
		if told++; told%20 == 0 {
			k.Report(pool, &report)
		}
	}); n != 0 {
		t.Errorf("%v allocations a pick, want none", n)
	}
}

// A pool without AdaptivePrefix shares its counts, and takes no memory for it.
func TestSharingCountsAloneTakesNoMemory(t *testing.T) {
	k, other, pool := New(rand.Uint64), New(rand.Uint64), newPool(prefixAware(64), specs(3))
	p := mustPick(t, k, pool, keyed(1))
	made := testing.Benchmark(func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			var report Report
			var peer Peer
			k.Report(pool, &report)
			other.Hear(pool, &peer, &report, 0)
			if len(report.Counts) != 1 || report.Counts[0] != (Count{Endpoint: TagOf(p.Endpoint), InFlight: 1}) {
				b.Fatalf("told %+v", report.Counts)
			}
			peer.Forget()
		}
	})
	if made.N == 0 || made.AllocedBytesPerOp() > 4096 { // one that failed has run no time
		t.Errorf("%d bytes for a report", made.AllocedBytesPerOp())
	}
}
