package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
)

// Annotations that an InferencePool may carry instead of a policy. A policy's field beats its
// annotation, and an annotation beats the install's default.
const (
	AnnotationStrategy             = "homing.dev/strategy"
	AnnotationPrefixLength         = "homing.dev/prefix-length"
	AnnotationConcurrencyThreshold = "homing.dev/concurrency-threshold"
)

// ControllerName is how Homing signs the entries it writes to a policy's status.
const ControllerName gatewayv1.GatewayController = "homing.dev/homing"

// PrefixRoutingPolicy says how the requests of one InferencePool find their endpoint.
//
// A change applies to the next request: nothing restarts, and no prefix moves to another home unless
// its key changes.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:storageversion
// +kubebuilder:resource:shortName=prp,categories=gateway-api
// +kubebuilder:metadata:labels="gateway.networking.k8s.io/policy=Direct"
// +kubebuilder:printcolumn:name="Pool",type=string,JSONPath=`.spec.targetRef.name`
// +kubebuilder:printcolumn:name="Strategy",type=string,JSONPath=`.status.effective.strategy`
// +kubebuilder:printcolumn:name="Prefix",type=integer,JSONPath=`.status.effective.prefixLength`,description="Characters of a prompt that make its key"
// +kubebuilder:printcolumn:name="Threshold",type=integer,JSONPath=`.status.effective.concurrencyThreshold`,description="In-flight requests at which an endpoint is passed over"
// +kubebuilder:printcolumn:name="Endpoints",type=integer,JSONPath=`.status.endpoints.ready`,description="Endpoints that may serve now"
// +kubebuilder:printcolumn:name="Accepted",type=string,JSONPath=`.status.ancestors[0].conditions[?(@.type=="Accepted")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,priority=1,JSONPath=`.status.ancestors[0].conditions[?(@.type=="Accepted")].reason`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type PrefixRoutingPolicy struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Spec is what is wanted.
	// +required
	Spec PrefixRoutingPolicySpec `json:"spec"`

	// Status is what Homing made of it.
	// +optional
	Status PrefixRoutingPolicyStatus `json:"status,omitempty"`
}

// PrefixRoutingPolicyList is a list of policies.
//
// +kubebuilder:object:root=true
type PrefixRoutingPolicyList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []PrefixRoutingPolicy `json:"items"`
}

// PrefixRoutingPolicySpec is what is wanted for a pool. A number or strategy that is left out comes
// from the pool's annotation, else from the install's default.
type PrefixRoutingPolicySpec struct {
	// TargetRef names the pool, in the policy's own namespace. Of two policies for one pool the older
	// counts.
	// +required
	TargetRef PoolReference `json:"targetRef"`

	// Strategy is how an endpoint is chosen. PrefixAware sends prompts that begin alike to the same
	// endpoint until it is at the threshold; AdaptivePrefix finds out by itself how much of a prompt to go
	// by and when to leave home; LeastOutstandingRequests takes the one with the fewest requests in flight;
	// Random takes any. Left out: the pool's annotation homing.dev/strategy, else PrefixAware.
	// +optional
	Strategy Strategy `json:"strategy,omitempty"`

	// PrefixLength is how much of a prompt makes its key: 1024..65536 characters (Unicode code points)
	// of its text, or bytes of a body that is not read as a prompt. Left out: the pool's annotation
	// homing.dev/prefix-length, else the install's default, 4096 unless changed; AdaptivePrefix then looks
	// at 65536.
	// +optional
	// +kubebuilder:validation:XValidation:rule="self >= 1024 && self <= 65536",message="must be between 1024 and 65536"
	PrefixLength *int32 `json:"prefixLength,omitempty"`

	// ConcurrencyThreshold is how many requests may be in flight at an endpoint, 1..1024, before it is
	// passed over for the next in the key's own order. Left out: the pool's annotation
	// homing.dev/concurrency-threshold, else the install's default, 64 unless changed.
	// +optional
	// +kubebuilder:validation:XValidation:rule="self >= 1 && self <= 1024",message="must be between 1 and 1024"
	ConcurrencyThreshold *int32 `json:"concurrencyThreshold,omitempty"`

	// Saturation says what happens while every endpoint is at the threshold. Overflow sends to the least
	// loaded; Reject answers 429 with Retry-After.
	// +optional
	// +kubebuilder:default=Overflow
	Saturation Saturation `json:"saturation,omitempty"`

	// FallbackHeader puts the fallback endpoints in the endpoint header as well, as a comma-separated
	// list behind the pick. Only for gateways that read a list there: others answer 503 to it.
	// +optional
	FallbackHeader bool `json:"fallbackHeader,omitempty"`

	// NodeSelector keeps the pool to endpoints on nodes that match.
	// +optional
	NodeSelector *NodeSelector `json:"nodeSelector,omitempty"`
}

