package simulate

import (
	"net/netip"
	"strconv"
	"time"

	"github.com/homing-dev/homing/pkg/endpoint"
	"github.com/homing-dev/homing/pkg/picker"
)

func homingStrategies() []Strategy {
	of := func(s endpoint.Strategy, about string) Strategy {
		return Strategy{
			Name: s.String(), About: about,
			UsesLength: s == endpoint.PrefixAware, UsesThreshold: s == endpoint.PrefixAware,
			New: func(env Env) Router {
				env.Policy.Strategy = s
				return newHoming(env)
			},
		}
	}
	return []Strategy{
		of(endpoint.Random, "any engine"),
		of(endpoint.LeastOutstandingRequests, "the engine with the fewest requests in flight"),
		of(endpoint.PrefixAware, "the home of the first prefixLength characters, the next one once it has threshold requests in flight"),
	}
}

// homing is a replica of Homing: the real store and the real picker.
type homing struct {
	env    Env
	store  *endpoint.Store
	picker *picker.Picker
	pool   *endpoint.Pool
	// Of engines, both ways, also of those that left with requests in flight.
	index     map[*endpoint.Load]int
	endpoints map[int]*endpoint.Endpoint
}

var simulatedPool = endpoint.PoolName{Namespace: "simulate", Name: "pool"}

func newHoming(env Env) *homing {
	return &homing{
		env: env, store: endpoint.NewStore(), picker: picker.New(env.Rand.Uint64),
		index: map[*endpoint.Load]int{}, endpoints: map[int]*endpoint.Endpoint{},
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

func (h *homing) Pick(_ time.Duration, f *Flight) error {
	req := picker.Request{}
	if h.env.Policy.Strategy.UsesKey() {
		req.Key, req.HasKey = f.Key(h.env.Policy.PrefixLength), true
	}
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

func (h *homing) Move(_ time.Duration, f *Flight, to int) {
	f.pick.Move(h.endpoints[to])
	f.Engine = to
}

func (h *homing) Done(_ time.Duration, f *Flight) { f.pick.Release() }
