package policy

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	inferencev1 "sigs.k8s.io/gateway-api-inference-extension/api/v1"

	"github.com/homing-dev/homing/api/v1alpha1"
	"github.com/homing-dev/homing/pkg/endpoint"
)

// meta is the metadata of an object that was created age minutes after the first.
func meta(name string, age int) metav1.ObjectMeta {
	created := time.Date(2026, 1, 1, 0, age, 0, 0, time.UTC)
	return metav1.ObjectMeta{Namespace: "ns", Name: name, CreationTimestamp: metav1.NewTime(created), Generation: 7}
}

func pool(name string, age int, port int32, annotations ...string) inferencev1.InferencePool {
	p := inferencev1.InferencePool{ObjectMeta: meta(name, age)}
	p.Spec.Selector.MatchLabels = map[inferencev1.LabelKey]inferencev1.LabelValue{"app": "vllm"}
	p.Spec.EndpointPickerRef = &inferencev1.EndpointPickerRef{Name: "homing", Port: &inferencev1.Port{Number: inferencev1.PortNumber(port)}}
	for i := 0; i+1 < len(annotations); i += 2 {
		metav1.SetMetaDataAnnotation(&p.ObjectMeta, annotations[i], annotations[i+1])
	}
	return p
}

func prp(name string, age int, target string, change ...func(*v1alpha1.PrefixRoutingPolicySpec)) v1alpha1.PrefixRoutingPolicy {
	p := v1alpha1.PrefixRoutingPolicy{ObjectMeta: meta(name, age)}
	p.Spec.TargetRef.Name = target
	for _, f := range change {
		f(&p.Spec)
	}
	return p
}

func prefixLength(n int32) func(*v1alpha1.PrefixRoutingPolicySpec) {
	return func(s *v1alpha1.PrefixRoutingPolicySpec) { s.PrefixLength = &n }
}

func strategy(s v1alpha1.Strategy) func(*v1alpha1.PrefixRoutingPolicySpec) {
	return func(spec *v1alpha1.PrefixRoutingPolicySpec) { spec.Strategy = s }
}

func threshold(n int32) func(*v1alpha1.PrefixRoutingPolicySpec) {
	return func(s *v1alpha1.PrefixRoutingPolicySpec) { s.ConcurrencyThreshold = &n }
}

func name(n string) endpoint.PoolName { return endpoint.PoolName{Namespace: "ns", Name: n} }

// served is what a pool gets without a word from anyone, changed.
func served(n string, port uint16, change func(*Pool)) Pool {
	p := Pool{Name: name(n), Port: port, Policy: endpoint.DefaultPolicy(), Nodes: labels.Everything()}
	if change != nil {
		change(&p)
	}
	return p
}

