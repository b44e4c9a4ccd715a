// Package schema checks one document of a standalone configuration the way an API server checks an object:
// unknown fields, defaults, the structural schema and CEL rules, by the API server's own libraries and the
// schemas that controller-gen makes from the Go types. There is no second set of rules.
//
// +groupName=homing.dev
// +versionName=v1alpha1
package schema
