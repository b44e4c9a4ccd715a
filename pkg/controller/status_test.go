package controller

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	inferencev1 "sigs.k8s.io/gateway-api-inference-extension/api/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/homing-dev/homing/api/v1alpha1"
)

// viewOf is what a world of these objects has to tell.
func viewOf(t *testing.T, policy *v1alpha1.PrefixRoutingPolicy, objects ...any) view {
	t.Helper()
	w := testWorld()
	update(t, &w.policies, policy)
	for _, o := range objects {
		switch o := o.(type) {
		case *inferencev1.InferencePool:
			update(t, &w.pools, o)
		default:
			update(t, &w.pods, o)
		}
	}
	_, v, _ := w.build(nodesWithheld)
	return v
}

func statusOf(t *testing.T, v view, withheld error, now time.Time) v1alpha1.PrefixRoutingPolicyStatus {
	t.Helper()
	if len(v.policies) != 1 {
		t.Fatalf("%d policies, want 1", len(v.policies))
	}
	return desired(v.policies[0], withheld, now)
}

func TestTransitionTimes(t *testing.T) {
	p := testPolicy("p", "llama")
	first := statusOf(t, viewOf(t, p), nil, epoch)
	p.Status, p.Generation = first, 2
	second := statusOf(t, viewOf(t, p), nil, epoch.Add(time.Hour))
	p.Status = second
	third := statusOf(t, viewOf(t, p, testPool("llama", 9002)), nil, epoch.Add(2*time.Hour))
	for i, want := range []time.Time{epoch, epoch, epoch.Add(2 * time.Hour)} {
		c := []v1alpha1.PrefixRoutingPolicyStatus{first, second, third}[i].Ancestors[0].Conditions[1]
		if !c.LastTransitionTime.Time.Equal(want) || c.ObservedGeneration != []int64{1, 2, 2}[i] {
			t.Errorf("status %d: %s since %s at generation %d, want since %s", i, c.Status, c.LastTransitionTime, c.ObservedGeneration, want)
		}
	}
	if first.Effective != nil || first.Endpoints != nil {
		t.Error("a policy that is not in force has effective settings or endpoints")
	}
}

// A policy that is pointed at another pool starts anew there, and other controllers' entries stay.
func TestAncestors(t *testing.T) {
	p := testPolicy("p", "llama")
	p.Status = statusOf(t, viewOf(t, p), nil, epoch)
	foreign := gatewayv1.PolicyAncestorStatus{ControllerName: "example.com/other"}
	p.Status.Ancestors = append(p.Status.Ancestors, foreign)
	p.Spec.TargetRef.Name = "mistral"
	got := statusOf(t, viewOf(t, p), nil, epoch.Add(time.Hour))
	var entries []string
	for _, a := range got.Ancestors {
		entries = append(entries, fmt.Sprintf("%s %s %d", a.ControllerName, a.AncestorRef.Name, len(a.Conditions)))
	}
	if diff := cmp.Diff([]string{"example.com/other  0", "homing.dev/homing mistral 2"}, entries); diff != "" {
		t.Errorf("entries (-want +got):\n%s", diff)
	}
	if since := got.Ancestors[1].Conditions[0].LastTransitionTime; !since.Time.Equal(epoch.Add(time.Hour)) {
		t.Errorf("a condition towards the new pool is since %s", since)
	}
	if diff := cmp.Diff(v1alpha1.PrefixRoutingPolicyStatus{Ancestors: []gatewayv1.PolicyAncestorStatus{foreign}}, cleared(&got)); diff != "" {
		t.Errorf("cleared (-want +got):\n%s", diff)
	}
}

