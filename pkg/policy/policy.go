// Package policy decides what applies to each pool, from the pools themselves, the policies attached to
// them, their annotations and the install's defaults.
//
// It is pure: the same objects give the same answer in a cluster and from files, and the answer says
// beside each setting where it came from. What is wrong is reported and left out; it never takes a pool
// down that would work without it.
package policy

import (
	"cmp"
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	inferencev1 "sigs.k8s.io/gateway-api-inference-extension/api/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/homing-dev/homing/api/v1alpha1"
	"github.com/homing-dev/homing/pkg/endpoint"
)

// Reasons that Homing adds to those of Gateway API.
const (
	// ReasonPortConflict: the pool's port is taken, by an older pool or by Homing itself, or is none of the Service's.
	ReasonPortConflict = "PortConflict"
	// ReasonInvalidAnnotation: an annotation of the pool is not a value it may have.
	ReasonInvalidAnnotation = "InvalidAnnotation"
	// ReasonNoPort: the pool names no port of its endpoint picker.
	ReasonNoPort = "NoPort"
	// ReasonEmptySelector: the pool's selector would match every pod of the namespace.
	ReasonEmptySelector = "EmptySelector"
)

// Input is everything that decides.
type Input struct {
	// Pools of one namespace or more; those of other installs may be among them.
	Pools []inferencev1.InferencePool
	// Policies of the same namespaces.
	Policies []v1alpha1.PrefixRoutingPolicy
	// Service is the install's Service: pools whose endpointPickerRef names it are served. Empty, every
	// pool is.
	Service string
	// Defaults are the install's.
	Defaults endpoint.Policy
	// RefusePort says why a port cannot be a pool's, "" if it can; nil refuses none.
	RefusePort func(port uint16) (why string)
}

// Pool is what applies to one pool of this install.
type Pool struct {
	Name endpoint.PoolName
	// Port is the ext_proc port, 0 if the pool cannot be served: Problems then says why.
	Port   uint16
	Policy endpoint.Policy
	// Nodes selects the nodes whose endpoints may serve. It is never nil.
	Nodes labels.Selector
	// From is the policy in force, empty when there is none.
	From string
	// Problems are what is wrong with the pool itself.
	Problems []Problem
}

// Problem is something wrong that its owner should hear of.
type Problem struct {
	Reason, Message string
	// Field is the field at fault, "spec.targetRef.name".
	Field string
}

// Status is what became of one policy.
type Status struct {
	Namespace, Name string
	// Target is the pool it names.
	Target endpoint.PoolName
	// Conditions of the policy towards its target, without transition times.
	Conditions []metav1.Condition
	// Effective is nil unless the policy is accepted.
	Effective *v1alpha1.EffectivePolicy
	// Refused is why the policy is not accepted, nil if it is.
	Refused *Problem
}

// Result is what applies, sorted by namespace and name.
type Result struct {
	Pools []Pool
	// Statuses has one entry for each policy whose target is this install's, or is nobody's.
	Statuses []Status
}

