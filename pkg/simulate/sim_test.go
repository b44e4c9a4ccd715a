package simulate

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/homing-dev/homing/pkg/endpoint"
)

// config is a run of a strategy over a small workload.
func config(t *testing.T, strategy string, w *Workload) Config {
	t.Helper()
	s, err := findStrategy(strategy)
	if err != nil {
		t.Fatal(err)
	}
	return Config{Workload: w, Strategy: s, Policy: endpoint.DefaultPolicy(), Hardware: Llama70B, Engines: 4, Replicas: 1, Seed: 1}
}

func mustRun(t *testing.T, c Config) *Result {
	t.Helper()
	r, err := Run(context.Background(), c)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// mixed is a few hundred requests of prefixes and conversations.
func mixed(seed uint64) *Workload {
	m, w := newMaker(WorkloadOptions{Seed: seed, Engines: 4, CharsPerToken: 4}), &Workload{}
	p := &prefixes{
		prefixTokens: 3000, questionTokens: 100, outputTokens: 60, made: map[uint64]Span{},
		choose: func(time.Duration) uint64 { return m.rand.Uint64N(40) },
	}
	system := []Span{m.text(700)}
	for at := time.Duration(0); at < 20*time.Second; at += m.gap(20) {
		if m.rand.IntN(4) > 0 {
			w.Sessions = append(w.Sessions, m.withPrefix(p, at))
			continue
		}
		w.Sessions = append(w.Sessions, Session{Start: at, Turns: m.converse(conversation{
			turns: 4, opening: system, group: 100 + m.rand.Uint64(), think: time.Second, longest: 1 << 20,
			question: func() int { return m.length(80, .5, 500) }, answer: func() int { return m.length(80, .5, 500) },
		})})
	}
	return w
}

func TestEqualSeedsGiveEqualResults(t *testing.T) {
	for _, s := range Strategies() {
		for _, replicas := range []int{1, 3} {
			c := config(t, s.Name, mixed(1))
			c.Replicas = replicas
			c.Events = []Event{{At: 5 * time.Second, Kind: Kill, Engine: 1}, {At: 9 * time.Second, Kind: Add}}
			if d := cmp.Diff(mustRun(t, c), mustRun(t, c)); d != "" {
				t.Errorf("%s with %d replicas, twice: %s", s.Name, replicas, d)
			}
		}
	}
	a, b := config(t, "Random", mixed(1)), config(t, "Random", mixed(1))
	b.Seed = 2
	if cmp.Equal(mustRun(t, a), mustRun(t, b)) {
		t.Error("another seed gave the same result")
	}
}

// TestEveryRequestEndsOnce runs every strategy through every event and looks for what got lost.
func TestEveryRequestEndsOnce(t *testing.T) {
	events := []Event{
		{At: 3 * time.Second, Kind: Kill, Engine: 0}, {At: 4 * time.Second, Kind: Slow, Engine: 2, Factor: 3},
		{At: 6 * time.Second, Kind: Add}, {At: 8 * time.Second, Kind: Remove, Engine: 1},
	}
	w := mixed(2)
	asked := 0
	for _, s := range w.Sessions {
		for _, turn := range s.Turns {
			asked += turn.Request.Output
		}
	}
	for _, s := range Strategies() {
		c := config(t, s.Name, w)
		c.Events, c.Replicas = events, 2
		sim := newSimulation(&c)
		for len(sim.events.heap) > 0 {
			sim.handle(sim.events.pop())
		}
		r := sim.result()
		if len(r.Records) != w.Requests() {
			t.Errorf("%s: %d requests ended, want %d", s.Name, len(r.Records), w.Requests())
		}
		output, lost := 0, 0
		for _, rec := range r.Records {
			output += rec.Output
			if rec.Fate == Lost {
				lost++
			} else if rec.TTFT <= c.Hardware.Frontend {
				t.Errorf("%s: a first token after %v", s.Name, rec.TTFT)
			}
			if rec.Engine == 1 && rec.Sent > 8*time.Second || rec.Engine == 0 && rec.Sent > 3*time.Second {
				t.Errorf("%s: engine %d served a request sent at %v", s.Name, rec.Engine, rec.Sent)
			}
		}
		if lost == 0 && output != asked {
			t.Errorf("%s: %d tokens served, want %d", s.Name, output, asked)
		}
		for _, g := range sim.engines {
			audit(t, g)
			if g.InFlight() != 0 || g.cache.room() != g.cache.capacity || g.pending != 0 {
				t.Errorf("%s: engine %d is left with %d requests", s.Name, g.Index, g.InFlight())
			}
		}
		for _, router := range sim.routers {
			if h, ok := router.(*homing); ok {
				for load := range h.index {
					if load.InFlight() != 0 {
						t.Errorf("%s: the picker still counts %d in flight", s.Name, load.InFlight())
					}
				}
			}
		}
	}
}

func TestKilledEnginesRequestsAreRetriedOrLost(t *testing.T) {
	w := &Workload{}
	for i := range uint64(8) { // prompts that take a second, so that none has an answer yet
		w.Sessions = append(w.Sessions, Session{Turns: []Turn{{Request: request(50, Span{ID: i + 1, Tokens: 20_000})}}})
	}
	c := config(t, "RoundRobin", w)
	c.Engines = 2
	c.Events = []Event{{At: 100 * time.Millisecond, Kind: Kill, Engine: 1}}
	for _, rec := range mustRun(t, c).Records {
		if rec.Engine != 0 || rec.Fate != Served {
			t.Errorf("a request without an answer ended with fate %d at engine %d, want a retry", rec.Fate, rec.Engine)
		}
	}
	c.Events[0].At = 1500 * time.Millisecond // by now the first ones answer
	lost := 0
	for _, rec := range mustRun(t, c).Records {
		if rec.Fate == Lost {
			lost++
		}
	}
	if lost == 0 {
		t.Error("an engine died while it answered and no request was lost")
	}
}

func TestOneEngineMakesAllStrategiesEqual(t *testing.T) {
	var want *Result
	for _, s := range Strategies() {
		c := config(t, s.Name, mixed(3))
		c.Engines = 1
		got := mustRun(t, c)
		if want == nil {
			want = got
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%s with one engine: %s", s.Name, d)
		}
	}
}

// TestStickyGroupsMissOnce: with one client and room for all, a client that keeps each prefix at one engine
// computes it once, and no strategy computes it more often than there are engines.
func TestStickyGroupsMissOnce(t *testing.T) {
	const prefixTokens, groups, requests = 1600, 20, 400
	m, w := newMaker(WorkloadOptions{Seed: 1, Engines: 4, CharsPerToken: 4}), &Workload{Clients: 1}
	p := &prefixes{prefixTokens: prefixTokens, questionTokens: 50, outputTokens: 5, made: map[uint64]Span{}}
	for i := range uint64(requests) {
		p.choose = func(time.Duration) uint64 { return i % groups }
		w.Sessions = append(w.Sessions, m.withPrefix(p, 0))
	}
	for _, s := range Strategies() {
		hit := 0
		for _, rec := range mustRun(t, config(t, s.Name, w)).Records {
			hit += rec.Hit
		}
		once := (requests - groups) * prefixTokens
		if s.Name == "KnownGroups" && hit != once || hit > once {
			t.Errorf("%s: %d tokens hit, want at most %d, and KnownGroups just that", s.Name, hit, once)
		}
		if least := (requests - 4*groups) * prefixTokens; hit < least {
			t.Errorf("%s: %d tokens hit, want %d or more", s.Name, hit, least)
		}
	}
}

func TestSharingReplicasAreLikeOne(t *testing.T) {
	slow := &Workload{} // all are under way at the end, and each comes after the word of the one before
	for i := range uint64(40) {
		slow.Sessions = append(slow.Sessions, Session{
			Start: time.Duration(i) * 2 * ShareInterval,
			Turns: []Turn{{Request: request(1000, Span{ID: i + 1, Tokens: 100})}},
		})
	}
	served := func(shared bool) map[int]int {
		c := config(t, "LeastOutstandingRequests", slow)
		c.Replicas, c.Shared = 3, shared
		at := map[int]int{}
		for _, rec := range mustRun(t, c).Records {
			at[rec.Engine]++
		}
		return at
	}
	even := map[int]int{0: 10, 1: 10, 2: 10, 3: 10}
	if d := cmp.Diff(even, served(true)); d != "" {
		t.Errorf("requests by engine under replicas that share (-want +got):\n%s", d)
	}
	if cmp.Equal(even, served(false)) {
		t.Error("replicas that share nothing spread requests evenly, as if they knew of each other")
	}
}

func TestRejectRefusesAtTheThreshold(t *testing.T) {
	w := &Workload{}
	for i := range uint64(50) {
		w.Sessions = append(w.Sessions, Session{Turns: []Turn{{Request: request(5, Span{ID: i + 1, Tokens: 100})}}})
	}
	c := config(t, "PrefixAware", w)
	c.Policy.Reject, c.Policy.ConcurrencyThreshold = true, 3
	m := mustRun(t, c).Metrics(0)
	if want := 50. - 4*3; m.Failed != want {
		t.Errorf("%v refused, want %v", m.Failed, want)
	}
}

func TestClosedLoopKeepsItsClientsBusy(t *testing.T) {
	for _, interleave := range []bool{false, true} {
		m, w := newMaker(WorkloadOptions{Seed: 1, Engines: 4, CharsPerToken: 4}), &Workload{Clients: 3, Interleave: interleave}
		for i := range uint64(5) {
			w.Sessions = append(w.Sessions, Session{Turns: m.converse(conversation{
				turns: 6, group: i, question: func() int { return 100 }, answer: func() int { return 20 }, longest: 1 << 20,
			})})
		}
		r := mustRun(t, config(t, "LeastOutstandingRequests", w))
		if len(r.Records) != 30 {
			t.Errorf("%d requests, want 30", len(r.Records))
		}
		busy := time.Duration(0)
		for _, rec := range r.Records {
			busy += rec.Ended - rec.Sent
		}
		if clients := busy.Seconds() / r.End.Seconds(); clients > 3.0001 || clients < 2 {
			t.Errorf("interleave %t: %.2f requests under way on average, want at most 3 and most of the time 3", interleave, clients)
		}
		last := map[uint64]time.Duration{}
		for _, rec := range r.Records {
			if rec.Sent < last[rec.Group] {
				t.Error("a turn was sent before the one before it had ended")
			}
			last[rec.Group] = rec.Ended
		}
	}
}

func TestTooLongARequestIsAnError(t *testing.T) {
	w := &Workload{Sessions: []Session{{Turns: []Turn{{Request: request(1, Span{ID: 1, Tokens: 2_000_000})}}}}}
	if _, err := Run(context.Background(), config(t, "Random", w)); !errors.Is(err, ErrTooLong) {
		t.Errorf("error %v, want %v", err, ErrTooLong)
	}
}

func TestRunStopsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := Run(ctx, config(t, "Random", mixed(1))); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v, want %v", err, context.Canceled)
	}
}

