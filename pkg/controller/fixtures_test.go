package controller

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	inferencev1 "sigs.k8s.io/gateway-api-inference-extension/api/v1"

	"github.com/homing-dev/homing/api/v1alpha1"
	"github.com/homing-dev/homing/pkg/endpoint"
)

const ns = "models"

var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func testWorld() *world {
	return newWorld("homing", endpoint.DefaultPolicy(), refuseHealth, func() time.Time { return epoch })
}

func testPod(name string, change ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name, UID: types.UID("uid-" + name), Labels: map[string]string{"app": "llama", "pod-template-hash": "abc"}},
		Spec:       corev1.PodSpec{NodeName: "node-a"},
		Status: corev1.PodStatus{
			Phase: corev1.PodRunning, PodIP: "10.0.0.1", PodIPs: []corev1.PodIP{{IP: "10.0.0.1"}},
			Conditions: []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionTrue}, {Type: corev1.PodReady, Status: corev1.ConditionTrue}},
		},
	}
	for _, f := range change {
		f(p)
	}
	return p
}

func withIP(ip string, more ...string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Status.PodIP, p.Status.PodIPs = ip, []corev1.PodIP{{IP: ip}}
		for _, m := range more {
			p.Status.PodIPs = append(p.Status.PodIPs, corev1.PodIP{IP: m})
		}
	}
}

func withAnnotation(key, value string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { metav1.SetMetaDataAnnotation(&p.ObjectMeta, key, value) }
}

func withLabel(key, value string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Labels[key] = value }
}

func onNode(name string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Spec.NodeName = name }
}

func unready(p *corev1.Pod) { p.Status.Conditions[1].Status = corev1.ConditionFalse }

func testPool(name string, port int32, change ...func(*inferencev1.InferencePool)) *inferencev1.InferencePool {
	p := &inferencev1.InferencePool{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name, UID: types.UID("uid-" + name), Generation: 1, CreationTimestamp: metav1.NewTime(epoch)},
		Spec: inferencev1.InferencePoolSpec{
			Selector:          inferencev1.LabelSelector{MatchLabels: map[inferencev1.LabelKey]inferencev1.LabelValue{"app": "llama"}},
			TargetPorts:       []inferencev1.Port{{Number: 8000}},
			EndpointPickerRef: &inferencev1.EndpointPickerRef{Name: "homing", Port: &inferencev1.Port{Number: inferencev1.PortNumber(port)}},
		},
	}
	for _, f := range change {
		f(p)
	}
	return p
}

func selecting(key, value string) func(*inferencev1.InferencePool) {
	return func(p *inferencev1.InferencePool) {
		p.Spec.Selector.MatchLabels = map[inferencev1.LabelKey]inferencev1.LabelValue{inferencev1.LabelKey(key): inferencev1.LabelValue(value)}
	}
}

func withPorts(ports ...int32) func(*inferencev1.InferencePool) {
	return func(p *inferencev1.InferencePool) {
		p.Spec.TargetPorts = nil
		for _, n := range ports {
			p.Spec.TargetPorts = append(p.Spec.TargetPorts, inferencev1.Port{Number: inferencev1.PortNumber(n)})
		}
	}
}

func testPolicy(name, pool string, change ...func(*v1alpha1.PrefixRoutingPolicy)) *v1alpha1.PrefixRoutingPolicy {
	p := &v1alpha1.PrefixRoutingPolicy{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name, UID: types.UID("uid-" + name), Generation: 1, CreationTimestamp: metav1.NewTime(epoch)},
		Spec:       v1alpha1.PrefixRoutingPolicySpec{TargetRef: v1alpha1.PoolReference{Name: pool}},
	}
	for _, f := range change {
		f(p)
	}
	return p
}

func onP5(p *v1alpha1.PrefixRoutingPolicy) {
	p.Spec.NodeSelector = &v1alpha1.NodeSelector{MatchExpressions: []v1alpha1.NodeSelectorRequirement{
		{Key: "node.kubernetes.io/instance-type", Operator: "In", Values: []v1alpha1.LabelValue{"p5.48xlarge", "p5e.48xlarge"}},
	}}
}

func testNode(name, instanceType string) *metav1.PartialObjectMetadata {
	return &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"node.kubernetes.io/instance-type": instanceType}}}
}

// replace gives a collection what a list found.
func replace[T any, O any](t testing.TB, c *collection[T], objects ...O) {
	t.Helper()
	list := make([]any, len(objects))
	for i, o := range objects {
		list[i] = o
	}
	if err := c.Replace(list, ""); err != nil {
		t.Fatal(err)
	}
}

// update gives a collection an object that came or changed.
func update[T any](t testing.TB, c *collection[T], object any) {
	t.Helper()
	if err := c.Update(object); err != nil {
		t.Fatal(err)
	}
}

func remove[T any](t testing.TB, c *collection[T], object any) {
	t.Helper()
	if err := c.Delete(object); err != nil {
		t.Fatal(err)
	}
}

// addresses are the endpoints of each pool, as "uid@address".
func addresses(specs []endpoint.PoolSpec) map[string][]string {
	got := map[string][]string{}
	for _, s := range specs {
		got[s.Name.Name] = []string{}
		for _, e := range s.Endpoints {
			got[s.Name.Name] = append(got[s.Name.Name], fmt.Sprintf("%s@%s", e.ID.UID, e.Addr))
		}
	}
	return got
}

func refuseHealth(port uint16) string {
	if port == 9003 {
		return "is Homing's own, for health"
	}
	return ""
}