func TestNews(t *testing.T) {
	withheld := errors.New("nodes is forbidden")
	pool, up, down := testPool("llama", 9002), testPod("a"), testPod("a", unready)
	plain, picky := testPolicy("p", "llama"), testPolicy("p", "llama", onP5)
	none := v1alpha1.PrefixRoutingPolicyStatus{}
	missing := statusOf(t, viewOf(t, plain), nil, epoch)
	serving := statusOf(t, viewOf(t, plain, pool, up), nil, epoch)
	empty := statusOf(t, viewOf(t, plain, pool, down), nil, epoch)
	grown := statusOf(t, viewOf(t, plain, pool, up, testPod("b")), nil, epoch)
	later := statusOf(t, viewOf(t, testPolicy("p", "llama", func(p *v1alpha1.PrefixRoutingPolicy) { p.Generation = 2 }), pool, up), nil, epoch)
	deaf := statusOf(t, viewOf(t, picky, pool, up), withheld, epoch)
	for _, tt := range []struct {
		name     string
		old, now v1alpha1.PrefixRoutingPolicyStatus
		want     []string
	}{
		{"no pool: one reason, told once", none, missing, []string{"Warning TargetNotFound"}},
		{"serving", none, serving, []string{"Normal Accepted"}},
		{"the pool came", missing, serving, []string{"Normal Accepted"}},
		{"serving nobody", none, empty, []string{"Normal Accepted", "Warning NoEndpoints"}},
		{"the last endpoint went", serving, empty, []string{"Warning NoEndpoints"}},
		{"the first endpoint came", empty, serving, []string{"Normal EndpointsReady"}},
		{"one more endpoint", serving, grown, nil},
		{"nothing but the generation", serving, later, nil},
		{"nodes withheld", serving, deaf, []string{"Warning NodesNotReadable"}},
		{"nodes withheld from the start", none, deaf, []string{"Normal Accepted", "Warning NodesNotReadable"}},
		{"nodes granted", deaf, serving, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var got []string
			for _, e := range news(&tt.old, &tt.now) {
				got = append(got, e.kind+" "+e.reason)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("events (-want +got):\n%s", diff)
			}
		})
	}
}

// fakeAPI takes patches of a policy's status.
type fakeAPI struct {
	client.Client
	err     error
	written []string // "ready endpoints of name over resourceVersion"
}

func (f *fakeAPI) Status() client.SubResourceWriter { return &fakeStatus{fakeAPI: f} }

type fakeStatus struct {
	client.SubResourceWriter
	*fakeAPI
}

func (f *fakeStatus) Patch(_ context.Context, obj client.Object, _ client.Patch, _ ...client.SubResourcePatchOption) error {
	p := obj.(*v1alpha1.PrefixRoutingPolicy)
	ready := "no"
	if e := p.Status.Endpoints; e != nil {
		ready = fmt.Sprint(e.Ready)
	}
	f.written = append(f.written, fmt.Sprintf("%s of %s over %s", ready, p.Name, p.ResourceVersion))
	if f.err == nil {
		p.ResourceVersion += "+"
	}
	return f.err
}

// fakeRecorder keeps reasons.
type fakeRecorder struct{ reasons []string }

func (f *fakeRecorder) Eventf(_, _ runtime.Object, _, reason, _, _ string, _ ...any) {
	f.reasons = append(f.reasons, reason)
}

func testWriter(api *fakeAPI, now *time.Time) (*statusWriter, *fakeRecorder) {
	r := &fakeRecorder{}
	return &statusWriter{
		client: api, recorder: r, metrics: newMetrics(prometheus.NewRegistry()), log: logr.Discard(), now: func() time.Time { return *now },
		changed: make(chan struct{}, 1), written: map[types.UID]write{}, told: map[types.UID]string{},
	}, r
}

