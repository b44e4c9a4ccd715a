package simulate

import (
	"container/heap"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Event is a change to the engines, or to those who pick them.
type Event struct {
	At   time.Duration
	Kind EventKind
	// Engine is its index, for all kinds but Add. For Restart it is the picker's, -1 for all of them.
	Engine int
	// Factor multiplies an engine's step times, for Slow.
	Factor float64
}

// EventKind is what happens to an engine.
type EventKind uint8

// The kinds of events.
const (
	// Add: a new engine, with an empty cache, is ready.
	Add EventKind = iota
	// Remove: an engine gets no more requests and ends those it has.
	Remove
	// Kill: an engine dies with all its requests; pickers hear of it KillNoticed later. Gateways retry
	// requests that had no answer yet.
	Kill
	// Slow: an engine's steps take Factor times as long from now on.
	Slow
	// Restart: every picker forgets all that it knew, or one of them.
	Restart
)

var eventNames = [...]string{"add", "remove", "kill", "slow", "restart"}

func (k EventKind) String() string { return eventNames[k] }

// KillNoticed is how long it takes until pickers know that an engine died: about what a readiness probe
// and a watch take.
const KillNoticed = 2 * time.Second

// ParseEvent reads TIME:add, TIME:remove:ENGINE, TIME:kill:ENGINE, TIME:slow:ENGINE:FACTOR, TIME:restart or
// TIME:restart:PICKER.
func ParseEvent(s string) (Event, error) {
	bad := fmt.Errorf("event %q: want TIME:add, TIME:remove:ENGINE, TIME:kill:ENGINE, TIME:slow:ENGINE:FACTOR, TIME:restart or TIME:restart:PICKER, as 10m:kill:3", s)
	parts := strings.Split(s, ":")
	at, err := time.ParseDuration(parts[0])
	if err != nil || at < 0 || len(parts) < 2 {
		return Event{}, bad
	}
	e := Event{At: at, Factor: 1}
	kind := slices.Index(eventNames[:], parts[1])
	if kind < 0 {
		return Event{}, bad
	}
	e.Kind = EventKind(kind) //nolint:gosec // there are few
	want := map[EventKind]int{Add: 2, Remove: 3, Kill: 3, Slow: 4, Restart: 3}[e.Kind]
	if e.Kind == Restart && len(parts) == 2 {
		e.Engine = -1
		return e, nil
	}
	if want != len(parts) {
		return Event{}, bad
	}
	if want > 2 {
		if e.Engine, err = strconv.Atoi(parts[2]); err != nil || e.Engine < 0 {
			return Event{}, bad
		}
	}
	if want > 3 {
		if e.Factor, err = strconv.ParseFloat(parts[3], 64); err != nil || e.Factor <= 0 {
			return Event{}, bad
		}
	}
	return e, nil
}

func (e Event) String() string {
	switch {
	case e.Kind == Add, e.Kind == Restart && e.Engine < 0:
		return fmt.Sprintf("%v:%v", e.At, e.Kind)
	case e.Kind == Slow:
		return fmt.Sprintf("%v:slow:%d:%g", e.At, e.Engine, e.Factor)
	default:
		return fmt.Sprintf("%v:%v:%d", e.At, e.Kind, e.Engine)
	}
}

// change makes an event happen. One that names an engine that is not there, or the last one, does nothing.
func (s *simulation) change(e Event) {
	switch e.Kind {
	case Add:
		s.addEngine()
		s.publish()
		return
	case Restart:
		s.restart(e.Engine)
		return
	}
	if e.Engine >= len(s.engines) || s.left[e.Engine] {
		return
	}
	g := s.engines[e.Engine]
	if e.Kind == Slow {
		g.slow = e.Factor
		return
	}
	if len(s.members) == 1 {
		return
	}
	s.left[e.Engine] = true
	if e.Kind == Remove {
		s.publish()
		return
	}
	s.events.push(event{at: s.now + KillNoticed, kind: onPublish})
	for _, f := range g.kill() {
		if f.first > 0 {
			s.end(f)
			s.record(f, Lost)
		} else {
			s.retry(f)
		}
	}
}

// restarter is a Router that can lose what it knows.
type restarter interface {
	Router
	Restart()
}

// restart has one picker forget what it knew, or with -1 all of them.
func (s *simulation) restart(picker int) {
	for i, r := range s.routers {
		if r, ok := r.(restarter); ok && (picker < 0 || picker == i) {
			r.Restart()
			r.Publish(slices.Clone(s.members))
		}
	}
}

// event is something that will happen in a simulation.
type event struct {
	at      time.Duration
	order   uint64 // of equal times, the first pushed comes first
	kind    eventTag
	engine  int
	epoch   int
	flight  *Flight
	session *session
	change  Event
}

type eventTag uint8

const (
	onSend eventTag = iota
	onArrive
	onStep
	onEvent
	onPublish
	onShare
)

// queue is the events to come, the next one first.
type queue struct {
	heap   byTime
	pushed uint64
	spare  []*event
}

func (q *queue) push(e event) {
	e.order = q.pushed
	q.pushed++
	var p *event
	if n := len(q.spare); n > 0 {
		p, q.spare = q.spare[n-1], q.spare[:n-1]
	} else {
		p = new(event)
	}
	*p = e
	heap.Push(&q.heap, p)
}

func (q *queue) pop() event {
	next := heap.Pop(&q.heap).(*event)
	e := *next
	*next = event{}
	q.spare = append(q.spare, next)
	return e
}

// byTime is a heap of events, those of one time in the order in which they were pushed.
type byTime []*event

func (h byTime) Len() int { return len(h) }

func (h byTime) Less(i, j int) bool {
	if h[i].at != h[j].at {
		return h[i].at < h[j].at
	}
	return h[i].order < h[j].order
}

func (h byTime) Swap(i, j int) { h[i], h[j] = h[j], h[i] }

func (h *byTime) Push(e any) { *h = append(*h, e.(*event)) }

func (h *byTime) Pop() any {
	last := len(*h) - 1
	e := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	return e
}
