// Package controller tests pkg/controller against a real API server, with the rights that the chart grants
// and no others.
package controller

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	runtimelog "sigs.k8s.io/controller-runtime/pkg/log"
	inferencev1 "sigs.k8s.io/gateway-api-inference-extension/api/v1"

	"github.com/homing-dev/homing/api/v1alpha1"
	"github.com/homing-dev/homing/pkg/controller"
	"github.com/homing-dev/homing/pkg/endpoint"
	"github.com/homing-dev/homing/test/cluster"
	"github.com/homing-dev/homing/test/env"
)

// rig is a control plane, seen by its administrator.
type rig struct {
	*cluster.Cluster
	api client.Client
}

func newRig(t testing.TB) *rig {
	runtimelog.SetLogger(logr.Discard())
	c := cluster.Start(t)
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, inferencev1.Install, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	api, err := client.New(c.Config, client.Options{Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}
	return &rig{c, api}
}

func (r *rig) apply(t testing.TB, manifests string) {
	t.Helper()
	if err := r.Apply(t.Context(), []byte(manifests)); err != nil {
		t.Fatal(err)
	}
}

// namespace makes a namespace with an install's ServiceAccount and rights in it.
func (r *rig) namespace(t testing.TB, name string) {
	t.Helper()
	r.bareNamespace(t, name)
	r.grant(t, name)
}

// bareNamespace makes a namespace with a ServiceAccount that has no rights.
func (r *rig) bareNamespace(t testing.TB, name string) {
	t.Helper()
	r.apply(t, fmt.Sprintf("{apiVersion: v1, kind: Namespace, metadata: {name: %[1]s}}\n---\n{apiVersion: v1, kind: ServiceAccount, metadata: {name: homing, namespace: %[1]s}}", name))
}

// grant gives the ServiceAccount its rights, as the chart renders them.
func (r *rig) grant(t testing.TB, namespace string, values ...string) {
	t.Helper()
	args := []string{"template", "homing", env.Root() + "/charts/homing", "--namespace", namespace, "--show-only", "templates/rbac.yaml"}
	for _, v := range values {
		args = append(args, "--set", v)
	}
	manifests, err := r.Helm(t).Run(t.Context(), args...)
	if err != nil {
		t.Fatal(err)
	}
	r.apply(t, manifests)
}

// replica is a controller that runs in this process, under a ServiceAccount.
type replica struct {
	*controller.Controller
	namespace string
	store     *endpoint.Store
	log       *logBuffer
	registry  *prometheus.Registry
	stop      func()
}

// start runs a replica of the install in a namespace until the test ends or it is stopped.
func (r *rig) start(t *testing.T, namespace, identity string) *replica {
	t.Helper()
	return r.startAs(t, r.ServiceAccount(t, namespace, "homing"), namespace, identity)
}

func (r *rig) startAs(t *testing.T, config *rest.Config, namespace, identity string, change ...func(*controller.Options)) *replica {
	t.Helper()
	rep := &replica{namespace: namespace, store: endpoint.NewStore(), log: &logBuffer{}, registry: prometheus.NewRegistry()}
	var err error
	options := controller.Options{
		Config: config, Namespace: namespace, Service: "homing", Store: rep.store, Identity: identity,
		Defaults: endpoint.DefaultPolicy(), RefusePort: refuseHealth, Registerer: rep.registry,
		Log: logr.FromSlogHandler(slog.NewTextHandler(rep.log, nil)),
	}
	for _, c := range change {
		c(&options)
	}
	rep.Controller, err = controller.New(options)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- rep.Start(ctx) }()
	rep.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("controller: %v", err)
		}
	})
	t.Cleanup(func() {
		rep.stop()
		if t.Failed() {
			t.Logf("log of %s:\n%s", identity, rep.log)
		}
	})
	return rep
}

