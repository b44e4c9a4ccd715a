package simulate

import (
	"net/netip"
	"slices"
	"strconv"
	"time"

	"github.com/homing-dev/homing/pkg/endpoint"
	"github.com/homing-dev/homing/pkg/picker"
	"github.com/homing-dev/homing/pkg/prefix"
)

func homingStrategies() []Strategy {
	of := func(s endpoint.Strategy, about string) Strategy {
		return Strategy{
			Name: s.String(), About: about, Exchanges: true,
			UsesLength: s == endpoint.PrefixAware, UsesThreshold: s == endpoint.PrefixAware,
			New: func(env Env) Router {
				env.Policy.Strategy = s
				return newHoming(env, picker.DefaultTuning())
			},
		}
	}
	return []Strategy{
		of(endpoint.Random, "any engine"),
		of(endpoint.LeastOutstandingRequests, "the engine with the fewest requests in flight"),
		of(endpoint.PrefixAware, "the home of the first prefixLength characters, the next one once it has threshold requests in flight"),
		Adaptive(endpoint.AdaptivePrefix.String(), picker.DefaultTuning(), false),
		Adaptive(endpoint.AdaptivePrefix.String()+"Seeing", picker.DefaultTuning(), true),
	}
}

// Adaptive is AdaptivePrefix with these constants, under a name of its own. With startsSeen the picker hears
// of first tokens, as it does if the gateway shows it the answers' bodies.
func Adaptive(name string, t picker.Tuning, startsSeen bool) Strategy {
	about := "the home of the longest prefix that is not too much for one, unless it has far more to do than another"
	if startsSeen {
		about = "the same where the gateway lets the picker see first tokens, not only the answers' ends"
	}
	return Strategy{Name: name, About: about, Exchanges: true, New: func(env Env) Router {
		env.Policy.Strategy = endpoint.AdaptivePrefix
		t := t
		t.Others = env.Others
		h := newHoming(env, t)
		h.startsSeen = startsSeen
		return h
	}}
}

// homing is a replica of Homing: the real store and the real picker.
type homing struct {
	env    Env
	tuning picker.Tuning
	store  *endpoint.Store
	picker *picker.Picker
	pool   *endpoint.Pool
	// Of engines, both ways, also of those that left with requests in flight.
	index     map[*endpoint.Load]int
	endpoints map[int]*endpoint.Endpoint
	// Of AdaptivePrefix.
	startsSeen bool
	rungs      []prefix.Rung
	// Of sharing.
	report picker.Report
	peers  map[Router]*picker.Peer
}

var simulatedPool = endpoint.PoolName{Namespace: "simulate", Name: "pool"}

func newHoming(env Env, t picker.Tuning) *homing {
	h := &homing{env: env, tuning: t, index: map[*endpoint.Load]int{}, endpoints: map[int]*endpoint.Endpoint{}}
	h.Restart()
	return h
}

// Restart makes it a new process, which knows nothing. What the old one had in flight ends unnoticed.
func (h *homing) Restart() {
	h.store, h.picker = endpoint.NewStore(), picker.NewTuned(h.env.Rand.Uint64, h.tuning)
	h.report, h.peers = picker.Report{}, map[Router]*picker.Peer{}
}

// Tell gives the other replicas a report, and to one that has just begun, all that it remembers.
func (h *homing) Tell(now time.Duration, others []Router) {
	at := endpoint.MomentOf(now)
	h.picker.Report(h.pool, &h.report)
	for _, o := range others {
		o := o.(*homing)
		if o.peers[h] == nil {
			o.peers[h] = &picker.Peer{}
			if h.env.Policy.Strategy == endpoint.AdaptivePrefix {
				traffic, rungs := h.picker.Recall(at)
				o.picker.Learn(traffic, slices.Collect(rungs), at)
			}
		}
		o.picker.Hear(o.pool, o.peers[h], &h.report, at)
	}
}

func (h *homing) Publish(members []int) {
	spec := endpoint.PoolSpec{Name: simulatedPool, Port: 9002, Policy: h.env.Policy}
	for _, m := range members {
		name := h.env.Name(m)
		spec.Endpoints = append(spec.Endpoints, endpoint.Spec{
			ID: endpoint.ID{UID: name, Port: 8000}, Name: name,
			Addr: netip.MustParseAddrPort("10.0." + strconv.Itoa(m/256) + "." + strconv.Itoa(m%256) + ":8000"),
		})
	}
	h.pool = h.store.Publish([]endpoint.PoolSpec{spec}).Pool(simulatedPool)
	for i, e := range h.pool.Endpoints {
		h.index[e.Load] = members[i]
		h.endpoints[members[i]] = e
	}
}

// request is what the picker gets to see.
func (h *homing) request(now time.Duration, f *Flight) picker.Request {
	switch h.env.Policy.Strategy {
	case endpoint.PrefixAware:
		return picker.Request{Key: f.Key(h.env.Policy.PrefixLength), HasKey: true}
	case endpoint.AdaptivePrefix:
		h.rungs = f.Ladder(endpoint.MaxPrefixLength, h.rungs[:0])
		return picker.Request{Rungs: h.rungs, Bytes: int64(f.Chars()), Now: endpoint.MomentOf(now)}
	default:
		return picker.Request{}
	}
}

func (h *homing) Pick(now time.Duration, f *Flight) error {
	req := h.request(now, f)
	if err := h.picker.Pick(h.pool, &req, &f.pick); err != nil {
		return err
	}
	f.Engine = h.index[f.pick.Endpoint.Load]
	f.Fallbacks = f.Fallbacks[:0]
	for _, e := range f.pick.Fallbacks {
		if e != nil {
			f.Fallbacks = append(f.Fallbacks, h.index[e.Load])
		}
	}
	return nil
}

func (h *homing) Move(now time.Duration, f *Flight, to int) {
	req := h.request(now, f)
	h.picker.Moved(&req, &f.pick, h.endpoints[to])
	f.Engine = to
}

// FirstToken is heard of if the gateway shows answers.
func (h *homing) FirstToken(now time.Duration, f *Flight) {
	if h.startsSeen {
		f.pick.Started(endpoint.MomentOf(now))
	}
}

func (h *homing) Done(now time.Duration, f *Flight) {
	f.pick.Ended(endpoint.MomentOf(now))
	f.pick.Release()
}
