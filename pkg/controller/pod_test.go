package controller

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/homing-dev/homing/api/v1alpha1"
)

func TestWhichPodsServe(t *testing.T) {
	deleting := func(p *corev1.Pod) { now := metav1.Now(); p.DeletionTimestamp = &now }
	phase := func(phase corev1.PodPhase) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.Status.Phase = phase }
	}
	for _, tt := range []struct {
		name   string
		ports  []int32
		pod    *corev1.Pod
		want   []string
		counts v1alpha1.EndpointCounts
	}{
		{"ready", []int32{8000}, testPod("a"), []string{"uid-a@10.0.0.1:8000"}, v1alpha1.EndpointCounts{Selected: 1, Ready: 1}},
		{"not ready", []int32{8000}, testPod("a", unready), []string{}, v1alpha1.EndpointCounts{Selected: 1}},
		{"no condition yet", []int32{8000}, testPod("a", func(p *corev1.Pod) { p.Status.Conditions = nil }), []string{}, v1alpha1.EndpointCounts{Selected: 1}},
		{"being deleted", []int32{8000}, testPod("a", deleting), []string{}, v1alpha1.EndpointCounts{}},
		{"succeeded", []int32{8000}, testPod("a", phase(corev1.PodSucceeded)), []string{}, v1alpha1.EndpointCounts{}},
		{"failed", []int32{8000}, testPod("a", phase(corev1.PodFailed)), []string{}, v1alpha1.EndpointCounts{}},
		{"no address", []int32{8000}, testPod("a", withIP("")), []string{}, v1alpha1.EndpointCounts{Selected: 1}},
		{"another label", []int32{8000}, testPod("a", withLabel("app", "mistral")), []string{}, v1alpha1.EndpointCounts{}},
		{"IPv6", []int32{8000}, testPod("a", withIP("fd00::7")), []string{"uid-a@[fd00::7]:8000"}, v1alpha1.EndpointCounts{Selected: 1, Ready: 1}},
		{"dual stack, the cluster's first family", []int32{8000}, testPod("a", withIP("fd00::7", "10.0.0.7")), []string{"uid-a@[fd00::7]:8000"}, v1alpha1.EndpointCounts{Selected: 1, Ready: 1}},
		{"only in the list of addresses", []int32{8000}, testPod("a", func(p *corev1.Pod) { p.Status.PodIP = "" }), []string{"uid-a@10.0.0.1:8000"}, v1alpha1.EndpointCounts{Selected: 1, Ready: 1}},
		{"IPv4 in IPv6 is IPv4", []int32{8000}, testPod("a", withIP("::ffff:10.0.0.9")), []string{"uid-a@10.0.0.9:8000"}, v1alpha1.EndpointCounts{Selected: 1, Ready: 1}},
		{"several ports", []int32{8001, 8000}, testPod("a"), []string{"uid-a@10.0.0.1:8000", "uid-a@10.0.0.1:8001"}, v1alpha1.EndpointCounts{Selected: 2, Ready: 2}},
		{"active ports", []int32{8000, 8001, 8002}, testPod("a", withAnnotation(AnnotationActivePorts, "8002, 8000,9999,x,-1,70000")), []string{"uid-a@10.0.0.1:8000", "uid-a@10.0.0.1:8002"}, v1alpha1.EndpointCounts{Selected: 2, Ready: 2}},
		{"no active port", []int32{8000}, testPod("a", withAnnotation(AnnotationActivePorts, "")), []string{}, v1alpha1.EndpointCounts{}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := testWorld()
			update(t, &w.pools, testPool("llama", 9002, withPorts(tt.ports...)))
			update(t, &w.policies, testPolicy("p", "llama"))
			stripped, err := stripPod(tt.pod)
			if err != nil {
				t.Fatal(err)
			}
			for how, pod := range map[string]any{"whole": tt.pod, "stripped": stripped} {
				replace(t, &w.pods, pod)
				specs, v, _ := w.build(nodesPending)
				if diff := cmp.Diff(tt.want, addresses(specs)["llama"]); diff != "" {
					t.Errorf("endpoints of the %s pod (-want +got):\n%s", how, diff)
				}
				if diff := cmp.Diff(&tt.counts, v.policies[0].endpoints); diff != "" {
					t.Errorf("counts of the %s pod (-want +got):\n%s", how, diff)
				}
			}
		})
	}
}

func TestWeight(t *testing.T) {
	for text, want := range map[string]float64{"2": 2, " 0.5 ": 0.5, "1000": 1000, "": 1, "0": 1, "-1": 1, "1001": 1, "NaN": 1, "Inf": 1, "two": 1} {
		if got := keepPod(testPod("a", withAnnotation(AnnotationWeight, text))).spec(8000).Weight; got != want {
			t.Errorf("weight %q = %v, want %v", text, got, want)
		}
	}
	if got := keepPod(testPod("a")).spec(8000).Weight; got != 1 {
		t.Errorf("no weight = %v, want 1", got)
	}
}

// Each thing that is kept of a pod matters to equal, or its change would be missed.
func TestPodsDiffer(t *testing.T) {
	for i, change := range []func(*corev1.Pod){
		func(p *corev1.Pod) { p.UID = "other" },
		func(p *corev1.Pod) { p.Name = "other" },
		onNode("node-b"), withLabel("app", "x"), withLabel("new", ""), withIP("10.9.9.9"), unready,
		func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed },
		withAnnotation(AnnotationActivePorts, ""), withAnnotation(AnnotationActivePorts, "8000"), withAnnotation(AnnotationWeight, "2"),
	} {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			if keepPod(testPod("a")).equal(keepPod(testPod("a", change))) {
				t.Error("equal to the unchanged pod")
			}
		})
	}
	if noise := testPod("a", withAnnotation("heartbeat", "12:00")); !keepPod(testPod("a")).equal(keepPod(noise)) {
		t.Error("an annotation of somebody else's makes a difference")
	}
}