// Resolve decides what applies to each pool.
func Resolve(in Input) Result {
	pools := sortedByAge(in.Pools)
	policies := sortedByAge(in.Policies)
	var result Result
	owners := map[uint16]endpoint.PoolName{}
	served := map[endpoint.PoolName]*poolState{}
	foreign := map[endpoint.PoolName]bool{}
	for _, p := range pools {
		name := endpoint.PoolName{Namespace: p.Namespace, Name: p.Name}
		if !in.serves(p) {
			foreign[name] = true
			continue
		}
		served[name] = in.newPool(p, name, owners)
	}
	for _, p := range policies {
		target := endpoint.PoolName{Namespace: p.Namespace, Name: p.Spec.TargetRef.Name}
		if !foreign[target] {
			result.Statuses = append(result.Statuses, attach(p, target, served[target]))
		}
	}
	for _, state := range served {
		result.Pools = append(result.Pools, state.Pool)
	}
	slices.SortFunc(result.Pools, func(a, b Pool) int { return compareNames(a.Name, b.Name) })
	slices.SortFunc(result.Statuses, func(a, b Status) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return result
}

func compareNames(a, b endpoint.PoolName) int {
	return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
}

// object is what sortedByAge needs of a pool or policy.
type object[T any] interface {
	*T
	metav1.Object
}

// sortedByAge puts the oldest first; of the same second, by namespace and name.
func sortedByAge[T any, P object[T]](items []T) []P {
	sorted := make([]P, len(items))
	for i := range items {
		sorted[i] = &items[i]
	}
	slices.SortStableFunc(sorted, func(a, b P) int {
		return cmp.Or(
			a.GetCreationTimestamp().Compare(b.GetCreationTimestamp().Time),
			cmp.Compare(a.GetNamespace(), b.GetNamespace()),
			cmp.Compare(a.GetName(), b.GetName()),
		)
	})
	return sorted
}

// serves says whether a pool is this install's.
func (in *Input) serves(p *inferencev1.InferencePool) bool {
	if in.Service == "" {
		return true
	}
	ref := p.Spec.EndpointPickerRef
	return ref != nil && (ref.Group == nil || *ref.Group == "") && (ref.Kind == "" || ref.Kind == "Service") &&
		string(ref.Name) == in.Service
}

// poolState is a pool while policies are being attached to it.
type poolState struct {
	Pool
	annotated settings
	unserved  *Problem // why the pool has no port
}

// newPool works out a pool without a policy, and claims its port.
func (in *Input) newPool(p *inferencev1.InferencePool, name endpoint.PoolName, owners map[uint16]endpoint.PoolName) *poolState {
	state := &poolState{Pool: Pool{Name: name, Nodes: labels.Everything()}}
	state.annotated, state.Problems = annotate(fromDefaults(in.Defaults), p.Annotations)
	state.Policy = state.annotated.settled()

	if state.Port, state.unserved = in.claimPort(p, name, owners); state.unserved != nil {
		state.Problems = append(state.Problems, *state.unserved)
	}
	return state
}

// claimPort gives the pool its port, unless something older has it or the pool must not be served.
func (in *Input) claimPort(p *inferencev1.InferencePool, name endpoint.PoolName, owners map[uint16]endpoint.PoolName) (uint16, *Problem) {
	ref := p.Spec.EndpointPickerRef
	if ref == nil {
		return 0, &Problem{ReasonNoPort, "the pool names no endpoint picker, so no port to serve it on", "spec.endpointPickerRef"}
	}
	if len(p.Spec.Selector.MatchLabels) == 0 {
		return 0, &Problem{ReasonEmptySelector, "the selector is empty and would match every pod of the namespace; give it labels", "spec.selector.matchLabels"}
	}
	const field = "spec.endpointPickerRef.port.number"
	if ref.Port == nil {
		return 0, &Problem{ReasonNoPort, "the pool names no port of its endpoint picker", field}
	}
	port := uint16(ref.Port.Number) //nolint:gosec // 1..65535 by the pool's schema
	if in.RefusePort != nil {
		if why := in.RefusePort(port); why != "" {
			return 0, &Problem{ReasonPortConflict, fmt.Sprintf("port %d %s", port, why), field}
		}
	}
	if owner, taken := owners[port]; taken {
		return 0, &Problem{ReasonPortConflict, fmt.Sprintf("port %d is already that of pool %s", port, owner), field}
	}
	owners[port] = name
	return port, nil
}

// attach gives a policy to its pool unless something is in the way, and says which of the two it was.
func attach(p *v1alpha1.PrefixRoutingPolicy, target endpoint.PoolName, pool *poolState) Status {
	status := Status{Namespace: p.Namespace, Name: p.Name, Target: target}
	if pool == nil {
		message := fmt.Sprintf("there is no InferencePool %s", target)
		status.Refused = &Problem{string(gatewayv1.PolicyReasonTargetNotFound), message, "spec.targetRef.name"}
		status.condition(p, conditionResolvedRefs, metav1.ConditionFalse, status.Refused.Reason, message)
		status.condition(p, conditionAccepted, metav1.ConditionFalse, status.Refused.Reason, message)
		return status
	}
	status.condition(p, conditionResolvedRefs, metav1.ConditionTrue, conditionResolvedRefs, "This install serves the pool")
	chosen, nodes, refused := apply(pool.annotated, &p.Spec)
	switch {
	case refused != nil:
		status.Refused = refused
	case pool.From != "":
		status.Refused = &Problem{string(gatewayv1.PolicyReasonConflicted), "policy " + pool.From + " already applies to pool " + target.String(), "spec.targetRef.name"}
	default:
		pool.From, pool.Policy, pool.Nodes = p.Name, chosen.settled(), nodes
		status.Refused = pool.unserved
	}
	if status.Refused != nil {
		status.condition(p, conditionAccepted, metav1.ConditionFalse, status.Refused.Reason, status.Refused.Message)
		return status
	}
	effective := chosen.settled()
	status.Effective = &v1alpha1.EffectivePolicy{
		Strategy:             v1alpha1.Strategy(effective.Strategy.String()),
		PrefixLength:         int32(effective.PrefixLength),         //nolint:gosec // at most 65536
		ConcurrencyThreshold: int32(effective.ConcurrencyThreshold), //nolint:gosec // at most 1024
	}
	status.condition(p, conditionAccepted, metav1.ConditionTrue, conditionAccepted, chosen.String())
	return status
}

// Types of a policy's conditions, and their reasons when true.
const (
	conditionAccepted     = "Accepted"
	conditionResolvedRefs = "ResolvedRefs"
)

func (s *Status) condition(p *v1alpha1.PrefixRoutingPolicy, kind string, value metav1.ConditionStatus, reason, message string) {
	s.Conditions = append(s.Conditions, metav1.Condition{
		Type: kind, Status: value, Reason: reason, Message: message, ObservedGeneration: p.Generation,
	})
}
