package gateways

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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

func TestMain(m *testing.M) { os.Exit(netns.Run(m, Prepare)) }

const (
	namespace = "inference"
	// large and small are the pools of config/gateways.
	large, small = "llama-70b", "llama-8b"
)

// site is two pools, with Homing as their picker, behind a gateway. large's clients and small's differ in the host they
// ask for.
type site struct {
	models  *model.Servers
	large   *model.Client
	small   *model.Client
	servers map[string][]*model.Server // by pool
	// homing reads the metrics of each replica.
	homing func(context.Context) ([]env.Metrics, error)
}

// meet makes the clients of a gateway, and waits until it answers both.
func (s *site) meet(t *testing.T, g *Gateway) {
	t.Helper()
	begun := time.Now()
	s.large = model.NewClient(t, g.URL, large+".example.com")
	s.small = model.NewClient(t, g.URL, small+".example.com")
	s.answers(t)
	t.Logf("first answers %.1f s after the gateway", time.Since(begun).Seconds())
}

// reconnect has clients leave a listener of Envoy's that is replaced: it serves the connections that it has for a while.
func (s *site) reconnect() {
	s.large.Reconnect()
	s.small.Reconnect()
}

// answers waits until both pools answer, ten times in a row: by every worker of Envoy and every replica of Homing.
func (s *site) answers(t *testing.T) {
	t.Helper()
	env.Eventually(t, func(ctx context.Context) error {
		for range 10 {
			for _, c := range []*model.Client{s.large, s.small} {
				if why := c.Ask(ctx, "is anybody there").Failure(); why != "" {
					return fmt.Errorf("%s: %s", c.Host, why)
				}
			}
		}
		return nil
	})
}

// sum is a metric's over all replicas.
func (s *site) sum(ctx context.Context, name string, labels ...string) (float64, error) {
	replicas, err := s.homing(ctx)
	total := 0.0
	for _, m := range replicas {
		total += m.Sum(name, labels...)
	}
	return total, err
}

// want waits until a metric, over all replicas, is n.
func (s *site) want(t *testing.T, n float64, name string, labels ...string) {
	t.Helper()
	env.Eventually(t, func(ctx context.Context) error {
		got, err := s.sum(ctx, name, labels...)
		if err == nil && got != n {
			err = fmt.Errorf("%s%v is %v, want %v", name, labels, got, n)
		}
		return err
	})
}

// settles waits until nothing is in flight and every pick was released.
func (s *site) settles(t *testing.T) {
	t.Helper()
	env.Eventually(t, func(ctx context.Context) error {
		replicas, err := s.homing(ctx)
		for _, m := range replicas {
			if picks, releases, n := m.Sum("homing_picks_total"), m.Sum("homing_releases_total"), m.Sum("homing_in_flight_requests"); picks != releases || n != 0 {
				return fmt.Errorf("%v picks, %v releases, %v in flight", picks, releases, n)
			}
		}
		return err
	})
}

// install is a site in a cluster, where Homing is what the chart makes of it.
type install struct {
	*site
	*cluster.Cluster
	kubelet *kubelet.Kubelet
	helm    *cluster.Helm
}

// newInstall runs a cluster with pools and model servers, and installs Homing.
func newInstall(t *testing.T, values ...string) *install {
	c := cluster.Start(t)
	in := &install{site: &site{models: &model.Servers{}}, Cluster: c, helm: c.Helm(t)}
	c.InstallCRDs(t, cluster.GatewayCRDs(t), cluster.InferenceCRDs(t))
	in.kubelet = kubelet.Start(t, c, netns.Pods, map[string]kubelet.Image{
		"homing": kubelet.Homing(t, c),
		"vllm-openai": func(_ context.Context, p *corev1.Pod) (kubelet.Container, error) {
			return in.models.Serve(p.Name, p.Status.PodIP+":8000")
		},
	})
	c.AddNode(t, "node-0", nil)
	in.runHelm(t, append([]string{"install", "homing", filepath.Join(env.Root(), "charts/homing"), "--create-namespace", "--wait", "--timeout", "3m"}, values...)...)
	c.ApplyFiles(t, File("models.yaml"), Config("pools.yaml"))
	in.servers = map[string][]*model.Server{large: in.serversOf(t, large, 3), small: in.serversOf(t, small, 2)}
	in.site.homing = in.scrape
	return in
}

func (in *install) runHelm(t *testing.T, args ...string) {
	t.Helper()
	begun := time.Now()
	_, err := in.helm.Run(t.Context(), append(args, "--namespace", namespace)...)
	env.Check(t, err)
	t.Logf("helm %s: %.1f s", args[0], time.Since(begun).Seconds())
}

// serversOf waits for the model servers of an app's pods.
func (in *install) serversOf(t *testing.T, app string, n int) (servers []*model.Server) {
	t.Helper()
	env.Eventually(t, func(ctx context.Context) error {
		pods, err := in.ready(ctx, "app", app)
		if err != nil {
			return err
		}
		if len(pods) != n {
			return fmt.Errorf("%d pods of %s are Ready, want %d", len(pods), app, n)
		}
		servers = nil
		for _, p := range pods {
			servers = append(servers, in.kubelet.Container(namespace, p.Name).(*model.Server))
		}
		return nil
	})
	return servers
}

