package picker

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"
	"unsafe"

	"github.com/homing-dev/homing/pkg/endpoint"
	"github.com/homing-dev/homing/pkg/prefix"
)

func rungs(keys ...prefix.Key) []prefix.Rung {
	var list []prefix.Rung
	for i, k := range keys {
		list = append(list, prefix.Rung{Key: k, Bytes: int32(1000 * (i + 1))}) //nolint:gosec // small
	}
	return list
}

func TestSharesAreOfRecentTraffic(t *testing.T) {
	const doubt = 8.
	m, seen := newMemory(1024), make([]sighting, 2)
	second := func(s int) endpoint.Moment { return endpoint.MomentOf(time.Duration(s) * time.Second) }
	for i := range 1200 { // one a second, every other one with rung 1, all with rung 9
		m.note(rungs(9, prefix.Key(1+i%2)), second(i), 60, doubt, seen)
	}
	// Where a minute halves, a request a second amounts to 87.
	total := 1/(1-math.Exp2(-1./60)) + doubt
	if got, want := seen[0].share, (total-doubt)/total; math.Abs(got-want) > .01 {
		t.Errorf("a rung that all have has the share %.3f, want %.3f", got, want)
	}
	if got, want := seen[1].share, seen[0].share/2; math.Abs(got-want) > .01 {
		t.Errorf("a rung that half have has the share %.3f, want %.3f", got, want)
	}
	for i := range 60 { // and then rung 9 alone, for a half-life
		m.note(rungs(9), second(1200+i), 60, doubt, seen)
	}
	m.note(rungs(9, 1), second(1260), 60, doubt, seen)
	if got, want := seen[1].share, seen[0].share/4; math.Abs(got-want) > .02 {
		t.Errorf("a rung that half had until a half-life ago has the share %.3f, want %.3f", got, want)
	}
}

func TestTheFirstRequestIsNotAllOfTheTraffic(t *testing.T) {
	const doubt = 8.
	seen := make([]sighting, 1)
	newMemory(1024).note(rungs(1), 0, 60, doubt, seen)
	if got, want := seen[0].share, 1/(1+doubt); math.Abs(got-want) > 1e-6 {
		t.Errorf("share %.3f, want %.3f", got, want)
	}
}

func TestPlacesAreTheLatest(t *testing.T) {
	const doubt = 8.
	m, seen := newMemory(1024), make([]sighting, 2)
	for tag := range Tag(6) {
		m.put(rungs(1, 2), 5000, tag+1, endpoint.Moment(tag), true)
	}
	m.put(rungs(1), 3000, 4, 10, true)
	m.note(rungs(1, 2), 11, 60, doubt, seen)
	want := [maxPlaces]place{{4, 10, 2, true}, {6, 5, 0, true}, {5, 4, 0, true}, {3, 2, 0, true}}
	if seen[0].places != want {
		t.Errorf("places of the first rung: %v, want %v", seen[0].places, want)
	}
	if got := seen[1].places[0]; got != (place{6, 5, 4, true}) {
		t.Errorf("the last rung went to %v, want 6 with 4 KiB", got)
	}
}

func TestMemoryIsBoundedAndForgetsTheIdlest(t *testing.T) {
	const size = 1 << 10
	const doubt = 8.
	m, seen := newMemory(size), make([]sighting, 1)
	if got := len(m.sets) * memoryWays; got != size {
		t.Fatalf("room for %d rungs, want %d", got, size)
	}
	if perRung := unsafe.Sizeof(memorySet{}) / memoryWays; perRung > 64 {
		t.Errorf("%d bytes a rung, want at most 64", perRung)
	}
	r := rand.New(rand.NewPCG(1, 2))
	for i := range 20 * size {
		now := endpoint.Moment(i)
		m.put(rungs(prefix.Key(r.Uint64())), 1000, 1, now, true)
		m.note(rungs(7), now, 60, doubt, seen) // asked for all the time
		m.put(rungs(7), 1000, 2, now, true)
	}
	m.note(rungs(7), 20*size, 60, doubt, seen)
	if seen[0].places[0].tag != 2 {
		t.Error("the busiest rung was forgotten")
	}
}

// Moments wrap: a place that was never used is not taken for one used in the future.
func TestMemoryFillsAtAnyTime(t *testing.T) {
	for _, at := range []endpoint.Moment{0, 1 << 30, 1<<31 + 1, 1<<32 - 2} {
		m, seen := newMemory(memoryWays), make([]sighting, 1)
		for key := range prefix.Key(memoryWays) {
			m.note(rungs(key), at, 60, 0, seen)
			m.put(rungs(key), 1000, Tag(key)+1, at, true)
		}
		for key := range prefix.Key(memoryWays) {
			m.note(rungs(key), at+1, 60, 0, seen)
			if got := seen[0].places[0].tag; got != Tag(key)+1 {
				t.Errorf("at %d rung %d of %d is at %d, want %d", at, key, memoryWays, got, key+1)
			}
		}
	}
}

func TestAPickerWithoutAdaptivePrefixHasNoMemory(t *testing.T) {
	made := testing.Benchmark(func(b *testing.B) {
		pool := newPool(prefixAware(64), specs(3))
		b.ReportAllocs()
		for b.Loop() {
			var p Pick
			if err := New(rand.Uint64).Pick(pool, keyed(1), &p); err != nil {
				b.Fatal(err)
			}
			p.Release()
		}
	})
	if made.N == 0 || made.AllocedBytesPerOp() > 4096 { // one that failed has run no time
		t.Errorf("%d bytes for a picker that needs no memory", made.AllocedBytesPerOp())
	}
}
