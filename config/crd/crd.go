// Package crd carries Homing's CustomResourceDefinitions as they are generated from api/v1alpha1, so that
// whoever checks a policy outside of an API server does it by the same schema and rules.
package crd

import _ "embed"

// PrefixRoutingPolicy is the policy's CustomResourceDefinition, in YAML.
//
//go:embed homing.dev_prefixroutingpolicies.yaml
var PrefixRoutingPolicy []byte
