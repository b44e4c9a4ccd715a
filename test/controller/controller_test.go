package controller

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	inferencev1 "sigs.k8s.io/gateway-api-inference-extension/api/v1"

	"github.com/homing-dev/homing/api/v1alpha1"
	"github.com/homing-dev/homing/pkg/controller"
	"github.com/homing-dev/homing/test/cluster"
	"github.com/homing-dev/homing/test/env"
)

const (
	accepted = "Accepted=True Accepted: "
	resolved = "ResolvedRefs=True ResolvedRefs"
)

func TestController(t *testing.T) {
	r := newRig(t)
	// In this order: the first one starts before there are CRDs.
	t.Run("before the CRDs", r.testBeforeCRDs)
	for name, test := range map[string]func(*testing.T){
		"validation": r.testValidation, "rights": r.testRights, "pods": r.testPods, "status": r.testStatus, "conflicts": r.testConflicts,
		"nodes": r.testNodes, "replicas": r.testReplicas, "peers": r.testPeers, "another picker": r.testAnotherPicker, "outage": r.testOutage, "sample": r.testSample, "binary": r.testBinary,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // each has a namespace of its own
			test(t)
		})
	}
}

// A replica that starts before the CRDs are installed is ready, with no pools, and serves them when they come.
func (r *rig) testBeforeCRDs(t *testing.T) {
	r.namespace(t, "early")
	rep := r.start(t, "early", "early-0")
	rep.serves(t, map[string][]string{})
	if !strings.Contains(rep.log.String(), "is its CustomResourceDefinition installed?") {
		t.Errorf("the log does not say that CRDs are missing:\n%s", rep.log)
	}
	r.InstallCRDs(t, cluster.GatewayCRDs(t), cluster.InferenceCRDs(t), cluster.HomingCRDs())
	installed := time.Now()
	r.apply(t, pool("early", "llama", 9002, ""))
	r.pod(t, "early", "llama-0", "llama", "", "10.0.0.1")
	rep.serves(t, map[string][]string{"llama": {"10.0.0.1:8000"}})
	t.Logf("served %.1f s after the CRDs came", time.Since(installed).Seconds())
	r.apply(t, policy("early", "llama", "llama", "  prefixLength: 2048"))
	r.becomes(t, "early", "llama", outcome{Conditions: []string{resolved, accepted}, Effective: "PrefixAware 2048 64", Selected: 1, Ready: 1})
}

// Without a right a replica says which verb on what, is not ready, and becomes so when it is granted.
func (r *rig) testRights(t *testing.T) {
	r.bareNamespace(t, "rights")
	r.apply(t, pool("rights", "llama", 9002, ""))
	rep := r.start(t, "rights", "rights-0")
	rep.waitsFor(t, `cannot list resource "pods" in API group ""`, `cannot list resource "inferencepools"`, `cannot list resource "prefixroutingpolicies"`)

	r.grant(t, "rights")
	var role rbacv1.Role
	key := types.NamespacedName{Namespace: "rights", Name: "homing"}
	env.Check(t, r.api.Get(t.Context(), key, &role))
	whole := role.DeepCopy()
	for i := range role.Rules {
		if role.Rules[i].Resources[0] == "pods" {
			role.Rules[i].Verbs = []string{"list"}
		}
	}
	env.Check(t, r.api.Update(t.Context(), &role))
	rep.waitsFor(t, `cannot watch resource "pods" in API group ""`)

	role.Rules = whole.Rules
	env.Check(t, r.api.Update(t.Context(), &role))
	granted := time.Now()
	rep.serves(t, map[string][]string{"llama": {}})
	t.Logf("ready %.1f s after the right was granted", time.Since(granted).Seconds())
}

