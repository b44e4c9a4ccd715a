package simulate

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/homing-dev/homing/pkg/endpoint"
)

// Config is a run: equal configs give equal results.
type Config struct {
	Workload *Workload
	Strategy Strategy
	// Policy is the pool's; its Strategy field is not used.
	Policy   endpoint.Policy
	Hardware Hardware
	// Engines is how many there are at the start, Replicas how many pickers; both 1 or more.
	Engines, Replicas int
	// Shared says that replicas tell each other what they know: Homing's every [ShareInterval], as pickers do;
	// those of other strategies in no time.
	Shared bool
	Events []Event
	Seed   uint64
	// Progress, unless nil, is called now and then with the number of requests that have ended.
	Progress func(ended int)
}

// ErrTooLong says that a request could never fit into an engine's KV cache.
var ErrTooLong = errors.New("a request is longer than an engine's KV cache")

// Run simulates. It returns the context's error if that ends first.
func Run(ctx context.Context, c Config) (*Result, error) {
	for _, s := range c.Workload.Sessions {
		for _, t := range s.Turns {
			if n := t.Request.Prompt + t.Request.Output + c.Hardware.BlockTokens; n > c.Hardware.KVTokens {
				return nil, fmt.Errorf("%w: %d of %d tokens", ErrTooLong, n, c.Hardware.KVTokens)
			}
		}
	}
	s := newSimulation(&c)
	for i := 0; len(s.events.heap) > 0; i++ {
		if i%4096 == 0 {
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			if c.Progress != nil {
				c.Progress(len(s.records))
			}
		}
		s.handle(s.events.pop())
	}
	return s.result(), nil
}

// simulation is a run under way.
type simulation struct {
	*Config
	now     time.Duration
	events  queue
	engines []*Engine
	members []int // that pickers know to be ready
	routers []Router
	rand    *rand.Rand
	ready   []*session // closed loop: sessions that no client works on
	records []Record
	left    map[int]bool // engines that were removed or killed
}

func newSimulation(c *Config) *simulation {
	s := &simulation{Config: c, rand: rand.New(rand.NewPCG(c.Seed, 1)), left: map[int]bool{}}
	for range c.Engines {
		s.addEngine()
	}
	others := c.Replicas - 1
	if c.Shared {
		others = 0
	}
	exchange := c.Shared && c.Strategy.Exchanges
	for i := range c.Replicas {
		if i > 0 && (c.Shared && !exchange || c.Strategy.Oracle) {
			s.routers = append(s.routers, s.routers[0])
			continue
		}
		s.routers = append(s.routers, c.Strategy.New(Env{
			Rand:   rand.New(rand.NewPCG(c.Seed, 2+uint64(i))),
			Policy: c.Policy,
			Others: others,
			Name:   func(engine int) string { return fmt.Sprintf("engine-%d-%d", c.Seed, engine) },
			Engine: func(engine int) *Engine { return s.engines[engine] },
		}))
	}
	s.publish()
	if exchange && c.Replicas > 1 {
		s.events.push(event{at: ShareInterval, kind: onShare})
	}
	s.records = make([]Record, 0, c.Workload.Requests())
	s.begin()
	for _, e := range c.Events {
		s.events.push(event{at: e.At, kind: onEvent, change: e})
	}
	return s
}

// begin puts the first turns in the queue.
func (s *simulation) begin() {
	for _, in := range s.Workload.Sessions {
		if len(in.Turns) == 0 {
			continue
		}
		session := &session{turns: in.Turns}
		if s.Workload.Clients == 0 {
			s.events.push(event{at: in.Start + in.Turns[0].After, kind: onSend, session: session})
		} else {
			s.ready = append(s.ready, session)
		}
	}
	for range s.Workload.Clients {
		s.nextOfClient()
	}
}

// nextOfClient has a client without a session take the one that has waited longest.
func (s *simulation) nextOfClient() {
	if len(s.ready) > 0 {
		next := s.ready[0]
		s.ready = s.ready[1:]
		s.events.push(event{at: s.now + next.turns[next.next].After, kind: onSend, session: next})
	}
}

func (s *simulation) handle(e event) {
	s.now = e.at
	switch e.kind {
	case onSend:
		turn := e.session.turns[e.session.next]
		e.session.next++
		s.send(&Flight{Request: turn.Request, Sent: s.now, session: e.session})
	case onArrive:
		s.arrive(e.flight)
	case onStep:
		if g := s.engines[e.engine]; g.epoch == e.epoch {
			g.finish(s.now, s.firstToken, s.done)
			s.step(g)
		}
	case onEvent:
		s.change(e.change)
	case onPublish:
		s.publish()
	case onShare:
		s.share()
	}
}

// ShareInterval is how often replicas tell each other what they know.
const ShareInterval = 50 * time.Millisecond

