// Package v1alpha1 is Homing's API: PrefixRoutingPolicy, which says how one InferencePool is routed.
//
// The markers on these types are the only place where its rules are written. The CRD is generated from
// them, an API server enforces it, and standalone mode reads the same file: what one refuses, the other
// refuses in the same words.
//
// +kubebuilder:object:generate=true
// +groupName=homing.dev
package v1alpha1
