package schema

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// StaticEndpoints lists the endpoints of the InferencePool of the same name. It is a file format, not a
// resource: no API server knows it.
//
// +kubebuilder:resource:path=staticendpoints
// +kubebuilder:metadata:annotations="homing.dev/file-format=not to be installed in a cluster"
type StaticEndpoints struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Endpoints of the pool.
	// +required
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=4096
	Endpoints []StaticEndpoint `json:"endpoints"`
}

// StaticEndpoint is one port of one model server.
type StaticEndpoint struct {
	// Name of the model server: letters, digits, '-', '_' and '.'. The ports of one server share its name.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$`
	Name string `json:"name"`

	// Address is an IPv4 or IPv6 literal, without brackets.
	// +required
	Address string `json:"address"`

	// Port of the model server.
	// +required
	// +kubebuilder:validation:XValidation:rule="self >= 1 && self <= 65535",message="must be between 1 and 65535"
	Port int32 `json:"port"`

	// Ready, when false, keeps the endpoint out.
	// +optional
	// +kubebuilder:default=true
	Ready bool `json:"ready"`

	// NodeLabels are what a policy's nodeSelector is matched with.
	// +optional
	NodeLabels map[string]string `json:"nodeLabels,omitempty"`
}