func (r *rig) testPods(t *testing.T) {
	const ns = "pods"
	r.namespace(t, ns)
	r.apply(t, pool(ns, "llama", 9002, "")+pool(ns, "ranks", 9100, "  targetPorts: [{number: 8000}, {number: 8001}]"))
	rep := r.start(t, ns, "pods-0")
	rep.serves(t, map[string][]string{"llama": {}, "ranks": {}})

	first := r.pod(t, ns, "llama-0", "llama", "", "10.0.0.1")
	six := r.pod(t, ns, "llama-1", "llama", "", "fd00::2", "10.0.0.2")
	ranks := r.pod(t, ns, "ranks-0", "ranks", "", "10.0.0.3")
	r.pod(t, ns, "web-0", "web", "", "10.0.0.4")
	rep.serves(t, map[string][]string{"llama": {"10.0.0.1:8000", "[fd00::2]:8000"}, "ranks": {"10.0.0.3:8000", "10.0.0.3:8001"}})

	base := ranks.DeepCopy()
	ranks.Annotations = map[string]string{controller.AnnotationActivePorts: "8001"}
	env.Check(t, r.api.Patch(t.Context(), ranks, client.MergeFrom(base)))
	rep.serves(t, map[string][]string{"llama": {"10.0.0.1:8000", "[fd00::2]:8000"}, "ranks": {"10.0.0.3:8001"}})

	// A flap keeps what is counted; a pod that gets the address does not.
	busy := rep.pool("llama").Endpoints[0]
	if busy.Address != "10.0.0.1:8000" {
		busy = rep.pool("llama").Endpoints[1]
	}
	busy.Load.Add()
	r.podStatus(t, first, corev1.ConditionFalse, "10.0.0.1")
	rep.serves(t, map[string][]string{"llama": {"[fd00::2]:8000"}, "ranks": {"10.0.0.3:8001"}})
	r.podStatus(t, first, corev1.ConditionTrue, "10.0.0.1")
	rep.serves(t, map[string][]string{"llama": {"10.0.0.1:8000", "[fd00::2]:8000"}, "ranks": {"10.0.0.3:8001"}})
	inFlight := func() (sum int64) {
		for _, e := range rep.pool("llama").Endpoints {
			sum += e.Load.InFlight()
		}
		return sum
	}
	if got := inFlight(); got != 1 {
		t.Errorf("in flight after a flap = %d, want 1", got)
	}
	r.deleteNow(t, first)
	r.pod(t, ns, "llama-2", "llama", "", "10.0.0.1")
	env.Eventually(t, func(context.Context) error {
		if p := rep.pool("llama"); len(p.Endpoints) != 2 || p.Endpoints[0].Name == "llama-0" || p.Endpoints[1].Name == "llama-0" {
			return errors.New("llama-0 is still there")
		}
		return nil
	})
	if got := inFlight(); got != 0 {
		t.Errorf("in flight at the pod that got the address = %d, want 0", got)
	}
	busy.Load.Release()

	// A pod that is being deleted gets no more requests, however long that takes.
	env.Check(t, r.api.Patch(t.Context(), six, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":["example.com/wait"]}}`))))
	r.deleteNow(t, six)
	rep.serves(t, map[string][]string{"llama": {"10.0.0.1:8000"}, "ranks": {"10.0.0.3:8001"}})
	env.Check(t, r.api.Patch(t.Context(), six, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`))))
}

func (r *rig) testStatus(t *testing.T) {
	const ns = "status"
	r.namespace(t, ns)
	rep := r.start(t, ns, "status-0")

	r.apply(t, policy(ns, "llama", "llama", "  prefixLength: 8192"))
	r.becomes(t, ns, "llama", outcome{Conditions: []string{
		"ResolvedRefs=False TargetNotFound: there is no InferencePool status/llama",
		"Accepted=False TargetNotFound: there is no InferencePool status/llama",
	}})
	r.told(t, ns, "llama", "Warning", "TargetNotFound", "there is no InferencePool")

	r.apply(t, pool(ns, "llama", 9002, ""))
	r.becomes(t, ns, "llama", outcome{
		Conditions: []string{resolved, accepted + "strategy PrefixAware (default), prefixLength 8192 (policy), concurrencyThreshold 64 (default)"},
		Effective:  "PrefixAware 8192 64",
	})
	r.told(t, ns, "llama", "Normal", "Accepted", "prefixLength 8192 (policy)")
	r.told(t, ns, "llama", "Warning", "NoEndpoints", "503")

	// The annotation comes between the policy and the defaults, and applies at once.
	r.apply(t, strings.Replace(pool(ns, "llama", 9002, ""), "namespace: status", "namespace: status, annotations: {homing.dev/concurrency-threshold: '8', homing.dev/prefix-length: '1024'}", 1))
	changed := time.Now()
	env.Eventually(t, func(context.Context) error {
		return difference("threshold", 8, rep.pool("llama").Policy.ConcurrencyThreshold)
	})
	t.Logf("an annotation applied after %.0f ms", time.Since(changed).Seconds()*1000)
	r.becomes(t, ns, "llama", outcome{
		Conditions: []string{resolved, accepted + "strategy PrefixAware (default), prefixLength 8192 (policy), concurrencyThreshold 8 (annotation)"},
		Effective:  "PrefixAware 8192 8",
	})

	r.apply(t, policy(ns, "llama", "llama", "  prefixLength: 8192\n  strategy: Random\n  saturation: Reject"))
	changed = time.Now()
	env.Eventually(t, func(context.Context) error { return difference("Reject", true, rep.pool("llama").Policy.Reject) })
	t.Logf("a policy applied after %.0f ms", time.Since(changed).Seconds()*1000)
	r.becomes(t, ns, "llama", outcome{Conditions: []string{resolved, accepted + "strategy Random (policy)"}, Effective: "Random 8192 8"})

	p := r.pod(t, ns, "llama-0", "llama", "", "10.0.0.1")
	up := outcome{Conditions: []string{resolved, accepted}, Effective: "Random 8192 8", Selected: 1, Ready: 1}
	r.becomes(t, ns, "llama", up)
	r.told(t, ns, "llama", "Normal", "EndpointsReady", "1 of the pool's 1 endpoints")
	r.podStatus(t, p, corev1.ConditionFalse, "10.0.0.1")
	down := up
	down.Ready = 0
	r.becomes(t, ns, "llama", down)

	// What is true already is not written again, not even when something else writes to the policy.
	r.quiet(t, ns, "llama", 2*time.Second)
	if err := r.Apply(t.Context(), []byte(strings.Replace(policy(ns, "llama", "llama", "  prefixLength: 8192\n  strategy: Random\n  saturation: Reject"), "namespace: status", "namespace: status, labels: {team: a}", 1))); err != nil {
		t.Fatal(err)
	}
	r.quiet(t, ns, "llama", 2*time.Second)

	// What somebody else writes over it is put right; what is not ours to say stays.
	var prp v1alpha1.PrefixRoutingPolicy
	env.Check(t, r.api.Get(t.Context(), types.NamespacedName{Namespace: ns, Name: "llama"}, &prp))
	foreign := prp.Status.Ancestors[0]
	foreign.ControllerName = "example.com/other"
	prp.Status.Ancestors[0].Conditions[0].Status = metav1.ConditionUnknown
	prp.Status.Ancestors = append(prp.Status.Ancestors, foreign)
	env.Check(t, r.api.Status().Update(t.Context(), &prp))
	env.Eventually(t, func(context.Context) error {
		s := r.get(t, ns, "llama").Status
		if len(s.Ancestors) != 2 || s.Ancestors[0].ControllerName != "example.com/other" {
			return fmt.Errorf("ancestors %v, want the other controller's too", s.Ancestors)
		}
		return difference("ResolvedRefs", metav1.ConditionTrue, s.Ancestors[1].Conditions[0].Status)
	})
}

func (r *rig) testConflicts(t *testing.T) {
	const ns = "conflicts"
	r.namespace(t, ns)
	r.start(t, ns, "conflicts-0")
	r.apply(t, pool(ns, "older", 9100, ""))
	r.apply(t, policy(ns, "z-first", "older", "  prefixLength: 2048"))
	time.Sleep(1100 * time.Millisecond) // ages are in whole seconds
	r.apply(t, policy(ns, "a-second", "older", "  prefixLength: 4096"))
	r.apply(t, pool(ns, "a-younger", 9100, "")+policy(ns, "younger", "a-younger", ""))
	r.apply(t, pool(ns, "reserved", 9003, ""))

	fine := outcome{Conditions: []string{resolved, accepted}, Effective: "PrefixAware 2048 64"}
	r.becomes(t, ns, "z-first", fine)
	r.becomes(t, ns, "a-second", outcome{Conditions: []string{resolved, "Accepted=False Conflicted: policy z-first"}})
	r.becomes(t, ns, "younger", outcome{Conditions: []string{resolved, "Accepted=False PortConflict: port 9100"}})
	r.told(t, ns, "a-second", "Warning", "Conflicted", "z-first")
	r.told(t, ns, "younger", "Warning", "PortConflict", "port 9100")
	r.told(t, ns, "reserved", "Warning", "PortConflict", "port 9003 is Homing's own, for health") // it has no policy to say so

	// When the older ones go, the younger ones follow.
	env.Check(t, r.api.Delete(t.Context(), r.get(t, ns, "z-first")))
	fine.Effective = "PrefixAware 4096 64"
	r.becomes(t, ns, "a-second", fine)
	env.Check(t, r.api.Delete(t.Context(), &inferencev1.InferencePool{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "older"}}))
	r.becomes(t, ns, "younger", fine)
	r.becomes(t, ns, "a-second", outcome{Conditions: []string{"ResolvedRefs=False TargetNotFound", "Accepted=False TargetNotFound"}})
}

func (r *rig) testNodes(t *testing.T) {
	const ns = "nodes"
	r.namespace(t, ns)
	for name, instance := range map[string]string{"p5-a": "p5.48xlarge", "g5-a": "g5.xlarge"} {
		r.AddNode(t, name, map[string]string{"node.kubernetes.io/instance-type": instance})
	}
	r.apply(t, pool(ns, "llama", 9002, ""))
	r.pod(t, ns, "llama-0", "llama", "p5-a", "10.0.0.1")
	r.pod(t, ns, "llama-1", "llama", "g5-a", "10.0.0.2")
	rep := r.start(t, ns, "nodes-0")
	all := map[string][]string{"llama": {"10.0.0.1:8000", "10.0.0.2:8000"}}
	rep.serves(t, all)

	// Without the right to read nodes the policy is in force but for its nodeSelector, and says so.
	r.apply(t, policy(ns, "llama", "llama", `  nodeSelector:
    matchExpressions: [{key: node.kubernetes.io/instance-type, operator: In, values: [p5.48xlarge, p5e.48xlarge]}]`))
	withheld := `ResolvedRefs=False NodesNotReadable: nodeSelector has no effect, because this install may not read nodes`
	r.becomes(t, ns, "llama", outcome{Conditions: []string{withheld, accepted}, Effective: "PrefixAware 4096 64", Selected: 2, Ready: 2})
	r.told(t, ns, "llama", "Warning", "NodesNotReadable", `cannot list resource "nodes"`)
	rep.serves(t, all)

	r.grant(t, ns, "rbac.nodes=true")
	rep.serves(t, map[string][]string{"llama": {"10.0.0.1:8000"}})
	r.becomes(t, ns, "llama", outcome{Conditions: []string{resolved, accepted}, Effective: "PrefixAware 4096 64", Selected: 1, Ready: 1})

	// A replica that starts now publishes nothing before it knows which nodes match; a cordoned node serves.
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "p5-a"}}
	env.Check(t, r.api.Patch(t.Context(), node, client.RawPatch(types.MergePatchType, []byte(`{"spec":{"unschedulable":true}}`))))
	second := r.start(t, ns, "nodes-1")
	env.Eventually(t, func(context.Context) error {
		if second.Waiting() != nil {
			return second.Waiting()
		}
		return nil
	})
	if got := len(second.pool("llama").Endpoints); got != 1 {
		t.Errorf("the first snapshot has %d endpoints, want the one on a p5 node", got)
	}
	node = &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "g5-a"}}
	env.Check(t, r.api.Patch(t.Context(), node, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"labels":{"node.kubernetes.io/instance-type":"p5e.48xlarge"}}}`))))
	rep.serves(t, all)
}

