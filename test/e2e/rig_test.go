// Package e2e tests all of it together: the chart, installed by helm on a real API server with its controller manager
// and scheduler; Homing's replicas, run as their pods say, with the rights that the chart grants; Deployments of model
// servers, whose pods come and go; real Envoys that follow them; and clients that never stop asking.
//
// Nothing runs in a container: test/kubelet starts what pods stand for, at their addresses, in a network of the test's
// own. The model servers of the one pool are simulated vLLM engines, those of the other only say who they are.
package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/homing-dev/homing/test/cluster"
	"github.com/homing-dev/homing/test/env"
	"github.com/homing-dev/homing/test/kubelet"
	"github.com/homing-dev/homing/test/model"
	"github.com/homing-dev/homing/test/netns"
)

func TestMain(m *testing.M) { os.Exit(netns.Run(m, prepare)) }

// prepare fetches and builds what the test runs, before it goes into its network.
func prepare() error {
	if err := cluster.Prepare(); err != nil {
		return err
	}
	e, err := env.New(os.Stderr)
	if err != nil {
		return err
	}
	defer e.Close()
	if _, err := e.HomingBinary(); err != nil {
		return err
	}
	if _, err := e.SimulatorBinary(context.Background()); err != nil {
		return err
	}
	_, err = e.EnvoyBinary(context.Background())
	return err
}

const (
	namespace = "inference"
	// first is the pool of config/samples/kubernetes, second that of second.values.yaml.
	first, second = "llama-70b", "llama-8b"
)

// rig is an install with its pools, and Envoys in front.
type rig struct {
	*cluster.Cluster
	helm    *cluster.Helm
	kubelet *kubelet.Kubelet
	models  *model.Servers
	env     *env.Env
	eds     string // the folder that Envoys follow
}

func newRig(t *testing.T) *rig {
	c := cluster.Start(t)
	r := &rig{Cluster: c, helm: c.Helm(t), models: &model.Servers{}, env: env.For(t)}
	c.InstallCRDs(t, cluster.GatewayCRDs(t), cluster.InferenceCRDs(t)) // Homing's own is the chart's
	simulator, err := r.env.SimulatorBinary(t.Context())
	env.Check(t, err)
	r.kubelet = kubelet.Start(t, c, netns.Pods, map[string]kubelet.Image{
		"homing": kubelet.Homing(t, c),
		"vllm-openai": func(_ context.Context, p *corev1.Pod) (kubelet.Container, error) {
			return r.models.Serve(p.Name, p.Status.PodIP+":8000")
		},
		"llm-d-inference-sim": func(_ context.Context, p *corev1.Pod) (kubelet.Container, error) {
			cmd := exec.Command(simulator, p.Spec.Containers[0].Args...)
			cmd.Env = append(os.Environ(), "POD_IP="+p.Status.PodIP)
			return r.env.Start(p.Name, cmd)
		},
	})
	c.AddNode(t, "p5-0", map[string]string{"node.kubernetes.io/instance-type": "p5.48xlarge"})
	c.AddNode(t, "cpu-0", map[string]string{"node.kubernetes.io/instance-type": "m7i.2xlarge"})
	r.runHelm(t, "install", "homing", filepath.Join(env.Root(), "charts/homing"), "-n", namespace, "--create-namespace",
		"--set", "rbac.nodes=true", "--wait", "--timeout", "3m")
	c.ApplyFiles(t, "testdata/models.yaml", filepath.Join(env.Root(), "config/samples/kubernetes/llama-70b.yaml"))
	r.patch(t, "apps/v1", "Deployment", first, `{"spec":{"replicas":3}}`)
	r.eds = r.followPods(t)
	return r
}

func (r *rig) runHelm(t *testing.T, args ...string) {
	t.Helper()
	_, err := r.helm.Run(t.Context(), args...)
	env.Check(t, err)
}

// pods are those of an app that are Ready and not being deleted.
func (r *rig) pods(ctx context.Context, label, value string) ([]corev1.Pod, error) {
	var list corev1.PodList
	err := r.Client.List(ctx, &list, client.InNamespace(namespace), client.MatchingLabels{label: value})
	return slices.DeleteFunc(list.Items, func(p corev1.Pod) bool { return !serves(&p) }), err
}