func TestPrecedence(t *testing.T) {
	annotations := []string{
		v1alpha1.AnnotationStrategy, "Random",
		v1alpha1.AnnotationPrefixLength, "2048",
		v1alpha1.AnnotationConcurrencyThreshold, "8",
	}
	everything := prp("p", 1, "a", prefixLength(65536), threshold(1024), func(s *v1alpha1.PrefixRoutingPolicySpec) {
		s.Strategy = "LeastOutstandingRequests"
		s.Saturation = v1alpha1.SaturationReject
		s.FallbackHeader = true
	})
	for _, tt := range []struct {
		name    string
		pool    inferencev1.InferencePool
		policy  *v1alpha1.PrefixRoutingPolicy
		want    endpoint.Policy
		message string // of the policy's Accepted condition
	}{
		{
			name: "nobody says anything",
			pool: pool("a", 0, 9002),
			want: endpoint.Policy{Strategy: endpoint.PrefixAware, PrefixLength: 3000, ConcurrencyThreshold: 30},
		},
		{
			name: "annotations beat the install's defaults",
			pool: pool("a", 0, 9002, annotations...),
			want: endpoint.Policy{Strategy: endpoint.Random, PrefixLength: 2048, ConcurrencyThreshold: 8},
		},
		{
			name:    "a policy beats annotations",
			pool:    pool("a", 0, 9002, annotations...),
			policy:  &everything,
			want:    endpoint.Policy{Strategy: endpoint.LeastOutstandingRequests, PrefixLength: 65536, ConcurrencyThreshold: 1024, Reject: true, FallbackHeader: true},
			message: "strategy LeastOutstandingRequests (policy), prefixLength 65536 (policy), concurrencyThreshold 1024 (policy)",
		},
		{
			name:    "field by field",
			pool:    pool("a", 0, 9002, v1alpha1.AnnotationConcurrencyThreshold, "8"),
			policy:  new(prp("p", 1, "a", prefixLength(1024))),
			want:    endpoint.Policy{Strategy: endpoint.PrefixAware, PrefixLength: 1024, ConcurrencyThreshold: 8},
			message: "strategy PrefixAware (default), prefixLength 1024 (policy), concurrencyThreshold 8 (annotation)",
		},
		{
			name: "AdaptivePrefix looks at all there is",
			pool: pool("a", 0, 9002, v1alpha1.AnnotationStrategy, "AdaptivePrefix"),
			want: endpoint.Policy{Strategy: endpoint.AdaptivePrefix, PrefixLength: 65536, ConcurrencyThreshold: 30},
		},
		{
			name:    "unless it is told how much",
			pool:    pool("a", 0, 9002, v1alpha1.AnnotationPrefixLength, "2048"),
			policy:  new(prp("p", 1, "a", strategy("AdaptivePrefix"))),
			want:    endpoint.Policy{Strategy: endpoint.AdaptivePrefix, PrefixLength: 2048, ConcurrencyThreshold: 30},
			message: "strategy AdaptivePrefix (policy), prefixLength 2048 (annotation), concurrencyThreshold 30 (default)",
		},
		{
			name:    "a policy with another strategy gets what that strategy does",
			pool:    pool("a", 0, 9002, v1alpha1.AnnotationStrategy, "AdaptivePrefix"),
			policy:  new(prp("p", 1, "a", strategy("PrefixAware"))),
			want:    endpoint.Policy{Strategy: endpoint.PrefixAware, PrefixLength: 3000, ConcurrencyThreshold: 30},
			message: "strategy PrefixAware (policy), prefixLength 3000 (default), concurrencyThreshold 30 (default)",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			in := Input{
				Pools:    []inferencev1.InferencePool{tt.pool},
				Defaults: endpoint.Policy{Strategy: endpoint.PrefixAware, PrefixLength: 3000, ConcurrencyThreshold: 30},
			}
			want := Result{Pools: []Pool{served("a", 9002, func(p *Pool) { p.Policy = tt.want })}}
			if tt.policy != nil {
				in.Policies = []v1alpha1.PrefixRoutingPolicy{*tt.policy}
				want.Pools[0].From = "p"
				want.Statuses = []Status{{
					Namespace: "ns", Name: "p", Target: name("a"),
					Conditions: []metav1.Condition{
						{Type: "ResolvedRefs", Status: "True", Reason: "ResolvedRefs", Message: "This install serves the pool", ObservedGeneration: 7},
						{Type: "Accepted", Status: "True", Reason: "Accepted", Message: tt.message, ObservedGeneration: 7},
					},
					Effective: &v1alpha1.EffectivePolicy{
						Strategy: v1alpha1.Strategy(tt.want.Strategy.String()), PrefixLength: int32(tt.want.PrefixLength), ConcurrencyThreshold: int32(tt.want.ConcurrencyThreshold),
					},
				}}
			}
			if diff := cmp.Diff(want, Resolve(in)); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

// summary is what a conflict leaves behind: who is served where and by whose word, and who is refused.
type summary struct {
	Ports   map[string]uint16
	From    map[string]string
	Refused map[string]string // policy to reason and message
	Pools   map[string]string // pool to reason and message
}

func summarize(r Result) summary {
	s := summary{Ports: map[string]uint16{}, From: map[string]string{}, Refused: map[string]string{}, Pools: map[string]string{}}
	for _, p := range r.Pools {
		s.Ports[p.Name.Name] = p.Port
		if p.From != "" {
			s.From[p.Name.Name] = p.From
		}
		for _, problem := range p.Problems {
			s.Pools[p.Name.Name] += problem.Reason + ": " + problem.Message + "; "
		}
	}
	for _, st := range r.Statuses {
		if st.Refused != nil {
			s.Refused[st.Name] = st.Refused.Reason + ": " + st.Refused.Message
		}
	}
	return s
}

func TestConflicts(t *testing.T) {
	noRef, noPort := pool("a", 0, 1), pool("b", 0, 1)
	noRef.Spec.EndpointPickerRef = nil
	noPort.Spec.EndpointPickerRef.Port = nil
	foreign := pool("b", 0, 9002)
	foreign.Spec.EndpointPickerRef.Name = "another-picker"
	all := pool("a", 0, 9002)
	all.Spec.Selector.MatchLabels = nil
	for _, tt := range []struct {
		name string
		in   Input
		want summary
	}{
		{
			name: "the older pool keeps the port",
			in: Input{
				Pools:    []inferencev1.InferencePool{pool("a", 5, 9002), pool("b", 1, 9002)},
				Policies: []v1alpha1.PrefixRoutingPolicy{prp("for-a", 0, "a"), prp("for-b", 0, "b")},
			},
			want: summary{
				Ports:   map[string]uint16{"a": 0, "b": 9002},
				From:    map[string]string{"a": "for-a", "b": "for-b"},
				Refused: map[string]string{"for-a": "PortConflict: port 9002 is already that of pool ns/b"},
				Pools:   map[string]string{"a": "PortConflict: port 9002 is already that of pool ns/b; "},
			},
		},
		{
			name: "of the same age, the first by name",
			in:   Input{Pools: []inferencev1.InferencePool{pool("b", 1, 9002), pool("a", 1, 9002)}},
			want: summary{
				Ports: map[string]uint16{"a": 9002, "b": 0},
				Pools: map[string]string{"b": "PortConflict: port 9002 is already that of pool ns/a; "},
			},
		},
		{
			name: "Homing's own ports",
			in:   Input{Pools: []inferencev1.InferencePool{pool("a", 0, 9003)}, RefusePort: refuseHealth},
			want: summary{
				Ports: map[string]uint16{"a": 0},
				Pools: map[string]string{"a": "PortConflict: port 9003 is Homing's own, for health; "},
			},
		},
		{
			name: "a selector that would match everything claims no port",
			in:   Input{Pools: []inferencev1.InferencePool{all, pool("b", 1, 9002)}},
			want: summary{
				Ports: map[string]uint16{"a": 0, "b": 9002},
				Pools: map[string]string{"a": "EmptySelector: the selector is empty and would match every pod of the namespace; give it labels; "},
			},
		},
		{
			name: "no port at all",
			in:   Input{Pools: []inferencev1.InferencePool{noRef, noPort}},
			want: summary{
				Ports: map[string]uint16{"a": 0, "b": 0},
				Pools: map[string]string{
					"a": "NoPort: the pool names no endpoint picker, so no port to serve it on; ",
					"b": "NoPort: the pool names no port of its endpoint picker; ",
				},
			},
		},
		{
			name: "the older policy wins, whatever the order",
			in: Input{
				Pools:    []inferencev1.InferencePool{pool("a", 0, 9002)},
				Policies: []v1alpha1.PrefixRoutingPolicy{prp("new", 2, "a"), prp("old", 1, "a"), prp("z-old", 1, "a")},
			},
			want: summary{
				Ports: map[string]uint16{"a": 9002},
				From:  map[string]string{"a": "old"},
				Refused: map[string]string{
					"new":   "Conflicted: policy old already applies to pool ns/a",
					"z-old": "Conflicted: policy old already applies to pool ns/a",
				},
			},
		},
		{
			name: "what this binary does not know is not applied, and makes way",
			in: Input{
				Pools: []inferencev1.InferencePool{pool("a", 0, 9002)},
				Policies: []v1alpha1.PrefixRoutingPolicy{
					prp("future", 1, "a", func(s *v1alpha1.PrefixRoutingPolicySpec) { s.Strategy = "Clairvoyant" }),
					prp("long", 2, "a", prefixLength(65537)),
					prp("none", 3, "a", threshold(0)),
					prp("odd", 4, "a", func(s *v1alpha1.PrefixRoutingPolicySpec) { s.Saturation = "Explode" }),
					prp("nodes", 5, "a", func(s *v1alpha1.PrefixRoutingPolicySpec) {
						s.NodeSelector = &v1alpha1.NodeSelector{MatchExpressions: []v1alpha1.NodeSelectorRequirement{{Key: "k", Operator: "In"}}}
					}),
					prp("good", 6, "a"),
				},
			},
			want: summary{
				Ports: map[string]uint16{"a": 9002},
				From:  map[string]string{"a": "good"},
				Refused: map[string]string{
					"future": `Invalid: spec.strategy: unknown strategy "Clairvoyant": want one of [Random LeastOutstandingRequests PrefixAware AdaptivePrefix]`,
					"long":   "Invalid: spec.prefixLength: 65537: must be between 1024 and 65536",
					"none":   "Invalid: spec.concurrencyThreshold: 0: must be between 1 and 1024",
					"odd":    `Invalid: spec.saturation: unknown value "Explode"`,
					"nodes":  `Invalid: spec.nodeSelector: values: Invalid value: []: for 'in', 'notin' operators, values set can't be empty`,
				},
			},
		},
		{
			name: "a policy for nobody's pool is told so, one for another install's is left alone",
			in: Input{
				Service:  "homing",
				Pools:    []inferencev1.InferencePool{pool("a", 0, 9002), foreign},
				Policies: []v1alpha1.PrefixRoutingPolicy{prp("lost", 1, "c"), prp("theirs", 1, "b")},
			},
			want: summary{
				Ports:   map[string]uint16{"a": 9002},
				Refused: map[string]string{"lost": "TargetNotFound: there is no InferencePool ns/c"},
			},
		},
		{
			name: "wrong annotations are named and left out",
			in: Input{Pools: []inferencev1.InferencePool{pool("a", 0, 9002,
				v1alpha1.AnnotationStrategy, "prefixaware",
				v1alpha1.AnnotationPrefixLength, "12",
				v1alpha1.AnnotationConcurrencyThreshold, "many")}},
			want: summary{
				Ports: map[string]uint16{"a": 9002},
				Pools: map[string]string{"a": `InvalidAnnotation: annotation homing.dev/strategy: unknown strategy "prefixaware": want one of [Random LeastOutstandingRequests PrefixAware AdaptivePrefix]; ` +
					`InvalidAnnotation: annotation homing.dev/prefix-length: "12": must be between 1024 and 65536; ` +
					`InvalidAnnotation: annotation homing.dev/concurrency-threshold: "many": must be between 1 and 1024; `},
			},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tt.in.Defaults = endpoint.DefaultPolicy()
			if diff := cmp.Diff(tt.want, summarize(Resolve(tt.in)), cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

// A status holds exactly the two conditions, and Accepted agrees with Refused.
func TestConditions(t *testing.T) {
	r := Resolve(Input{
		Pools:    []inferencev1.InferencePool{pool("a", 0, 9002)},
		Policies: []v1alpha1.PrefixRoutingPolicy{prp("good", 1, "a"), prp("late", 2, "a"), prp("lost", 1, "b")},
		Defaults: endpoint.DefaultPolicy(),
	})
	got := map[string][]string{}
	for _, s := range r.Statuses {
		for _, c := range s.Conditions {
			got[s.Name] = append(got[s.Name], c.Type+"="+string(c.Status)+" "+c.Reason)
		}
	}
	want := map[string][]string{
		"good": {"ResolvedRefs=True ResolvedRefs", "Accepted=True Accepted"},
		"late": {"ResolvedRefs=True ResolvedRefs", "Accepted=False Conflicted"},
		"lost": {"ResolvedRefs=False TargetNotFound", "Accepted=False TargetNotFound"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func TestServes(t *testing.T) {
	with := func(f func(*inferencev1.EndpointPickerRef)) inferencev1.InferencePool {
		p := pool("a", 0, 9002)
		f(p.Spec.EndpointPickerRef)
		return p
	}
	without := pool("a", 0, 9002)
	without.Spec.EndpointPickerRef = nil
	for _, tt := range []struct {
		name string
		pool inferencev1.InferencePool
		want bool
	}{
		{"the Service, by default kind", pool("a", 0, 9002), true},
		{"the Service, in full", with(func(r *inferencev1.EndpointPickerRef) { r.Kind, r.Group = "Service", new(inferencev1.Group("")) }), true},
		{"another Service", with(func(r *inferencev1.EndpointPickerRef) { r.Name = "other" }), false},
		{"another kind", with(func(r *inferencev1.EndpointPickerRef) { r.Kind = "Picker" }), false},
		{"another group", with(func(r *inferencev1.EndpointPickerRef) { r.Group = new(inferencev1.Group("example.com")) }), false},
		{"no picker", without, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			in := Input{Service: "homing"}
			if got := in.serves(&tt.pool); got != tt.want {
				t.Errorf("got %v, want %v", got, tt.want)
			}
		})
	}
}

func TestNodeSelector(t *testing.T) {
	expr := func(key, operator string, values ...v1alpha1.LabelValue) v1alpha1.NodeSelectorRequirement {
		return v1alpha1.NodeSelectorRequirement{Key: key, Operator: v1alpha1.NodeSelectorOperator(operator), Values: values}
	}
	p := prp("p", 1, "a", func(s *v1alpha1.PrefixRoutingPolicySpec) {
		s.NodeSelector = &v1alpha1.NodeSelector{MatchExpressions: []v1alpha1.NodeSelectorRequirement{
			expr("type", "In", "p5.48xlarge", "p5e.48xlarge"), expr("zone", "NotIn", "z3"), expr("gpu", "Exists"), expr("spot", "DoesNotExist"),
		}}
	})
	r := Resolve(Input{Pools: []inferencev1.InferencePool{pool("a", 0, 9002)}, Policies: []v1alpha1.PrefixRoutingPolicy{p}, Defaults: endpoint.DefaultPolicy()})
	if r.Statuses[0].Refused != nil {
		t.Fatal(r.Statuses[0].Refused)
	}
	for _, tt := range []struct {
		labels labels.Set
		want   bool
	}{
		{labels.Set{"type": "p5e.48xlarge", "gpu": ""}, true},
		{labels.Set{"type": "p5e.48xlarge", "gpu": "", "zone": "z1"}, true},
		{labels.Set{"type": "p4d.24xlarge", "gpu": ""}, false},
		{labels.Set{"type": "p5e.48xlarge", "gpu": "", "zone": "z3"}, false},
		{labels.Set{"type": "p5e.48xlarge"}, false},
		{labels.Set{"type": "p5e.48xlarge", "gpu": "", "spot": "yes"}, false},
		{nil, false},
	} {
		if got := r.Pools[0].Nodes.Matches(tt.labels); got != tt.want {
			t.Errorf("%v: got %v, want %v", tt.labels, got, tt.want)
		}
	}
}

// The ranges are written twice: in pkg/endpoint, and in the markers of the API. The messages
// of the markers are tested where the schema is.
func TestDefaultsAreInRange(t *testing.T) {
	d := endpoint.DefaultPolicy()
	_, _, refused := apply(fromDefaults(d), &v1alpha1.PrefixRoutingPolicySpec{
		Strategy:             v1alpha1.Strategy(d.Strategy.String()),
		PrefixLength:         new(int32(d.PrefixLength)),
		ConcurrencyThreshold: new(int32(d.ConcurrencyThreshold)),
	})
	if refused != nil {
		t.Errorf("the defaults would be refused: %+v", *refused)
	}
}

func refuseHealth(port uint16) string {
	if port == 9003 {
		return "is Homing's own, for health"
	}
	return ""
}