// logBuffer keeps a log that several goroutines write.
type logBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// serves waits until the snapshot has exactly these pools and endpoints, by their addresses.
func (rep *replica) serves(t *testing.T, want map[string][]string) {
	t.Helper()
	env.Eventually(t, func(context.Context) error {
		got := map[string][]string{}
		for p := range rep.store.Snapshot().Pools {
			got[p.Name.Name] = []string{}
			for _, e := range p.Endpoints {
				got[p.Name.Name] = append(got[p.Name.Name], e.Address)
			}
			slices.Sort(got[p.Name.Name])
		}
		if err := rep.Waiting(); err != nil {
			return fmt.Errorf("nothing published: %w", err)
		}
		return difference("pools and endpoints", want, got)
	})
}

func (rep *replica) pool(name string) *endpoint.Pool {
	return rep.store.Snapshot().Pool(endpoint.PoolName{Namespace: rep.namespace, Name: name})
}

// waitsFor waits until the replica says that it cannot publish, in words that contain these.
func (rep *replica) waitsFor(t *testing.T, words ...string) {
	t.Helper()
	env.Eventually(t, func(context.Context) error {
		err := rep.Waiting()
		for _, w := range words {
			if err == nil {
				return errors.New("waiting for nothing")
			}
			if !strings.Contains(err.Error(), w) {
				return fmt.Errorf("waiting: %w; want %q in it", err, w)
			}
		}
		return nil
	})
}

// gauge is the value of a metric without labels.
func (rep *replica) gauge(t *testing.T, name string) float64 {
	t.Helper()
	families, err := rep.registry.Gather()
	env.Check(t, err)
	for _, f := range families {
		if f.GetName() == name {
			return f.GetMetric()[0].GetGauge().GetValue()
		}
	}
	t.Fatalf("no metric %s", name)
	return 0
}

func difference(what string, want, got any) error {
	if diff := cmp.Diff(want, got); diff != "" {
		return fmt.Errorf("%s (-want +got):\n%s", what, diff)
	}
	return nil
}

// pool and policy are manifests; spec is what comes after the lines that all have, indented by two.
func pool(namespace, name string, port int, spec string) string {
	return fmt.Sprintf(`
---
apiVersion: inference.networking.k8s.io/v1
kind: InferencePool
metadata: {name: %[2]s, namespace: %[1]s}
spec:
  selector: {matchLabels: {app: %[2]s}}
  targetPorts: [{number: 8000}]
  endpointPickerRef: {name: homing, port: {number: %[3]d}}
%[4]s`, namespace, name, port, spec)
}

func policy(namespace, name, pool, spec string) string {
	return fmt.Sprintf(`
---
apiVersion: homing.dev/v1alpha1
kind: PrefixRoutingPolicy
metadata: {name: %[2]s, namespace: %[1]s}
spec:
  targetRef: {name: %[3]s}
%[4]s`, namespace, name, pool, spec)
}

// pod makes a pod of a pool, Ready at these addresses.
func (r *rig) pod(t *testing.T, namespace, name, app, node string, ips ...string) *corev1.Pod {
	t.Helper()
	p, err := r.tryPod(t.Context(), namespace, name, app, node, ips...)
	env.Check(t, err)
	return p
}

func (r *rig) tryPod(ctx context.Context, namespace, name, app, node string, ips ...string) (*corev1.Pod, error) {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{"app": app}},
		Spec:       corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "engine", Image: "none"}}},
	}
	if err := r.api.Create(ctx, p); err != nil {
		return nil, err
	}
	return p, r.setStatus(ctx, p, corev1.ConditionTrue, ips...)
}

func (r *rig) podStatus(t *testing.T, p *corev1.Pod, ready corev1.ConditionStatus, ips ...string) {
	t.Helper()
	env.Check(t, r.setStatus(t.Context(), p, ready, ips...))
}

func (r *rig) setStatus(ctx context.Context, p *corev1.Pod, ready corev1.ConditionStatus, ips ...string) error {
	base := p.DeepCopy()
	p.Status.Phase = corev1.PodRunning
	p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: ready}}
	p.Status.PodIP, p.Status.PodIPs = "", nil
	for _, ip := range ips {
		p.Status.PodIPs = append(p.Status.PodIPs, corev1.PodIP{IP: ip})
	}
	if len(ips) > 0 {
		p.Status.PodIP = ips[0]
	}
	return r.api.Status().Patch(ctx, p, client.MergeFrom(base))
}