func serves(p *corev1.Pod) bool {
	return p.DeletionTimestamp == nil && slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

func podNames(pods []corev1.Pod) []string {
	names := make([]string, len(pods))
	for i, p := range pods {
		names[i] = p.Name
	}
	slices.Sort(names)
	return names
}

// replicas are Homing's that are Ready.
func (r *rig) replicas(ctx context.Context) ([]corev1.Pod, error) {
	return r.pods(ctx, "app.kubernetes.io/name", "homing")
}

// metrics are a replica's.
func metrics(ctx context.Context, replica *corev1.Pod) (env.Metrics, error) {
	return env.Scrape(ctx, "http://"+replica.Status.PodIP+":9090/metrics")
}

// scale sets the number of a Deployment's pods, and waits until they serve and every replica of Homing picks from them.
func (r *rig) scale(t *testing.T, app string, n int) {
	t.Helper()
	r.patch(t, "apps/v1", "Deployment", app, fmt.Sprintf(`{"spec":{"replicas":%d}}`, n))
	r.settles(t, app, n)
}

// settles waits until n pods of an app serve, no more are there, and every replica of Homing picks from them. There
// must be load, since a pool has metrics from its first request on.
func (r *rig) settles(t *testing.T, app string, n int) {
	t.Helper()
	env.Eventually(t, func(ctx context.Context) error {
		pods, err := r.pods(ctx, "app", app)
		if err != nil {
			return err
		}
		var all corev1.PodList
		if err := r.Client.List(ctx, &all, client.InNamespace(namespace), client.MatchingLabels{"app": app}); err != nil {
			return err
		}
		if len(pods) != n || len(all.Items) != n {
			return fmt.Errorf("%d pods of %s, %d serve, want %d", len(all.Items), app, len(pods), n)
		}
		return r.known(ctx, app, podNames(pods))
	})
}

// known says whether every replica of Homing has these endpoints in a pool.
func (r *rig) known(ctx context.Context, pool string, want []string) error {
	replicas, err := r.replicas(ctx)
	if err != nil {
		return err
	}
	if len(replicas) == 0 {
		return errors.New("no replica of Homing is Ready")
	}
	for _, replica := range replicas {
		m, err := metrics(ctx, &replica)
		if err != nil {
			return err
		}
		if got := endpoints(m, pool); !slices.Equal(got, want) {
			return fmt.Errorf("%s has endpoints %v of %s, want %v", replica.Name, got, pool, want)
		}
	}
	return nil
}

// hear waits until n replicas of Homing are Ready and each hears all others.
func (r *rig) hear(t *testing.T, n int) {
	t.Helper()
	env.Eventually(t, func(ctx context.Context) error {
		replicas, err := r.replicas(ctx)
		if err != nil {
			return err
		}
		if len(replicas) != n {
			return fmt.Errorf("%d replicas are Ready, want %d", len(replicas), n)
		}
		for _, replica := range replicas {
			m, err := metrics(ctx, &replica)
			if err != nil {
				return err
			}
			if heard, unheard := m.Sum("homing_peers_heard"), m.Sum("homing_peers_unheard"); heard != float64(n-1) || unheard != 0 {
				return fmt.Errorf("%s hears %v others and misses %v, of %d replicas", replica.Name, heard, unheard, n)
			}
		}
		return nil
	})
}

// endpoints are the names of a pool's, as metrics have them.
func endpoints(m env.Metrics, pool string) []string {
	names := []string{}
	for _, series := range m["homing_in_flight_requests"].GetMetric() {
		labels := map[string]string{}
		for _, l := range series.GetLabel() {
			labels[l.GetName()] = l.GetValue()
		}
		if labels["pool_name"] == pool {
			names = append(names, labels["endpoint"])
		}
	}
	slices.Sort(names)
	return names
}

// patch changes an object by a merge patch.
func (r *rig) patch(t *testing.T, apiVersion, kind, name, patch string) {
	t.Helper()
	o := object(apiVersion, kind, name)
	env.Check(t, r.Client.Patch(t.Context(), o, client.RawPatch(types.MergePatchType, []byte(patch))))
}

// object names one of the install's namespace.
func object(apiVersion, kind, name string) *unstructured.Unstructured {
	o := &unstructured.Unstructured{}
	o.SetGroupVersionKind(schema.FromAPIVersionAndKind(apiVersion, kind))
	o.SetNamespace(namespace)
	o.SetName(name)
	return o
}
