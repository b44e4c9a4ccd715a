package controller

import (
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"unique"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	inferencev1 "sigs.k8s.io/gateway-api-inference-extension/api/v1"

	"github.com/homing-dev/homing/pkg/endpoint"
)

// AnnotationWeight on a pod is its share of prefixes against the other pods of its pool, above 0 and at
// most 1000: one of weight 2 is home to twice as many. Anything else counts as 1.
const AnnotationWeight = "homing.dev/weight"

// AnnotationActivePorts on a pod lists, comma-separated, which of its pool's target ports serve; without
// it all do. It is the reference picker's: pkg/lwepp/datastore of gateway-api-inference-extension v1.6.
const AnnotationActivePorts = "inference.networking.k8s.io/active-ports"

const maxWeight = 1000

// label is one label of a pod. Pods of a namespace have most of theirs in common, so equal ones are
// stored once, and compared by address.
type label struct{ key, value unique.Handle[string] }

// pod is what is needed of a pod: the namespace's others are kept too, since a pool may select them later.
type pod struct {
	uid, name string
	node      unique.Handle[string]
	labels    []label // sorted as their keys were
	addr      netip.Addr
	// gone: it is being deleted, or has ended.
	gone bool
	// ready to serve: it says so, is not gone and has an address.
	ready bool
	// limited to the target ports in ports.
	limited bool
	ports   []uint16
	weight  float64
}

func (p *pod) equal(q *pod) bool {
	return p.uid == q.uid && p.name == q.name && p.node == q.node && p.addr == q.addr &&
		p.gone == q.gone && p.ready == q.ready && p.limited == q.limited && p.weight == q.weight &&
		slices.Equal(p.labels, q.labels) && slices.Equal(p.ports, q.ports)
}

// keepPod is what is needed of a corev1.Pod.
func keepPod(obj any) *pod {
	in := obj.(*corev1.Pod)
	p := &pod{
		uid:    string(in.UID),
		name:   in.Name,
		node:   unique.Make(in.Spec.NodeName),
		labels: labelsOf(in.Labels),
		addr:   address(&in.Status),
		gone:   in.DeletionTimestamp != nil || in.Status.Phase == corev1.PodSucceeded || in.Status.Phase == corev1.PodFailed,
		weight: weight(in.Annotations),
	}
	p.ports, p.limited = activePorts(in.Annotations)
	p.ready = !p.gone && p.addr.IsValid() && slices.ContainsFunc(in.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
	return p
}

// stripPod drops from a pod what keepPod does not look at, which is nearly all of it.
func stripPod(obj any) (any, error) {
	in, ok := obj.(*corev1.Pod)
	if !ok {
		return obj, nil
	}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: in.Name, Namespace: in.Namespace, UID: in.UID, ResourceVersion: in.ResourceVersion,
			Labels: in.Labels, Annotations: in.Annotations, DeletionTimestamp: in.DeletionTimestamp,
		},
		Spec: corev1.PodSpec{NodeName: in.Spec.NodeName},
		Status: corev1.PodStatus{
			Phase: in.Status.Phase, Conditions: in.Status.Conditions, PodIP: in.Status.PodIP, PodIPs: in.Status.PodIPs,
		},
	}, nil
}

func labelsOf(m map[string]string) []label {
	labels := make([]label, 0, len(m))
	for _, key := range slices.Sorted(maps.Keys(m)) {
		labels = append(labels, label{unique.Make(key), unique.Make(m[key])})
	}
	return labels
}

// matches says whether a pod has all of these labels.
func (p *pod) matches(selector []label) bool {
	for _, l := range selector {
		if !slices.Contains(p.labels, l) {
			return false
		}
	}
	return true
}

// address is a pod's first address that is one: of a dual-stack pod the cluster's first family, which is
// what gateways have as the pod's endpoint.
func address(status *corev1.PodStatus) netip.Addr {
	candidates := []string{status.PodIP}
	for _, ip := range status.PodIPs {
		candidates = append(candidates, ip.IP)
	}
	for _, c := range candidates {
		if addr, err := netip.ParseAddr(c); err == nil {
			return addr.Unmap()
		}
	}
	return netip.Addr{}
}

func weight(annotations map[string]string) float64 {
	w, err := strconv.ParseFloat(strings.TrimSpace(annotations[AnnotationWeight]), 64)
	if err != nil || !(w > 0 && w <= maxWeight) {
		return 1
	}
	return w
}

// activePorts reads the annotation that limits a pod to some of the target ports. What is not a port in
// it is passed over, so an empty one means none.
func activePorts(annotations map[string]string) (ports []uint16, limited bool) {
	text, limited := annotations[AnnotationActivePorts]
	for field := range strings.SplitSeq(text, ",") {
		if port, err := strconv.ParseUint(strings.TrimSpace(field), 10, 16); err == nil && port > 0 {
			ports = append(ports, uint16(port))
		}
	}
	return ports, limited
}

// serves says whether the pod serves this target port.
func (p *pod) serves(port uint16) bool { return !p.limited || slices.Contains(p.ports, port) }

// spec is the endpoint that a ready pod has on a port.
func (p *pod) spec(port uint16) endpoint.Spec {
	return endpoint.Spec{
		ID:     endpoint.ID{UID: p.uid, Port: port},
		Name:   p.name,
		Addr:   netip.AddrPortFrom(p.addr, port),
		Weight: p.weight,
	}
}

// targetPorts are a pool's.
func targetPorts(p *inferencev1.InferencePool) []uint16 {
	ports := make([]uint16, len(p.Spec.TargetPorts))
	for i, port := range p.Spec.TargetPorts {
		ports[i] = uint16(port.Number) //nolint:gosec // 1..65535 by the pool's schema
	}
	return ports
}

// selectorOf is a pool's selector.
func selectorOf(p *inferencev1.InferencePool) []label {
	m := make(map[string]string, len(p.Spec.Selector.MatchLabels))
	for key, value := range p.Spec.Selector.MatchLabels {
		m[string(key)] = string(value)
	}
	return labelsOf(m)
}