// The sample for p5 instances, as it is.
func (r *rig) testSample(t *testing.T) {
	const ns = "inference"
	r.namespace(t, ns)
	r.grant(t, ns, "rbac.nodes=true")
	files, err := filepath.Glob(filepath.Join(env.Root(), "config/samples/kubernetes/*.yaml"))
	env.Check(t, err)
	r.ApplyFiles(t, files...)
	for instance, ip := range map[string]string{"p5en.48xlarge": "10.0.0.1", "p4d.24xlarge": "10.0.0.2"} {
		node := "sample-" + strings.Split(instance, ".")[0]
		r.AddNode(t, node, map[string]string{"node.kubernetes.io/instance-type": instance})
		r.pod(t, ns, "llama-on-"+node, "llama-70b", node, ip)
	}
	r.start(t, ns, "sample-0").serves(t, map[string][]string{"llama-70b": {"10.0.0.1:8000"}})
	r.becomes(t, ns, "llama-70b", outcome{Conditions: []string{resolved, accepted}, Effective: "PrefixAware 8192 64", Selected: 1, Ready: 1})
}

// Every replica publishes; one writes status, and another when that one ends.
func (r *rig) testReplicas(t *testing.T) {
	const ns = "replicas"
	r.namespace(t, ns)
	r.apply(t, pool(ns, "llama", 9002, "")+policy(ns, "llama", "llama", "  prefixLength: 2048"))
	r.pod(t, ns, "llama-0", "llama", "", "10.0.0.1")
	replicas := map[string]*replica{"a": r.start(t, ns, "a"), "b": r.start(t, ns, "b")}
	for _, rep := range replicas {
		rep.serves(t, map[string][]string{"llama": {"10.0.0.1:8000"}})
	}
	r.becomes(t, ns, "llama", outcome{Conditions: []string{resolved, accepted}, Effective: "PrefixAware 2048 64", Selected: 1, Ready: 1})

	var lease coordinationv1.Lease
	env.Check(t, r.api.Get(t.Context(), types.NamespacedName{Namespace: ns, Name: controller.LeaseName("homing")}, &lease))
	leader := *lease.Spec.HolderIdentity
	replicas[leader].stop()
	stopped := time.Now()
	r.apply(t, policy(ns, "llama", "llama", "  prefixLength: 4096"))
	r.becomes(t, ns, "llama", outcome{Conditions: []string{resolved, accepted}, Effective: "PrefixAware 4096 64", Selected: 1, Ready: 1})
	t.Logf("the other replica wrote status %.1f s after the leader ended", time.Since(stopped).Seconds())

	// Without the Lease nobody writes, and everybody serves.
	var role rbacv1.Role
	env.Check(t, r.api.Get(t.Context(), types.NamespacedName{Namespace: ns, Name: "homing"}, &role))
	role.Rules = role.Rules[:len(role.Rules)-2]
	env.Check(t, r.api.Update(t.Context(), &role))
	for name, rep := range replicas {
		if name != leader {
			r.pod(t, ns, "llama-1", "llama", "", "10.0.0.2")
			rep.serves(t, map[string][]string{"llama": {"10.0.0.1:8000", "10.0.0.2:8000"}})
		}
	}
}