// PoolReference names an InferencePool in the same namespace.
type PoolReference struct {
	// Group of the pool's API.
	// +optional
	// +kubebuilder:default="inference.networking.k8s.io"
	// +kubebuilder:validation:Enum="inference.networking.k8s.io"
	Group string `json:"group,omitempty"`

	// Kind of the target.
	// +optional
	// +kubebuilder:default=InferencePool
	// +kubebuilder:validation:Enum=InferencePool
	Kind string `json:"kind,omitempty"`

	// Name of the pool.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
}

// Strategy is how an endpoint is chosen.
// +kubebuilder:validation:Enum=Random;LeastOutstandingRequests;PrefixAware;AdaptivePrefix
type Strategy string

// Saturation is what happens while every endpoint is at the threshold.
// +kubebuilder:validation:Enum=Overflow;Reject
type Saturation string

// The values of Saturation.
const (
	SaturationOverflow Saturation = "Overflow"
	SaturationReject   Saturation = "Reject"
)

// NodeSelector matches nodes by their labels.
type NodeSelector struct {
	// MatchExpressions must all hold.
	// +required
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	MatchExpressions []NodeSelectorRequirement `json:"matchExpressions"`
}

// NodeSelectorRequirement is one demand on a node's labels.
//
// +kubebuilder:validation:XValidation:rule="(self.operator in ['In', 'NotIn']) == (has(self.values) && size(self.values) > 0)",message="values must be given with operators In and NotIn, and left out with Exists and DoesNotExist"
type NodeSelectorRequirement struct {
	// Key is the label's key.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=317
	// +kubebuilder:validation:Pattern=`^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?([A-Za-z0-9][-A-Za-z0-9_.]{0,61})?[A-Za-z0-9]$`
	Key string `json:"key"`

	// Operator relates the label to the values.
	// +required
	Operator NodeSelectorOperator `json:"operator"`

	// Values to compare the label with.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	Values []LabelValue `json:"values,omitempty"`
}

// NodeSelectorOperator relates a node's label to a requirement's values.
// +kubebuilder:validation:Enum=In;NotIn;Exists;DoesNotExist
type NodeSelectorOperator string

// LabelValue is the value of a label.
// +kubebuilder:validation:MaxLength=63
// +kubebuilder:validation:Pattern=`^(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?$`
type LabelValue string

// PrefixRoutingPolicyStatus is what Homing made of a policy.
type PrefixRoutingPolicyStatus struct {
	// Ancestors holds one entry for the pool, by Gateway API's policy attachment (GEP-713). Its conditions
	// are Accepted (reasons Accepted, Conflicted, PortConflict, NoPort, EmptySelector, TargetNotFound,
	// Invalid) and ResolvedRefs (reasons ResolvedRefs, TargetNotFound, NodesNotReadable).
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	Ancestors []gatewayv1.PolicyAncestorStatus `json:"ancestors,omitempty"`

	// Effective is what applies to the pool, with what annotations and defaults filled in. It is absent
	// while the policy is not accepted.
	// +optional
	Effective *EffectivePolicy `json:"effective,omitempty"`

	// Endpoints counts the pool's endpoints: pods times target ports.
	// +optional
	Endpoints *EndpointCounts `json:"endpoints,omitempty"`
}

// EffectivePolicy is what applies to a pool.
type EffectivePolicy struct {
	// Strategy in force.
	Strategy Strategy `json:"strategy"`
	// PrefixLength in force, in characters.
	PrefixLength int32 `json:"prefixLength"`
	// ConcurrencyThreshold in force, in requests.
	ConcurrencyThreshold int32 `json:"concurrencyThreshold"`
}

// EndpointCounts counts a pool's endpoints.
type EndpointCounts struct {
	// Selected by the pool's selector and the policy's node selector.
	Selected int32 `json:"selected"`
	// Ready to serve, of those selected.
	Ready int32 `json:"ready"`
}