// exchanger is a Router that hears what other replicas know.
type exchanger interface {
	// Tell gives the others what is new since the last time.
	Tell(now time.Duration, others []Router)
}

// share has every replica tell the others, now and for as long as anything else is to come.
func (s *simulation) share() {
	for i, r := range s.routers {
		if e, ok := r.(exchanger); ok {
			e.Tell(s.now, slices.Concat(s.routers[:i], s.routers[i+1:]))
		}
	}
	if len(s.events.heap) > 0 {
		s.events.push(event{at: s.now + ShareInterval, kind: onShare})
	}
}

// send has a replica pick an engine for the request.
func (s *simulation) send(f *Flight) {
	f.replica = s.rand.IntN(len(s.routers))
	if err := s.routers[f.replica].Pick(s.now, f); err != nil {
		s.record(f, Refused)
		return
	}
	f.assigned = s.now
	if s.engines[f.Engine].dead {
		s.retry(f)
		return
	}
	s.events.push(event{at: s.now + s.Hardware.Frontend, kind: onArrive, flight: f})
}

// arrive hands a request to its engine's scheduler.
func (s *simulation) arrive(f *Flight) {
	g := s.engines[f.Engine]
	if g.dead {
		s.retry(f)
		return
	}
	g.enqueue(f, s.now)
	s.step(g)
}

// retry sends a request whose engine is gone to the first fallback that lives, as a gateway does, or else
// to any engine.
func (s *simulation) retry(f *Flight) {
	var alive []int
	for _, m := range s.members {
		if !s.engines[m].dead {
			alive = append(alive, m)
		}
	}
	if len(alive) == 0 {
		s.end(f)
		s.record(f, Lost)
		return
	}
	to := alive[s.rand.IntN(len(alive))]
	for _, m := range f.Fallbacks {
		if slices.Contains(alive, m) {
			to = m
			break
		}
	}
	s.account(f)
	s.routers[f.replica].Move(s.now, f, to)
	*f = Flight{
		Request: f.Request, Engine: to, Sent: f.Sent, assigned: s.now,
		replica: f.replica, pick: f.pick, session: f.session,
	}
	s.events.push(event{at: s.now + s.Hardware.Frontend, kind: onArrive, flight: f})
}

func (s *simulation) step(g *Engine) {
	if g.busy || g.dead {
		return
	}
	g.crowded = s.contention()
	if took, ok := g.start(s.now); ok {
		s.events.push(event{at: s.now + took, kind: onStep, engine: g.Index, epoch: g.epoch})
	}
}

// contention is how many times as long a step takes if one more engine sets to work.
func (s *simulation) contention() float64 {
	factors := s.Hardware.Contention
	if len(factors) == 0 {
		return 1
	}
	busy := 0
	for _, g := range s.engines {
		if g.busy {
			busy++
		}
	}
	return factors[min(busy, len(factors)-1)]
}

func (s *simulation) firstToken(f *Flight) {
	f.first = s.now
	if r, ok := s.routers[f.replica].(firstTokener); ok {
		r.FirstToken(s.now, f)
	}
}

func (s *simulation) done(f *Flight) {
	s.end(f)
	s.record(f, Served)
}

// end tells the picker that a request is over.
func (s *simulation) end(f *Flight) {
	s.account(f)
	s.routers[f.replica].Done(s.now, f)
}

// account adds the time that the request was in flight at its engine.
func (s *simulation) account(f *Flight) {
	s.engines[f.Engine].totals.InFlight += s.now - f.assigned
}

// record notes the request's fate, and lets its session and its client go on.
func (s *simulation) record(f *Flight, fate Fate) {
	r := Record{
		Sent: f.Sent, Ended: s.now, Fate: fate, Engine: f.Engine, Group: f.Group,
		Prompt: f.Prompt, Hit: f.Hit, Output: f.produced,
	}
	if f.first > 0 {
		r.TTFT = f.first - f.Sent
	}
	s.records = append(s.records, r)
	switch more := f.session.next < len(f.session.turns); {
	case more && s.Workload.Clients > 0 && s.Workload.Interleave:
		s.ready = append(s.ready, f.session)
		s.nextOfClient()
	case more:
		s.events.push(event{at: s.now + f.session.turns[f.session.next].After, kind: onSend, session: f.session})
	case s.Workload.Clients > 0:
		s.nextOfClient()
	}
}

func (s *simulation) addEngine() {
	i := len(s.engines)
	s.engines = append(s.engines, newEngine(i, &s.Hardware))
	s.members = append(s.members, i)
}

// publish tells the replicas which engines are ready: those that were not removed and are not known to be
// dead.
func (s *simulation) publish() {
	s.members = slices.DeleteFunc(s.members, func(m int) bool { return s.left[m] })
	told := map[Router]bool{}
	for _, r := range s.routers {
		if !told[r] {
			told[r] = true
			r.Publish(slices.Clone(s.members))
		}
	}
}
