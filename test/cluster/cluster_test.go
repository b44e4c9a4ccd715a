package cluster

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/homing-dev/homing/test/env"
)

const namespace = `
apiVersion: v1
kind: Namespace
metadata: {name: demo}
`

func TestControlPlane(t *testing.T) {
	c := Start(t)
	t.Run("CRDs", func(t *testing.T) {
		c.InstallCRDs(t, GatewayCRDs(t), InferenceCRDs(t), HomingCRDs())
		if err := c.Apply(t.Context(), []byte(namespace+pool("pool", 9002))); err != nil {
			t.Fatal(err)
		}
		err := c.Apply(t.Context(), []byte(pool("bad", 70000)))
		if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "endpointPickerRef.port.number") {
			t.Errorf("a pool with port 70000: %v, want Invalid, naming the field", err)
		}
	})
	t.Run("ServiceAccount", func(t *testing.T) { testServiceAccount(t, c) })
	t.Run("Helm", func(t *testing.T) { testHelm(t, c) })
	t.Run("Deployment", func(t *testing.T) {
		c.RunPods(t, PodsOnLoopback)
		c.AddNode(t, "node-0", map[string]string{"node.kubernetes.io/instance-type": "p5.48xlarge"})
		testDeployment(t, c)
	})
}

func pool(name string, port int) string {
	return fmt.Sprintf(`
---
apiVersion: inference.networking.k8s.io/v1
kind: InferencePool
metadata: {name: %s, namespace: demo}
spec:
  selector: {matchLabels: {app: model}}
  targetPorts: [{number: 8000}]
  endpointPickerRef: {name: homing, port: {number: %d}}
`, name, port)
}

// A ServiceAccount may do what its roles say, and nothing else.
func testServiceAccount(t *testing.T, c *Cluster) {
	if err := c.Apply(t.Context(), []byte(namespace+`
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: reader, namespace: demo}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: reader, namespace: demo}
rules: [{apiGroups: [""], resources: [pods], verbs: [list]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: reader, namespace: demo}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: reader}
subjects: [{kind: ServiceAccount, name: reader, namespace: demo}]
`)); err != nil {
		t.Fatal(err)
	}
	reader, err := client.New(c.ServiceAccount(t, "demo", "reader"), client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	// The authorizer learns of a new binding from its watch.
	env.Eventually(t, func(ctx context.Context) error {
		return reader.List(ctx, &corev1.PodList{}, client.InNamespace("demo"))
	})
	if err := reader.List(t.Context(), &corev1.SecretList{}, client.InNamespace("demo")); !apierrors.IsForbidden(err) {
		t.Errorf("listing secrets, which no role allows: %v, want Forbidden", err)
	}
}

// A chart is installed, upgraded, rolled back and uninstalled.
func testHelm(t *testing.T, c *Cluster) {
	helm := c.Helm(t)
	chart := filepath.Join(t.TempDir(), "web")
	replicas := func() int32 {
		var d appsv1.Deployment
		switch err := c.Client.Get(t.Context(), client.ObjectKey{Namespace: "charts", Name: "web"}, &d); {
		case apierrors.IsNotFound(err):
			return 0
		case err != nil:
			t.Fatal(err)
		}
		return *d.Spec.Replicas
	}
	for _, step := range []struct {
		args string
		want int32 // replicas of the Deployment afterwards
	}{
		{"create " + chart, 0},
		{"install web " + chart + " --namespace charts --create-namespace", 1},
		{"upgrade web " + chart + " --namespace charts --set replicaCount=2", 2},
		{"rollback web 1 --namespace charts", 1},
		{"uninstall web --namespace charts", 0},
	} {
		if _, err := helm.Run(t.Context(), strings.Fields(step.args)...); err != nil {
			t.Fatal(err)
		}
		if got := replicas(); got != step.want {
			t.Errorf("after helm %s the Deployment has %d replicas, want %d", step.args, got, step.want)
		}
	}
	if _, err := helm.Run(t.Context(), "status", "web", "--namespace", "charts"); err == nil || !strings.Contains(err.Error(), "not found") {
		t.Errorf("status of an uninstalled release: %v, want not found", err)
	}
}

const deployment = namespace + `
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: model, namespace: demo}
spec:
  replicas: 3
  selector: {matchLabels: {app: model}}
  template:
    metadata: {labels: {app: model}}
    spec: {containers: [{name: engine, image: none}]}
`

// The pods of a Deployment come, go and get addresses as in any cluster, and a process of the test serves there.
func testDeployment(t *testing.T, c *Cluster) {
	start := time.Now()
	if err := c.Apply(t.Context(), []byte(deployment)); err != nil {
		t.Fatal(err)
	}
	port := env.Port(t)
	served := map[string]bool{}
	for _, replicas := range []int{3, 5, 2} {
		scale(t, c, replicas)
		addresses := readyAddresses(t, c, replicas)
		t.Logf("%d pods Ready, the others gone, %.1f s after the Deployment", replicas, time.Since(start).Seconds())
		for _, a := range addresses {
			if !strings.HasPrefix(a, "127.1.0.") {
				t.Fatalf("pod address %s, want one in 127.1.0.0/24", a)
			}
			if !served[a] {
				Serve(t, net.JoinHostPort(a, strconv.Itoa(port)), http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
					_, _ = io.WriteString(w, a)
				}))
				served[a] = true
			}
			if got := get(t, fmt.Sprintf("http://%s:%d/", a, port)); got != a {
				t.Errorf("the server on pod address %s answers %q", a, got)
			}
		}
	}
}

func scale(t *testing.T, c *Cluster, replicas int) {
	t.Helper()
	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "demo", Name: "model"}}
	patch := client.RawPatch("application/merge-patch+json", fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, replicas))
	if err := c.Client.Patch(t.Context(), d, patch); err != nil {
		t.Fatal(err)
	}
}

// readyAddresses waits until exactly n pods exist, all Ready, each with an address of its own.
func readyAddresses(t *testing.T, c *Cluster, n int) []string {
	t.Helper()
	var addresses []string
	env.Eventually(t, func(ctx context.Context) error {
		var pods corev1.PodList
		if err := c.Client.List(ctx, &pods, client.InNamespace("demo")); err != nil {
			return err
		}
		addresses = nil
		for _, p := range pods.Items {
			ready := slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
				return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
			})
			if ready {
				addresses = append(addresses, p.Status.PodIP)
			}
		}
		slices.Sort(addresses)
		if len(pods.Items) != n || len(slices.Compact(slices.Clone(addresses))) != n {
			return fmt.Errorf("%d pods, Ready at %v; want %d", len(pods.Items), addresses, n)
		}
		return nil
	})
	return addresses
}

func get(t *testing.T, url string) string {
	t.Helper()
	res, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}
