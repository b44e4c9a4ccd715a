package controller

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	inferencev1 "sigs.k8s.io/gateway-api-inference-extension/api/v1"

	"github.com/homing-dev/homing/api/v1alpha1"
	"github.com/homing-dev/homing/pkg/endpoint"
)

// check compares the endpoints that a build gives, and whether there is something new in them.
func check(t *testing.T, w *world, nodes nodeLabels, news bool, want map[string][]string) view {
	t.Helper()
	specs, v, since := w.build(nodes)
	if diff := cmp.Diff(want, addresses(specs)); diff != "" {
		t.Errorf("endpoints (-want +got):\n%s", diff)
	}
	if got := !since.IsZero(); got != news {
		t.Errorf("news = %t, want %t", got, news)
	}
	return v
}

func TestPoolsAndPodsComeAndGo(t *testing.T) {
	w := testWorld()
	replace(t, &w.pods, testPod("a"), testPod("b", withIP("10.0.0.2")), testPod("m", withLabel("app", "mistral"), withIP("10.0.0.3")))
	check(t, w, nodesPending, false, map[string][]string{})

	update(t, &w.pools, testPool("llama", 9002))
	update(t, &w.pools, testPool("foreign", 9100, func(p *inferencev1.InferencePool) { p.Spec.EndpointPickerRef.Name = "another" }))
	ab := []string{"uid-a@10.0.0.1:8000", "uid-b@10.0.0.2:8000"}
	check(t, w, nodesPending, true, map[string][]string{"llama": ab})
	check(t, w, nodesPending, false, map[string][]string{"llama": ab})

	update(t, &w.pools, testPool("mistral", 9101, selecting("app", "mistral")))
	check(t, w, nodesPending, true, map[string][]string{"llama": ab, "mistral": {"uid-m@10.0.0.3:8000"}})

	update(t, &w.pods, testPod("b", withIP("10.0.0.2"), withLabel("app", "mistral")))
	check(t, w, nodesPending, true, map[string][]string{"llama": {"uid-a@10.0.0.1:8000"}, "mistral": {"uid-b@10.0.0.2:8000", "uid-m@10.0.0.3:8000"}})

	remove(t, &w.pods, testPod("m", withLabel("app", "mistral")))
	check(t, w, nodesPending, true, map[string][]string{"llama": {"uid-a@10.0.0.1:8000"}, "mistral": {"uid-b@10.0.0.2:8000"}})

	update(t, &w.pools, testPool("mistral", 9101, selecting("app", "llama"), func(p *inferencev1.InferencePool) { p.Generation++ }))
	check(t, w, nodesPending, true, map[string][]string{"llama": {"uid-a@10.0.0.1:8000"}, "mistral": {"uid-a@10.0.0.1:8000"}})

	// A list after a watch that broke: b is gone, c came, one pool is left.
	replace(t, &w.pods, testPod("a"), testPod("c", withIP("10.0.0.4")))
	replace(t, &w.pools, testPool("llama", 9002))
	check(t, w, nodesPending, true, map[string][]string{"llama": {"uid-a@10.0.0.1:8000", "uid-c@10.0.0.4:8000"}})

	remove(t, &w.pools, testPool("llama", 9002))
	check(t, w, nodesPending, true, map[string][]string{})
}

func TestNoise(t *testing.T) {
	w := testWorld()
	replace(t, &w.pods, testPod("a"), testPod("other", withLabel("app", "web")))
	replace(t, &w.pools, testPool("llama", 9002))
	replace(t, &w.policies, testPolicy("p", "llama"))
	want := map[string][]string{"llama": {"uid-a@10.0.0.1:8000"}}
	check(t, w, nodesPending, true, want)

	update(t, &w.pods, testPod("a", withAnnotation("heartbeat", "12:00")))
	update(t, &w.pods, testPod("other", withLabel("app", "web"), unready))
	update(t, &w.pools, testPool("llama", 9002, func(p *inferencev1.InferencePool) { p.ResourceVersion = "7" }))
	written := testPolicy("p", "llama", func(p *v1alpha1.PrefixRoutingPolicy) { p.Status.Endpoints = &v1alpha1.EndpointCounts{Ready: 1} })
	update(t, &w.policies, written)
	v := check(t, w, nodesPending, false, want)
	if got := v.policies[0].object; got != written {
		t.Error("the view has an older policy than the one that came last")
	}
}

