// Package v1alpha1 is Homing's API: PrefixRoutingPolicy, which says how one InferencePool is routed.
//
// The CRD is generated from these types' markers, an API server enforces it, and standalone mode reads the
// same file: what one refuses, the other refuses in the same words. The ranges are repeated in pkg/endpoint, and
// a test holds the two together.
//
// +kubebuilder:object:generate=true
// +groupName=homing.dev
package v1alpha1
