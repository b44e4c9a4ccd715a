package policy

import (
	"fmt"
	"strconv"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/homing-dev/homing/api/v1alpha1"
	"github.com/homing-dev/homing/pkg/endpoint"
)

// source says where a setting came from, as people read it.
type source string

const (
	fromPolicy     source = "policy"
	fromAnnotation source = "annotation"
	fromDefault    source = "default"
)

// settings is a pool's policy, and where each part of it that has several possible sources came from.
type settings struct {
	policy                            endpoint.Policy
	strategy, prefixLength, threshold source
}

func fromDefaults(p endpoint.Policy) settings {
	return settings{p, fromDefault, fromDefault, fromDefault}
}

// settled is the policy with what depends on its other parts: AdaptivePrefix finds out by itself how much of
// a prompt counts, so unless the pool or its policy says how much, it gets to see as much as can be.
func (s settings) settled() endpoint.Policy {
	if s.policy.Strategy == endpoint.AdaptivePrefix && s.prefixLength == fromDefault {
		s.policy.PrefixLength = endpoint.MaxPrefixLength
	}
	return s.policy
}

func (s settings) String() string {
	s.policy = s.settled()
	return fmt.Sprintf("strategy %s (%s), prefixLength %d (%s), concurrencyThreshold %d (%s)",
		s.policy.Strategy, s.strategy, s.policy.PrefixLength, s.prefixLength, s.policy.ConcurrencyThreshold, s.threshold)
}

// annotate puts a pool's annotations over its settings. What an annotation may not be is left out and
// reported.
func annotate(s settings, annotations map[string]string) (settings, []Problem) {
	var problems []Problem
	report := func(key string, err error) {
		problems = append(problems, Problem{
			Reason:  ReasonInvalidAnnotation,
			Message: fmt.Sprintf("annotation %s: %v", key, err),
			Field:   "metadata.annotations." + key,
		})
	}
	if text, ok := annotations[v1alpha1.AnnotationStrategy]; ok {
		if strategy, err := endpoint.ParseStrategy(text); err != nil {
			report(v1alpha1.AnnotationStrategy, err)
		} else {
			s.policy.Strategy, s.strategy = strategy, fromAnnotation
		}
	}
	number := func(key string, min, max int, to *int, from *source) {
		text, ok := annotations[key]
		if !ok {
			return
		}
		n, err := strconv.Atoi(text)
		if err != nil || n < min || n > max {
			report(key, fmt.Errorf("%q: must be between %d and %d", text, min, max))
			return
		}
		*to, *from = n, fromAnnotation
	}
	number(v1alpha1.AnnotationPrefixLength, endpoint.MinPrefixLength, endpoint.MaxPrefixLength,
		&s.policy.PrefixLength, &s.prefixLength)
	number(v1alpha1.AnnotationConcurrencyThreshold, endpoint.MinConcurrencyThreshold, endpoint.MaxConcurrencyThreshold,
		&s.policy.ConcurrencyThreshold, &s.threshold)
	return s, problems
}

// apply puts a policy's fields over a pool's settings. The schema has checked them; they are checked
// again because a cluster may hold a newer schema than this binary knows, and a wrong number must not
// reach the picker.
func apply(s settings, spec *v1alpha1.PrefixRoutingPolicySpec) (settings, labels.Selector, *Problem) {
	invalid := func(field, message string) *Problem {
		return &Problem{string(gatewayv1.PolicyReasonInvalid), field + ": " + message, field}
	}
	if spec.Strategy != "" {
		strategy, err := endpoint.ParseStrategy(string(spec.Strategy))
		if err != nil {
			return s, nil, invalid("spec.strategy", err.Error())
		}
		s.policy.Strategy, s.strategy = strategy, fromPolicy
	}
	if n := spec.PrefixLength; n != nil {
		if *n < endpoint.MinPrefixLength || *n > endpoint.MaxPrefixLength {
			return s, nil, invalid("spec.prefixLength", fmt.Sprintf("%d: must be between %d and %d", *n, endpoint.MinPrefixLength, endpoint.MaxPrefixLength))
		}
		s.policy.PrefixLength, s.prefixLength = int(*n), fromPolicy
	}
	if n := spec.ConcurrencyThreshold; n != nil {
		if *n < endpoint.MinConcurrencyThreshold || *n > endpoint.MaxConcurrencyThreshold {
			return s, nil, invalid("spec.concurrencyThreshold", fmt.Sprintf("%d: must be between %d and %d", *n, endpoint.MinConcurrencyThreshold, endpoint.MaxConcurrencyThreshold))
		}
		s.policy.ConcurrencyThreshold, s.threshold = int(*n), fromPolicy
	}
	switch spec.Saturation {
	case v1alpha1.SaturationReject:
		s.policy.Reject = true
	case v1alpha1.SaturationOverflow, "":
		s.policy.Reject = false
	default:
		return s, nil, invalid("spec.saturation", fmt.Sprintf("unknown value %q", spec.Saturation))
	}
	s.policy.FallbackHeader = spec.FallbackHeader
	nodes, err := nodeSelector(spec.NodeSelector)
	if err != nil {
		return s, nil, invalid("spec.nodeSelector", err.Error())
	}
	return s, nodes, nil
}

// operators are Kubernetes's selector operators by the names that objects have for them.
var operators = map[v1alpha1.NodeSelectorOperator]selection.Operator{
	"In": selection.In, "NotIn": selection.NotIn, "Exists": selection.Exists, "DoesNotExist": selection.DoesNotExist,
}

func nodeSelector(s *v1alpha1.NodeSelector) (labels.Selector, error) {
	selector := labels.Everything()
	if s == nil {
		return selector, nil
	}
	for _, e := range s.MatchExpressions {
		values := make([]string, len(e.Values))
		for i, v := range e.Values {
			values[i] = string(v)
		}
		r, err := labels.NewRequirement(e.Key, operators[e.Operator], values)
		if err != nil {
			return nil, err
		}
		selector = selector.Add(*r)
	}
	return selector, nil
}