func TestAnnotationOfThePoolApplies(t *testing.T) {
	w := testWorld()
	replace(t, &w.pools, testPool("llama", 9002))
	w.build(nodesPending)
	update(t, &w.pools, testPool("llama", 9002, func(p *inferencev1.InferencePool) {
		p.Annotations = map[string]string{v1alpha1.AnnotationPrefixLength: "2048"} // which leaves the generation alone
	}))
	specs, _, since := w.build(nodesPending)
	if got := specs[0].Policy.PrefixLength; got != 2048 || since.IsZero() {
		t.Errorf("prefixLength %d, news %t; want 2048, true", got, !since.IsZero())
	}
}

func TestNodeSelector(t *testing.T) {
	w := testWorld()
	replace(t, &w.pods, testPod("a", onNode("p5")), testPod("b", onNode("g5"), withIP("10.0.0.2")), testPod("c", onNode("unknown"), withIP("10.0.0.3")))
	replace(t, &w.pools, testPool("llama", 9002))
	all := map[string][]string{"llama": {"uid-a@10.0.0.1:8000", "uid-b@10.0.0.2:8000", "uid-c@10.0.0.3:8000"}}
	check(t, w, nodesPending, true, all)

	update(t, &w.policies, testPolicy("p", "llama", onP5))
	if v := check(t, w, nodesPending, true, all); !v.selectsNodes {
		t.Error("no word of a policy that selects nodes")
	}
	update(t, &w.pods, testPod("d", onNode("p5"), withIP("10.0.0.4"))) // whether it may serve is not known
	remove(t, &w.pods, testPod("c"))
	check(t, w, nodesPending, true, map[string][]string{"llama": {"uid-a@10.0.0.1:8000", "uid-b@10.0.0.2:8000"}})
	remove(t, &w.pods, testPod("d"))
	update(t, &w.pods, testPod("c", onNode("unknown"), withIP("10.0.0.3")))

	replace(t, &w.nodes, testNode("p5", "p5.48xlarge"), testNode("g5", "g5.xlarge"))
	a := map[string][]string{"llama": {"uid-a@10.0.0.1:8000"}}
	v := check(t, w, nodesKnown, true, a)
	if diff := cmp.Diff(&v1alpha1.EndpointCounts{Selected: 1, Ready: 1}, v.policies[0].endpoints); diff != "" {
		t.Errorf("counts (-want +got):\n%s", diff)
	}

	update(t, &w.nodes, testNode("p5", "p5.48xlarge")) // a heartbeat
	check(t, w, nodesKnown, false, a)
	update(t, &w.nodes, testNode("g5", "p5e.48xlarge"))
	check(t, w, nodesKnown, true, map[string][]string{"llama": {"uid-a@10.0.0.1:8000", "uid-b@10.0.0.2:8000"}})
	remove(t, &w.nodes, testNode("p5", ""))
	check(t, w, nodesKnown, true, map[string][]string{"llama": {"uid-b@10.0.0.2:8000"}})

	remove(t, &w.policies, testPolicy("p", "llama"))
	check(t, w, nodesKnown, true, all)
}

func TestNodesWithheld(t *testing.T) {
	w := testWorld()
	replace(t, &w.pods, testPod("a", onNode("p5")))
	replace(t, &w.policies, testPolicy("p", "llama", onP5))
	replace(t, &w.pools, testPool("llama", 9002))
	check(t, w, nodesPending, true, map[string][]string{}) // who may serve is not known
	check(t, w, nodesWithheld, true, map[string][]string{"llama": {"uid-a@10.0.0.1:8000"}})
	replace(t, &w.nodes, testNode("p5", "g5.xlarge"))
	check(t, w, nodesKnown, true, map[string][]string{"llama": {}})
}

// A right that was denied is not given back by an API server that is away, and one that was taken back is told.
func TestNodesForbidden(t *testing.T) {
	w := testWorld()
	no := errors.New("nodes is forbidden")
	c := &Controller{world: w, nodes: &source{store: &w.nodes}}
	for i, step := range []struct {
		state  access
		synced bool
		want   nodeLabels
		wrong  string
	}{
		{failing, false, nodesPending, ""},
		{forbidden, false, nodesWithheld, "has no effect"},
		{failing, false, nodesWithheld, "has no effect"},
		{watching, true, nodesKnown, ""},
		{failing, true, nodesKnown, ""},
		{forbidden, true, nodesKnown, "labels as they were"},
		{failing, true, nodesKnown, "labels as they were"},
		{watching, true, nodesKnown, ""},
	} {
		c.nodes.state, c.nodes.why = step.state, no
		if step.synced && !w.nodes.isSynced() {
			replace(t, &w.nodes, testNode("p5", "p5.48xlarge"))
		}
		got, wrong := c.nodeLabels()
		if got != step.want || (wrong == nil) != (step.wrong == "") || wrong != nil && !strings.Contains(wrong.Error(), step.wrong) {
			t.Errorf("step %d: %v and %v, want %v and %q", i, got, wrong, step.want, step.wrong)
		}
	}
}