func TestAddedEngineTakesItsShareOfKeysAndNoOther(t *testing.T) {
	// One request of each of 600 groups before the event and one after.
	m, w := newMaker(WorkloadOptions{Seed: 1, Engines: 4, CharsPerToken: 4}), &Workload{}
	p := &prefixes{prefixTokens: 2000, questionTokens: 20, outputTokens: 2, made: map[uint64]Span{}}
	for round := range 2 {
		for i := range uint64(600) {
			p.choose = func(time.Duration) uint64 { return i }
			at := time.Duration(round)*2*time.Minute + time.Duration(i)*100*time.Millisecond
			w.Sessions = append(w.Sessions, m.withPrefix(p, at))
		}
	}
	event := Event{At: 90 * time.Second, Kind: Add}
	c := config(t, "PrefixAware", w)
	quiet := mustRun(t, c)
	c.Events = []Event{event}
	r := mustRun(t, c)
	e := r.effects(c.Events, quiet)[0]
	if e.Groups != 600 || e.MovedAnyway != 0 {
		t.Errorf("%d groups, %.3f of which move anyway, want 600 and none", e.Groups, e.MovedAnyway)
	}
	if e.Moved < .15 || e.Moved > .25 {
		t.Errorf("%.3f of the keys moved, want about a fifth", e.Moved)
	}
	if e.HitWithout < .9 || e.Depth < .15 || e.Dip == 0 {
		t.Errorf("hit rate without %.3f, dip of %.3f for %v s", e.HitWithout, e.Depth, e.Dip)
	}
	before := map[uint64]int{}
	for _, rec := range r.Records {
		if was, seen := before[rec.Group]; seen && was != rec.Engine && rec.Engine != 4 {
			t.Errorf("group %d moved from engine %d to %d", rec.Group, was, rec.Engine)
		}
		before[rec.Group] = rec.Engine
	}
}