// ready are the pods with a label that are Ready and not being deleted.
func (in *install) ready(ctx context.Context, label, value string) ([]corev1.Pod, error) {
	var pods corev1.PodList
	err := in.Client.List(ctx, &pods, client.InNamespace(namespace), client.MatchingLabels{label: value})
	return slices.DeleteFunc(pods.Items, func(p corev1.Pod) bool {
		return p.DeletionTimestamp != nil || !slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
			return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
		})
	}), err
}

func (in *install) scrape(ctx context.Context) ([]env.Metrics, error) {
	replicas, err := in.ready(ctx, "app.kubernetes.io/name", "homing")
	var all []env.Metrics
	for _, p := range replicas {
		m, err := env.Scrape(ctx, "http://"+p.Status.PodIP+":9090/metrics")
		if err != nil {
			return nil, err
		}
		all = append(all, m)
	}
	return all, err
}

// patch changes an object of the namespace by a merge patch.
func (in *install) patch(t *testing.T, apiVersion, kind, name, patch string) {
	t.Helper()
	o := &unstructured.Unstructured{}
	o.SetGroupVersionKind(schema.FromAPIVersionAndKind(apiVersion, kind))
	o.SetNamespace(namespace)
	o.SetName(name)
	env.Check(t, in.Client.Patch(t.Context(), o, client.RawPatch(types.MergePatchType, []byte(patch))))
}

// fallbackHeader has the endpoint header carry the fallbacks, or not.
func (in *install) fallbackHeader(t *testing.T, on bool) {
	t.Helper()
	for _, pool := range []string{large, small} {
		in.patch(t, "homing.dev/v1alpha1", "PrefixRoutingPolicy", pool, fmt.Sprintf(`{"spec":{"fallbackHeader":%t}}`, on))
	}
}

// replicas waits until the Deployment of Homing has come to rest with n of them.
func (in *install) replicas(t *testing.T, n int32) {
	t.Helper()
	env.Eventually(t, func(ctx context.Context) error {
		var d appsv1.Deployment
		if err := in.Client.Get(ctx, client.ObjectKey{Namespace: namespace, Name: "homing"}, &d); err != nil {
			return err
		}
		var pods corev1.PodList
		if err := in.Client.List(ctx, &pods, client.InNamespace(namespace), client.MatchingLabels{"app.kubernetes.io/name": "homing"}); err != nil {
			return err
		}
		if s := d.Status; s.ObservedGeneration != d.Generation || s.ReadyReplicas != n || s.UpdatedReplicas != n || len(pods.Items) != int(n) {
			return fmt.Errorf("%d pods of Homing, status %+v, want %d", len(pods.Items), s, n)
		}
		return nil
	})
}

// restart replaces Homing's replicas one after the other, as `kubectl rollout restart` does.
func (in *install) restart(t *testing.T) {
	t.Helper()
	in.patch(t, "apps/v1", "Deployment", "homing", fmt.Sprintf(
		`{"spec":{"template":{"metadata":{"annotations":{"kubectl.kubernetes.io/restartedAt":%q}}}}}`, metav1.Now().Format(time.RFC3339)))
	in.replicas(t, 2)
}

// crash kills Homing's replicas, all at once; they are started again.
func (in *install) crash(t *testing.T) {
	t.Helper()
	replicas, err := in.ready(t.Context(), "app.kubernetes.io/name", "homing")
	env.Check(t, err)
	for _, p := range replicas {
		process := in.kubelet.Container(namespace, p.Name).(*env.Process)
		env.Check(t, process.Signal(syscall.SIGKILL))
		<-process.Done()
	}
	env.Eventually(t, func(ctx context.Context) error {
		left, err := in.ready(ctx, "app.kubernetes.io/name", "homing")
		if len(left) > 0 {
			return fmt.Errorf("%d replicas of Homing are still Ready", len(left))
		}
		return err
	})
	in.replicas(t, 2)
}

// away has no replica of Homing, and two again. Meanwhile no request is served by a pool that fails closed; by small,
// which fails open, all are if the gateway can do that.
func (in *install) away(t *testing.T, failsOpen bool) {
	in.patch(t, "apps/v1", "Deployment", "homing", `{"spec":{"replicas":0}}`)
	in.replicas(t, 0)
	for _, c := range []*model.Client{in.large, in.small} {
		want := http.StatusInternalServerError
		if failsOpen && c == in.small {
			want = http.StatusOK
		}
		var post, get map[int]int
		env.Eventually(t, func(ctx context.Context) error { // the gateway may hear of it late
			if post, get = statuses(ctx, c); post[want] != 10 || get[want] != 10 {
				return fmt.Errorf("%s: without Homing, statuses of POST %v, of GET %v, want %d", c.Host, post, get, want)
			}
			return nil
		})
		t.Logf("%s: without Homing, statuses of POST %v, of GET %v", c.Host, post, get)
	}
	in.patch(t, "apps/v1", "Deployment", "homing", `{"spec":{"replicas":2}}`)
	in.replicas(t, 2)
	in.answers(t)
}
