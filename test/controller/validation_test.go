package controller

import (
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// Every rule of the CRD, by the words in which the API server refuses.
func (r *rig) testValidation(t *testing.T) {
	const ns = "default"
	selector := func(requirement string) string {
		return "  nodeSelector: {matchExpressions: [" + requirement + "]}"
	}
	for name, tt := range map[string]struct{ spec, want string }{
		"prefixLength too small":         {"  prefixLength: 1023", "spec.prefixLength: Invalid value: 1023: must be between 1024 and 65536"},
		"prefixLength too large":         {"  prefixLength: 65537", "spec.prefixLength: Invalid value: 65537: must be between 1024 and 65536"},
		"prefixLength smallest":          {"  prefixLength: 1024", ""},
		"prefixLength largest":           {"  prefixLength: 65536", ""},
		"threshold too small":            {"  concurrencyThreshold: 0", "spec.concurrencyThreshold: Invalid value: 0: must be between 1 and 1024"},
		"threshold too large":            {"  concurrencyThreshold: 1025", "spec.concurrencyThreshold: Invalid value: 1025: must be between 1 and 1024"},
		"threshold smallest":             {"  concurrencyThreshold: 1", ""},
		"threshold largest":              {"  concurrencyThreshold: 1024", ""},
		"unknown strategy":               {"  strategy: RoundRobin", `spec.strategy: Unsupported value: "RoundRobin": supported values: "Random", "LeastOutstandingRequests", "PrefixAware"`},
		"unknown saturation":             {"  saturation: Queue", `spec.saturation: Unsupported value: "Queue": supported values: "Overflow", "Reject"`},
		"another group":                  {"  targetRef: {group: apps, name: llama}", `spec.targetRef.group: Unsupported value: "apps"`},
		"another kind":                   {"  targetRef: {kind: Service, name: llama}", `spec.targetRef.kind: Unsupported value: "Service"`},
		"no name":                        {"  targetRef: {kind: InferencePool}", "spec.targetRef.name: Required value"},
		"empty name":                     {"  targetRef: {name: ''}", "spec.targetRef.name: Invalid value"},
		"no expressions":                 {"  nodeSelector: {matchExpressions: []}", "spec.nodeSelector.matchExpressions: Invalid value: 0: spec.nodeSelector.matchExpressions in body should have at least 1 items"},
		"selector":                       {selector("{key: node.kubernetes.io/instance-type, operator: In, values: [p5.48xlarge]}"), ""},
		"selector Exists":                {selector("{key: gpu, operator: Exists}"), ""},
		"selector In without values":     {selector("{key: gpu, operator: In}"), "values must be given with operators In and NotIn, and left out with Exists and DoesNotExist"},
		"selector Exists with values":    {selector("{key: gpu, operator: Exists, values: [a]}"), "values must be given with operators In and NotIn, and left out with Exists and DoesNotExist"},
		"selector with another operator": {selector("{key: gpu, operator: Gt, values: ['1']}"), `operator: Unsupported value: "Gt"`},
		"selector with a bad key":        {selector("{key: 'a b', operator: Exists}"), `key: Invalid value: "a b"`},
		"selector with a bad value":      {selector("{key: gpu, operator: In, values: ['a b']}"), `values[0]: Invalid value: "a b"`},
	} {
		t.Run(name, func(t *testing.T) {
			manifest := policy(ns, "validation", "llama", tt.spec)
			if strings.Contains(tt.spec, "targetRef") {
				manifest = strings.Replace(manifest, "  targetRef: {name: llama}\n", "", 1)
			}
			err := r.Apply(t.Context(), []byte(manifest))
			switch {
			case tt.want == "" && err != nil:
				t.Errorf("refused: %v", err)
			case tt.want != "" && (!apierrors.IsInvalid(err) || !strings.Contains(err.Error(), tt.want)):
				t.Errorf("got %v\nwant Invalid, with %s", err, tt.want)
			}
		})
	}
	t.Run("defaults", func(t *testing.T) {
		r.apply(t, policy(ns, "defaults", "llama", ""))
		got := r.get(t, ns, "defaults").Spec
		if got.Saturation != "Overflow" || got.TargetRef.Kind != "InferencePool" || got.TargetRef.Group != "inference.networking.k8s.io" ||
			got.Strategy != "" || got.PrefixLength != nil || got.ConcurrencyThreshold != nil {
			t.Errorf("defaults: %+v", got)
		}
	})
	t.Run("empty selector of a pool", func(t *testing.T) {
		err := r.Apply(t.Context(), []byte(strings.Replace(pool(ns, "empty", 9002, ""), "{app: empty}", "{}", 1)))
		if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "spec.selector.matchLabels") {
			t.Errorf("got %v, want Invalid", err)
		}
	})
	t.Run("unknown field", func(t *testing.T) {
		err := r.Apply(t.Context(), []byte(policy(ns, "typo", "llama", "  prefixLenght: 2048")))
		if err == nil || !strings.Contains(err.Error(), "prefixLenght") {
			t.Errorf("a misspelt field: %v, want it named", err)
		}
	})
}