// A pool that is given to another picker is not served any more, and its policy says nothing of Homing.
func (r *rig) testAnotherPicker(t *testing.T) {
	const ns = "another"
	r.namespace(t, ns)
	rep := r.start(t, ns, "another-0")
	r.apply(t, pool(ns, "llama", 9002, "")+pool(ns, "foreign", 9002, "  endpointPickerRef: {name: epp, port: {number: 9002}}")+
		policy(ns, "llama", "llama", "")+policy(ns, "foreign", "foreign", ""))
	rep.serves(t, map[string][]string{"llama": {}})
	r.becomes(t, ns, "llama", outcome{Conditions: []string{resolved, accepted}, Effective: "PrefixAware 4096 64"})
	if got := r.get(t, ns, "foreign").Status.Ancestors; got != nil {
		t.Errorf("status of a policy for another picker's pool: %v, want none", got)
	}
	r.apply(t, pool(ns, "llama", 9002, "  endpointPickerRef: {name: epp, port: {number: 9002}}"))
	rep.serves(t, map[string][]string{})
	r.becomes(t, ns, "llama", outcome{})
}

// An API server that is away for so long that the Lease is lost ends nothing: the last snapshot stays, and
// both catch up when it is back.
func (r *rig) testOutage(t *testing.T) {
	const ns = "outage"
	r.namespace(t, ns)
	r.apply(t, pool(ns, "llama", 9002, "")+policy(ns, "llama", "llama", "  prefixLength: 2048"))
	r.pod(t, ns, "llama-0", "llama", "", "10.0.0.1")
	config := r.ServiceAccount(t, ns, "homing")
	link := newLink(t, config.Host)
	config.Host = "https://" + link.address()
	rep := r.startAs(t, config, ns, "outage-0")
	rep.serves(t, map[string][]string{"llama": {"10.0.0.1:8000"}})
	r.becomes(t, ns, "llama", outcome{Conditions: []string{resolved, accepted}, Effective: "PrefixAware 2048 64", Selected: 1, Ready: 1})
	leads := func(want float64) func(context.Context) error {
		return func(context.Context) error { return difference("homing_leader", want, rep.gauge(t, "homing_leader")) }
	}
	env.Eventually(t, leads(1))

	link.cut()
	r.pod(t, ns, "llama-1", "llama", "", "10.0.0.2")
	r.apply(t, policy(ns, "llama", "llama", "  prefixLength: 4096"))
	env.Eventually(t, leads(0))
	rep.serves(t, map[string][]string{"llama": {"10.0.0.1:8000"}})

	link.mend(t)
	mended := time.Now()
	rep.serves(t, map[string][]string{"llama": {"10.0.0.1:8000", "10.0.0.2:8000"}})
	t.Logf("caught up %.1f s after the API server was back", time.Since(mended).Seconds())
	r.becomes(t, ns, "llama", outcome{Conditions: []string{resolved, accepted}, Effective: "PrefixAware 4096 64", Selected: 2, Ready: 2})
}
