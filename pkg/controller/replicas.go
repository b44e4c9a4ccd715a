package controller

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"sync"

	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// Replica is another pod of this install.
type Replica struct {
	Pod     string // its name; the address if it has none
	Address netip.Addr
	// Serving says whether gateways are sent there, as far as is known: it is ready, also while it terminates. One
	// that is not may still have requests under way.
	Serving bool
}

// replicas are the pods behind the install's Service, this one among them. Each of its slices holds some of them.
type replicas struct {
	collection[[]Replica]
	own     string
	mu      sync.Mutex // the collection's, and held while tell is called: in turn
	told    []Replica  // guarded by mu
	toldOne bool       // guarded by mu; told is what somebody was told
}

func newReplicas(o Options) *replicas {
	r := &replicas{own: o.Pod}
	r.collection = collection[[]Replica]{
		mu: &r.mu, rows: map[string][]Replica{}, changed: func(_, _ []Replica) {},
		keep: func(obj any) []Replica { return replicasOf(obj.(*discoveryv1.EndpointSlice)) },
		wake: func() { r.tell(o.Replicas) },
	}
	return r
}

// sliceSelector selects the slices of a Service.
func sliceSelector(service string) labels.Selector {
	return labels.SelectorFromSet(labels.Set{discoveryv1.LabelServiceName: service})
}

// replicasOf is the pods of a slice.
func replicasOf(slice *discoveryv1.EndpointSlice) (found []Replica) {
	for _, e := range slice.Endpoints {
		if len(e.Addresses) == 0 {
			continue
		}
		address, err := netip.ParseAddr(e.Addresses[0])
		if err != nil {
			continue // a slice of names
		}
		r := Replica{Pod: address.String(), Address: address, Serving: serving(e.Conditions)}
		if ref := e.TargetRef; ref != nil && ref.Kind == "Pod" {
			r.Pod = ref.Name
		}
		found = append(found, r)
	}
	return found
}

// serving: what is not said is to be taken for yes.
func serving(c discoveryv1.EndpointConditions) bool {
	switch {
	case c.Serving != nil:
		return *c.Serving
	case c.Ready != nil:
		return *c.Ready
	default:
		return true
	}
}

// tell tells who else there is now, once all slices have been listed, if it is not what was told. A Service that has
// never had an endpoint, not even this one, tells nothing.
func (r *replicas) tell(to func([]Replica)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.synced {
		return
	}
	all := r.all()
	known := len(all) > 0
	now := slices.DeleteFunc(all, func(p Replica) bool { return p.Pod == r.own })
	if r.toldOne && slices.Equal(now, r.told) || !r.toldOne && !known {
		return
	}
	r.told, r.toldOne = now, true
	to(now)
}

// all is every replica once, sorted by pod: one with addresses of two families is in a slice of each, and is reached
// by that of the first. The caller holds mu.
func (r *replicas) all() []Replica {
	byPod := map[string]Replica{}
	for _, row := range r.rows {
		for _, found := range row {
			known, twice := byPod[found.Pod]
			if !twice || found.Address.Less(known.Address) {
				byPod[found.Pod] = found
			}
		}
	}
	return slices.SortedFunc(maps.Values(byPod), func(a, b Replica) int { return cmp.Compare(a.Pod, b.Pod) })
}