func TestMetricsByHand(t *testing.T) {
	r := &Result{
		End: 10 * time.Second,
		Records: []Record{
			{Sent: 0, TTFT: time.Second, Prompt: 1000, Output: 9},
			{Sent: 2 * time.Second, TTFT: ms(1000), Prompt: 100, Hit: 50, Output: 10},
			{Sent: 3 * time.Second, TTFT: ms(3000), Prompt: 300, Hit: 150, Output: 20},
			{Sent: 4 * time.Second, Fate: Refused, Prompt: 300},
		},
		Engines: []EngineTotals{{InFlight: 3 * time.Second, Preemptions: 2}, {InFlight: time.Second}},
	}
	want := Metrics{
		MeanTTFT: 2, P50TTFT: 2, P90TTFT: 2.8, P99TTFT: 2.98, HitRate: .5, Goodput: 1. / 3, GoodPerSecond: .125,
		Throughput: 3.75, Spread: 1.5, Requests: 3, Failed: 1, Preemptions: 2,
	}
	got := r.Metrics(2 * time.Second)
	for i, v := range got.fields() {
		if w := *want.fields()[i]; *v < w-1e-9 || *v > w+1e-9 {
			t.Errorf("metric %d: %v, want %v", i, *v, w)
		}
	}
}

// BenchmarkRun simulates an hour of traffic, 12,031 requests on seven engines.
func BenchmarkRun(b *testing.B) {
	builtin, err := FindBuiltin("mooncake-conversation")
	if err != nil {
		b.Fatal(err)
	}
	w, err := builtin.Make(WorkloadOptions{})
	if err != nil {
		b.Fatal(err)
	}
	for _, s := range Strategies() {
		b.Run(s.Name, func(b *testing.B) {
			for b.Loop() {
				c := Config{Workload: w, Strategy: s, Policy: endpoint.DefaultPolicy(), Hardware: Llama70B, Engines: 7, Replicas: 1, Seed: 1}
				if _, err := Run(context.Background(), c); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func TestARestartedPickerHearsWhereHomesAre(t *testing.T) {
	// Chats that each come back some minutes later, in another order. A picker forgets in between.
	w := &Workload{}
	for i := range uint64(60) {
		opening := Span{ID: 1000 + i, Tokens: 800, EndsMessage: true}
		first := request(5, opening)
		second := request(5, opening, Span{ID: 2000 + i, Tokens: 100, EndsMessage: true})
		first.Group, second.Group = i+1, i+1
		w.Sessions = append(w.Sessions, Session{
			Start: time.Duration(i) * time.Second,
			Turns: []Turn{{Request: first}, {Request: second, After: time.Duration(180-i+i*7%60) * time.Second}},
		})
	}
	moved := func(replicas int, event string) float64 {
		c := config(t, "AdaptivePrefix", w)
		c.Replicas, c.Shared = replicas, true
		e, err := ParseEvent(event)
		if err != nil {
			t.Fatal(err)
		}
		c.Events = []Event{e}
		share, groups := mustRun(t, c).moved(90 * time.Second)
		if groups != 60 {
			t.Fatalf("%d groups were seen before and after, want 60", groups)
		}
		return share
	}
	if share := moved(1, "90s:restart"); share < .3 {
		t.Errorf("%.0f %% of the chats moved when the only picker forgot them, want most", 100*share)
	}
	for _, event := range []string{"90s:restart:0", "90s:restart:1"} {
		if share := moved(2, event); share > .05 {
			t.Errorf("%s: %.0f %% of the chats moved although the other picker knew them", event, 100*share)
		}
	}
}

func TestEnginesThatShareProcessorsSlowEachOther(t *testing.T) {
	w := &Workload{Clients: 2}
	for i := range uint64(2) {
		w.Sessions = append(w.Sessions, Session{Turns: []Turn{{Request: request(50, Span{ID: i + 1, Tokens: 500})}}})
	}
	end := func(contention ...float64) time.Duration {
		c := config(t, "LeastOutstandingRequests", w)
		c.Hardware.Contention = contention
		return mustRun(t, c).End
	}
	alone := end()
	if got := end(1, 1); got != alone {
		t.Errorf("took %v without contention and %v with none to speak of", alone, got)
	}
	if got, most := end(1, 2), 2*alone; got < alone*3/2 || got > most {
		t.Errorf("took %v where two engines halve each other's speed, want up to %v", got, most)
	}
}
