package controller

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	inferencev1 "sigs.k8s.io/gateway-api-inference-extension/api/v1"

	"github.com/homing-dev/homing/api/v1alpha1"
	"github.com/homing-dev/homing/pkg/endpoint"
	"github.com/homing-dev/homing/pkg/policy"
)

// world is what the API server last said, and what follows from it. Reflectors write to it, build reads
// it; only the pools that a change concerns are worked out again.
type world struct {
	service    string
	defaults   endpoint.Policy
	refusePort func(uint16) string
	now        func() time.Time
	// dirty holds a token while there is something to build.
	dirty chan struct{}

	mu       sync.Mutex // guards all below
	pools    collection[*inferencev1.InferencePool]
	policies collection[*v1alpha1.PrefixRoutingPolicy]
	pods     collection[*pod]
	nodes    collection[labels.Set]

	stale  bool // pools or policies have changed since they were resolved
	result policy.Result
	served map[string]*servedPool
	known  nodeLabels // as of the last build
	// since is when the first change came that is not built yet; zero if there is none.
	since time.Time
}

// servedPool is a pool of this install that has a port.
type servedPool struct {
	policy   policy.Pool
	selector []label
	ports    []uint16
	members  map[string]*pod // by name; those that the selector matches
	dirty    bool            // spec does not follow from the rest any more

	spec   *endpoint.PoolSpec // nil until it is known which nodes its policy selects
	counts v1alpha1.EndpointCounts
}

func newWorld(service string, defaults endpoint.Policy, refusePort func(uint16) string, now func() time.Time) *world {
	w := &world{
		service: service, defaults: defaults, refusePort: refusePort, now: now,
		dirty: make(chan struct{}, 1), stale: true, served: map[string]*servedPool{},
	}
	w.pools = collection[*inferencev1.InferencePool]{
		mu: &w.mu, rows: map[string]*inferencev1.InferencePool{}, wake: w.wake,
		keep:    func(obj any) *inferencev1.InferencePool { return obj.(*inferencev1.InferencePool) },
		changed: w.poolChanged,
	}
	w.policies = collection[*v1alpha1.PrefixRoutingPolicy]{
		mu: &w.mu, rows: map[string]*v1alpha1.PrefixRoutingPolicy{}, wake: w.wake,
		keep:    func(obj any) *v1alpha1.PrefixRoutingPolicy { return obj.(*v1alpha1.PrefixRoutingPolicy) },
		changed: w.policyChanged,
	}
	w.pods = collection[*pod]{
		mu: &w.mu, rows: map[string]*pod{}, wake: w.wake, strip: stripPod,
		keep: keepPod, changed: w.podChanged,
	}
	w.nodes = collection[labels.Set]{
		mu: &w.mu, rows: map[string]labels.Set{}, wake: w.wake,
		keep: func(obj any) labels.Set { return obj.(metav1.Object).GetLabels() }, changed: w.nodeChanged,
	}
	return w
}

// wake has build called soon.
func (w *world) wake() {
	select {
	case w.dirty <- struct{}{}:
	default:
	}
}

// touched notes the time of a change, for how long it takes until it is published.
func (w *world) touched() {
	if w.since.IsZero() {
		w.since = w.now()
	}
}

// poolChanged: what gateways write to a pool's status, and what others note on it, changes nothing here.
func (w *world) poolChanged(old, now *inferencev1.InferencePool) {
	if old != nil && now != nil && old.UID == now.UID && old.Generation == now.Generation && maps.Equal(old.Annotations, now.Annotations) {
		return
	}
	w.stale = true
	w.touched()
}

// policyChanged: a status that we wrote ourselves changes nothing.
func (w *world) policyChanged(old, now *v1alpha1.PrefixRoutingPolicy) {
	if old != nil && now != nil && old.UID == now.UID && old.Generation == now.Generation {
		return
	}
	w.stale = true
	w.touched()
}

func (w *world) podChanged(old, now *pod) {
	if old != nil && now != nil && old.equal(now) {
		return
	}
	for _, p := range w.served {
		was, is := old != nil && old.matches(p.selector), now != nil && now.matches(p.selector)
		if was && !is {
			delete(p.members, old.name)
		}
		if is {
			p.members[now.name] = now
		}
		if was || is {
			p.dirty = true
			w.touched()
		}
	}
}

func (w *world) nodeChanged(old, now labels.Set) {
	if old == nil || now == nil || !maps.Equal(old, now) {
		w.selectAgain()
	}
}

// selectAgain has the pools worked out again whose policies select nodes.
func (w *world) selectAgain() {
	for _, p := range w.served {
		if !p.policy.Nodes.Empty() {
			p.dirty = true
			w.touched()
		}
	}
}

// nodeLabels says what is known of the labels of nodes.
type nodeLabels uint8

const (
	nodesPending  nodeLabels = iota // not listed yet: to a pool that selects nodes nothing is added
	nodesKnown                      // all of them
	nodesWithheld                   // this install may not read them: selecting nodes has no effect
)

// view is what build has to tell besides what picks need.
type view struct {
	policies []policyView
	pools    []poolView
	others   []*v1alpha1.PrefixRoutingPolicy // whose pools are other pickers'
	// selectsNodes says whether any policy does.
	selectsNodes bool
	// nodesWrong is what is wrong with selecting by nodes' labels, nil if nothing is.
	nodesWrong error
}