func TestPortConflict(t *testing.T) {
	w := testWorld()
	replace(t, &w.pods, testPod("a"))
	younger := testPool("a-younger", 9002, func(p *inferencev1.InferencePool) { p.CreationTimestamp.Time = epoch.Add(time.Minute) })
	replace(t, &w.pools, younger, testPool("older", 9002), testPool("reserved", 9003))
	v := check(t, w, nodesPending, true, map[string][]string{"older": {"uid-a@10.0.0.1:8000"}})
	got := map[string]int{}
	for _, p := range v.pools {
		got[p.object.Name] = len(p.problems)
	}
	if diff := cmp.Diff(map[string]int{"a-younger": 1, "older": 0, "reserved": 1}, got); diff != "" {
		t.Errorf("problems of pools (-want +got):\n%s", diff)
	}
	remove(t, &w.pools, testPool("older", 9002))
	check(t, w, nodesPending, true, map[string][]string{"a-younger": {"uid-a@10.0.0.1:8000"}})
}

// A pod that comes back under its name, and one that gets another's address, are other endpoints; one that
// flaps is the same.
func TestCountersFollowIdentity(t *testing.T) {
	w, store := testWorld(), endpoint.NewStore()
	publish := func() *endpoint.Pool {
		specs, _, _ := w.build(nodesPending)
		return store.Publish(specs).Pool(endpoint.PoolName{Namespace: ns, Name: "llama"})
	}
	inFlight := func(p *endpoint.Pool) map[string]int64 {
		got := map[string]int64{}
		for _, e := range p.Endpoints {
			got[e.ID.UID+"@"+e.Address] = e.Load.InFlight()
		}
		return got
	}
	expect := func(what string, p *endpoint.Pool, want map[string]int64) {
		t.Helper()
		if diff := cmp.Diff(want, inFlight(p)); diff != "" {
			t.Errorf("%s: in flight (-want +got):\n%s", what, diff)
		}
	}
	replace(t, &w.pools, testPool("llama", 9002))
	replace(t, &w.pods, testPod("engine-0"))
	first := publish()
	first.Endpoints[0].Load.Add()

	update(t, &w.pods, testPod("engine-0", unready))
	expect("while it flaps", publish(), map[string]int64{})
	update(t, &w.pods, testPod("engine-0"))
	expect("after the flap", publish(), map[string]int64{"uid-engine-0@10.0.0.1:8000": 1})

	again := func(p *corev1.Pod) { p.UID = types.UID("second") }
	update(t, &w.pods, testPod("engine-0", again)) // a StatefulSet's: same name, same address, another pod
	expect("replaced", publish(), map[string]int64{"second@10.0.0.1:8000": 0})
	update(t, &w.pods, testPod("engine-1", withIP("10.0.0.1")))
	update(t, &w.pods, testPod("engine-0", again, withIP("10.0.0.2")))
	last := publish()
	expect("address handed over", last, map[string]int64{"second@10.0.0.2:8000": 0, "uid-engine-1@10.0.0.1:8000": 0})
	first.Endpoints[0].Load.Release()
	expect("after the release", last, map[string]int64{"second@10.0.0.2:8000": 0, "uid-engine-1@10.0.0.1:8000": 0})
}

func TestCollectionIsSyncedForGood(t *testing.T) {
	w := testWorld()
	update(t, &w.nodes, testNode("a", "x"))
	if w.nodes.isSynced() {
		t.Error("synced before all was listed")
	}
	replace[labels.Set, any](t, &w.nodes)
	if !w.nodes.isSynced() || len(w.nodes.rows) != 0 {
		t.Errorf("synced %t with %d rows after an empty list, want true and 0", w.nodes.isSynced(), len(w.nodes.rows))
	}
}