func (r *rig) deleteNow(t *testing.T, object client.Object) {
	t.Helper()
	if err := r.api.Delete(t.Context(), object, client.GracePeriodSeconds(0)); err != nil {
		t.Fatal(err)
	}
}

// outcome is a policy's status in few words.
type outcome struct {
	Conditions         []string // "Accepted=False PortConflict: message"
	Effective          string
	Selected, Ready    int
	ObservedGeneration int64
}

func outcomeOf(p *v1alpha1.PrefixRoutingPolicy) outcome {
	var o outcome
	for _, a := range p.Status.Ancestors {
		for _, c := range a.Conditions {
			o.Conditions = append(o.Conditions, fmt.Sprintf("%s=%s %s: %s", c.Type, c.Status, c.Reason, c.Message))
			o.ObservedGeneration = c.ObservedGeneration
		}
	}
	if e := p.Status.Effective; e != nil {
		o.Effective = fmt.Sprintf("%s %d %d", e.Strategy, e.PrefixLength, e.ConcurrencyThreshold)
	}
	if e := p.Status.Endpoints; e != nil {
		o.Selected, o.Ready = int(e.Selected), int(e.Ready)
	}
	return o
}

func (r *rig) get(t *testing.T, namespace, name string) *v1alpha1.PrefixRoutingPolicy {
	t.Helper()
	var p v1alpha1.PrefixRoutingPolicy
	if err := r.api.Get(t.Context(), types.NamespacedName{Namespace: namespace, Name: name}, &p); err != nil {
		t.Fatal(err)
	}
	return &p
}

// becomes waits until a policy's status is this. Conditions need only begin as wanted.
func (r *rig) becomes(t *testing.T, namespace, name string, want outcome) {
	t.Helper()
	env.Eventually(t, func(context.Context) error {
		p := r.get(t, namespace, name)
		got := outcomeOf(p)
		for i := range min(len(got.Conditions), len(want.Conditions)) {
			if strings.HasPrefix(got.Conditions[i], want.Conditions[i]) {
				got.Conditions[i] = want.Conditions[i]
			}
		}
		w := want
		if w.ObservedGeneration = p.Generation; len(w.Conditions) == 0 {
			w.ObservedGeneration = 0
		}
		return difference("status of "+name, w, got)
	})
}

// told waits until an event about an object says this.
func (r *rig) told(t *testing.T, namespace, object, kind, reason, words string) {
	t.Helper()
	env.Eventually(t, func(ctx context.Context) error {
		var events eventsv1.EventList
		if err := r.api.List(ctx, &events, client.InNamespace(namespace)); err != nil {
			return err
		}
		var seen []string
		for _, e := range events.Items {
			if e.Regarding.Name != object {
				continue
			}
			if e.Type == kind && e.Reason == reason && strings.Contains(e.Note, words) {
				return nil
			}
			seen = append(seen, e.Type+" "+e.Reason+": "+e.Note)
		}
		return fmt.Errorf("no %s event %s with %q about %s, but %q", kind, reason, words, object, seen)
	})
}

// quiet says that nobody writes to a policy for a while.
func (r *rig) quiet(t *testing.T, namespace, name string, during time.Duration) {
	t.Helper()
	before := r.get(t, namespace, name)
	time.Sleep(during)
	after := r.get(t, namespace, name)
	if before.ResourceVersion != after.ResourceVersion {
		was, _ := json.Marshal(before.Status)
		is, _ := json.Marshal(after.Status)
		t.Errorf("%s was written though nothing changed:\n%s\n%s", name, was, is)
	}
}

func refuseHealth(port uint16) string {
	if port == 9003 {
		return "is Homing's own, for health"
	}
	return ""
}