// policyView is a policy, what became of it, and its pool's endpoints, nil if it is not in force.
type policyView struct {
	object       *v1alpha1.PrefixRoutingPolicy
	status       policy.Status
	endpoints    *v1alpha1.EndpointCounts
	selectsNodes bool
}

// poolView is a pool of this install and what is wrong with it.
type poolView struct {
	object   *inferencev1.InferencePool
	problems []policy.Problem
}

// build works out what has changed. It returns every pool there is to publish, sorted by name, and when
// the first change came that is new in them: the zero time if nothing has changed.
func (w *world) build(nodes nodeLabels) ([]endpoint.PoolSpec, view, time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.stale {
		w.resolve()
	}
	if nodes != w.known {
		w.known = nodes
		w.selectAgain()
	}
	since := w.since
	w.since = time.Time{}
	specs := make([]endpoint.PoolSpec, 0, len(w.served))
	for _, p := range w.result.Pools {
		s := w.served[p.Name.Name]
		if s == nil {
			continue
		}
		switch {
		case !s.dirty:
		case nodes != nodesPending || s.policy.Nodes.Empty():
			w.rebuild(s, nodes)
		case s.spec != nil:
			w.thin(s)
		}
		if s.spec != nil {
			specs = append(specs, *s.spec)
		}
	}
	return specs, w.view(), since
}

// resolve decides anew what applies to each pool, and finds the members of pools whose selector is new.
func (w *world) resolve() {
	w.stale = false
	in := policy.Input{Service: w.service, Defaults: w.defaults, RefusePort: w.refusePort}
	for _, p := range w.pools.rows {
		in.Pools = append(in.Pools, *p)
	}
	for _, p := range w.policies.rows {
		in.Policies = append(in.Policies, *p)
	}
	w.result = policy.Resolve(in)
	before := w.served
	w.served = make(map[string]*servedPool, len(w.result.Pools))
	for _, p := range w.result.Pools {
		if p.Port == 0 {
			continue
		}
		object := w.pools.rows[p.Name.Name]
		s := &servedPool{policy: p, selector: selectorOf(object), ports: targetPorts(object), dirty: true}
		if old := before[p.Name.Name]; old != nil && slices.Equal(old.selector, s.selector) {
			s.members, s.spec, s.counts = old.members, old.spec, old.counts
		} else {
			s.members = w.membersOf(s.selector)
		}
		w.served[p.Name.Name] = s
	}
}

func (w *world) membersOf(selector []label) map[string]*pod {
	members := map[string]*pod{}
	for name, p := range w.pods.rows {
		if p.matches(selector) {
			members[name] = p
		}
	}
	return members
}

// rebuild works out a pool's endpoints.
func (w *world) rebuild(s *servedPool, nodes nodeLabels) {
	s.dirty = false
	s.counts = v1alpha1.EndpointCounts{}
	spec := endpoint.PoolSpec{Name: s.policy.Name, Port: s.policy.Port, Policy: s.policy.Policy}
	for _, p := range s.members {
		if p.gone || nodes == nodesKnown && !s.policy.Nodes.Empty() && !w.onSelectedNode(p, s.policy.Nodes) {
			continue
		}
		for _, port := range s.ports {
			if !p.serves(port) {
				continue
			}
			s.counts.Selected++
			if p.ready {
				s.counts.Ready++
				spec.Endpoints = append(spec.Endpoints, p.spec(port))
			}
		}
	}
	// An order that does not depend on the map's, so that a pool that did not change is seen to be equal.
	slices.SortFunc(spec.Endpoints, func(a, b endpoint.Spec) int {
		return cmp.Or(cmp.Compare(a.ID.UID, b.ID.UID), cmp.Compare(a.ID.Port, b.ID.Port))
	})
	s.spec = &spec
}

// thin takes out of a pool what must not serve any more, while it is not known which of the others may.
func (w *world) thin(s *servedPool) {
	had := make(map[endpoint.ID]bool, len(s.spec.Endpoints))
	for _, e := range s.spec.Endpoints {
		had[e.ID] = true
	}
	w.rebuild(s, nodesWithheld)
	s.spec.Endpoints = slices.DeleteFunc(s.spec.Endpoints, func(e endpoint.Spec) bool { return !had[e.ID] })
	s.counts.Ready = int32(len(s.spec.Endpoints)) //nolint:gosec // far fewer
	s.dirty = true
}

// onSelectedNode: a pod on a node that is not known is not selected.
func (w *world) onSelectedNode(p *pod, selector labels.Selector) bool {
	node, known := w.nodes.rows[p.node.Value()]
	return known && selector.Matches(node)
}

func (w *world) view() view {
	var v view
	mine := make(map[string]bool, len(w.result.Statuses))
	for _, st := range w.result.Statuses {
		mine[st.Name] = true
		pv := policyView{object: w.policies.rows[st.Name], status: st}
		if s := w.served[st.Target.Name]; s != nil && s.policy.From == st.Name {
			counts := s.counts
			pv.endpoints, pv.selectsNodes = &counts, !s.policy.Nodes.Empty()
		}
		v.selectsNodes = v.selectsNodes || pv.selectsNodes
		v.policies = append(v.policies, pv)
	}
	for name, object := range w.policies.rows {
		if !mine[name] {
			v.others = append(v.others, object)
		}
	}
	for _, p := range w.result.Pools {
		v.pools = append(v.pools, poolView{w.pools.rows[p.Name.Name], p.Problems})
	}
	return v
}
