package controller

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	inferencev1 "sigs.k8s.io/gateway-api-inference-extension/api/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/homing-dev/homing/api/v1alpha1"
)

// ReasonNodesNotReadable is why ResolvedRefs is false when a policy selects nodes and this install may
// not read them: the policy is in force without its nodeSelector, or by the labels that were known.
const ReasonNodesNotReadable = "NodesNotReadable"

// Reasons of events that no condition has.
const (
	reasonNoEndpoints    = "NoEndpoints"
	reasonEndpointsReady = "EndpointsReady"
)

// desired is the status that a policy ought to have. What other controllers wrote to it stays.
func desired(v policyView, nodesWrong error, now time.Time) v1alpha1.PrefixRoutingPolicyStatus {
	old := &v.object.Status
	entry := gatewayv1.PolicyAncestorStatus{
		AncestorRef: gatewayv1.ParentReference{
			Group: new(gatewayv1.Group(inferencev1.GroupName)),
			Kind:  new(gatewayv1.Kind("InferencePool")),
			Name:  gatewayv1.ObjectName(v.status.Target.Name),
		},
		ControllerName: v1alpha1.ControllerName,
	}
	var before []metav1.Condition
	if e := ours(old); e != nil && e.AncestorRef.Name == entry.AncestorRef.Name {
		before = slices.Clone(e.Conditions)
	}
	for _, c := range v.status.Conditions {
		if nodesWrong != nil && v.selectsNodes && c.Type == "ResolvedRefs" {
			c.Status, c.Reason = metav1.ConditionFalse, ReasonNodesNotReadable
			c.Message = nodesWrong.Error()
		}
		c.LastTransitionTime = metav1.NewTime(now)
		meta.SetStatusCondition(&before, c)
		entry.Conditions = append(entry.Conditions, *meta.FindStatusCondition(before, c.Type))
	}
	status := v1alpha1.PrefixRoutingPolicyStatus{
		Ancestors: append(others(old), entry),
		Effective: v.status.Effective,
	}
	if v.status.Effective != nil {
		status.Endpoints = v.endpoints
	}
	return status
}

// cleared is the status of a policy that is another picker's now.
func cleared(old *v1alpha1.PrefixRoutingPolicyStatus) v1alpha1.PrefixRoutingPolicyStatus {
	return v1alpha1.PrefixRoutingPolicyStatus{Ancestors: others(old)}
}

// ours is our entry in a status, nil if there is none.
func ours(s *v1alpha1.PrefixRoutingPolicyStatus) *gatewayv1.PolicyAncestorStatus {
	i := slices.IndexFunc(s.Ancestors, isOurs)
	if i < 0 {
		return nil
	}
	return &s.Ancestors[i]
}

func others(s *v1alpha1.PrefixRoutingPolicyStatus) []gatewayv1.PolicyAncestorStatus {
	return slices.DeleteFunc(slices.Clone(s.Ancestors), isOurs)
}

func isOurs(a gatewayv1.PolicyAncestorStatus) bool {
	return a.ControllerName == v1alpha1.ControllerName
}

// onlyCounts says whether two statuses that differ do so in their endpoint counts alone.
func onlyCounts(a, b v1alpha1.PrefixRoutingPolicyStatus) bool {
	a.Endpoints, b.Endpoints = nil, nil
	return equality.Semantic.DeepEqual(a, b)
}

// event is something about an object that its owner should notice.
type event struct{ kind, reason, note string }

// news is what to tell of a status that changes from old to now.
func news(old, now *v1alpha1.PrefixRoutingPolicyStatus) []event {
	var told []event
	var before []metav1.Condition
	if e := ours(old); e != nil {
		before = e.Conditions
	}
	refused := false
	for _, c := range slices.Backward(ours(now).Conditions) { // Accepted first
		if was := meta.FindStatusCondition(before, c.Type); was != nil && was.Status == c.Status && was.Reason == c.Reason && was.Message == c.Message {
			continue
		}
		switch {
		case c.Status != metav1.ConditionTrue && !refused: // one reason may be that of both conditions
			told = append(told, event{corev1.EventTypeWarning, c.Reason, c.Message})
			refused = c.Type == acceptedType
		case c.Status == metav1.ConditionTrue && c.Type == acceptedType:
			told = append(told, event{corev1.EventTypeNormal, c.Reason, c.Message})
		}
	}
	if now.Endpoints == nil {
		return told
	}
	had := old.Endpoints != nil && old.Endpoints.Ready > 0
	switch {
	case now.Endpoints.Ready == 0 && (had || old.Endpoints == nil):
		told = append(told, event{corev1.EventTypeWarning, reasonNoEndpoints,
			fmt.Sprintf("None of the pool's %d endpoints is ready: requests are answered with 503", now.Endpoints.Selected)})
	case now.Endpoints.Ready > 0 && old.Endpoints != nil && !had:
		told = append(told, event{corev1.EventTypeNormal, reasonEndpointsReady,
			fmt.Sprintf("%d of the pool's %d endpoints are ready", now.Endpoints.Ready, now.Endpoints.Selected)})
	}
	return told
}

const acceptedType = string(gatewayv1.PolicyConditionAccepted)