func TestWrites(t *testing.T) {
	now := epoch
	api := &fakeAPI{}
	w, recorder := testWriter(api, &now)
	p := testPolicy("p", "llama", func(p *v1alpha1.PrefixRoutingPolicy) { p.ResourceVersion = "1" })
	pool := testPool("llama", 9002)
	write := func(wantAgain time.Duration, want []string, v view) {
		t.Helper()
		api.written = nil
		if again := w.write(t.Context(), &v); again != wantAgain {
			t.Errorf("again in %s, want %s", again, wantAgain)
		}
		if diff := cmp.Diff(want, api.written); diff != "" {
			t.Errorf("writes (-want +got):\n%s", diff)
		}
	}
	write(0, []string{"1 of p over 1"}, viewOf(t, p, pool, testPod("a")))
	write(0, nil, viewOf(t, p, pool, testPod("a"))) // the watch has not brought it yet

	// Counts alone wait; the rest does not.
	now = now.Add(time.Second)
	write(4*time.Second, nil, viewOf(t, p, pool, testPod("a"), testPod("b")))
	now = now.Add(4 * time.Second)
	write(0, []string{"2 of p over 1+"}, viewOf(t, p, pool, testPod("a"), testPod("b")))
	now = now.Add(time.Second)
	p = testPolicy("p", "llama", func(p *v1alpha1.PrefixRoutingPolicy) {
		p.ResourceVersion, p.Spec.Strategy = "7", "Random"
		p.Status = w.written["uid-p"].result.Status
	})
	write(0, []string{"2 of p over 7"}, viewOf(t, p, pool, testPod("a"), testPod("b")))

	// A refusal is tried again, a conflict is left to the watch.
	p = testPolicy("p", "gone", func(p *v1alpha1.PrefixRoutingPolicy) { p.ResourceVersion = "8" })
	api.err = apierrors.NewForbidden(schema.GroupResource{}, "p", errors.New("no"))
	write(writeRetry, []string{"no of p over 8"}, viewOf(t, p, pool))
	if diff := cmp.Diff([]string{"Accepted", "Accepted"}, recorder.reasons); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
	now = now.Add(writeRetry / 4) // whatever else changes meanwhile
	write(writeRetry*3/4, nil, viewOf(t, p, pool))
	api.err = nil
	now = now.Add(writeRetry)

	// A policy whose pool is another picker's now is cleared, once, and only if it was ours: even if it was so
	// before this replica came to lead, and needed no write.
	delete(w.written, "uid-p")
	p = testPolicy("p", "llama", func(p *v1alpha1.PrefixRoutingPolicy) { p.ResourceVersion = "9" })
	p.Status = desired(viewOf(t, p, pool).policies[0], nil, now)
	write(0, nil, viewOf(t, p, pool))
	foreign := testPool("llama", 9002, func(p *inferencev1.InferencePool) { p.Spec.EndpointPickerRef.Name = "another" })
	api.err = apierrors.NewForbidden(schema.GroupResource{}, "p", errors.New("no"))
	write(writeRetry, []string{"no of p over 9"}, viewOf(t, p, foreign))
	write(writeRetry, nil, viewOf(t, p, foreign))
	api.err = nil
	now = now.Add(writeRetry)
	write(0, []string{"no of p over 9"}, viewOf(t, p, foreign))
	write(0, nil, viewOf(t, p, foreign))
	write(0, nil, view{})
	if len(w.written) != 0 || len(w.told) != 0 {
		t.Errorf("%d policies and %d pools are remembered that are gone", len(w.written), len(w.told))
	}
}

func TestPoolsAreToldOnce(t *testing.T) {
	now := epoch
	w, recorder := testWriter(&fakeAPI{}, &now)
	bad := func(value string) view {
		pool := testPool("llama", 9002, func(p *inferencev1.InferencePool) {
			metav1.SetMetaDataAnnotation(&p.ObjectMeta, v1alpha1.AnnotationPrefixLength, value)
		})
		tw := testWorld()
		update(t, &tw.pools, pool)
		_, v, _ := tw.build(nodesPending)
		return v
	}
	for _, value := range []string{"x", "x", "2048", "x", "y"} {
		v := bad(value)
		w.write(t.Context(), &v)
	}
	if diff := cmp.Diff([]string{"InvalidAnnotation", "InvalidAnnotation", "InvalidAnnotation"}, recorder.reasons); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
}
