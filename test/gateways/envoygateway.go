package gateways

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/homing-dev/homing/test/cluster"
	"github.com/homing-dev/homing/test/env"
)

// envoyVersion is what config/gateways/envoy-gateway/standalone names, for Envoy Gateway to look for.
const envoyVersion = "1.40.0"

// StartEnvoyGatewayFiles runs Envoy Gateway without Kubernetes until the test ends: it follows the objects in these
// YAML files, and runs Envoy itself. The Gateway's listener is at port 8080. It gives the folder of the files, where
// the test may change them.
func StartEnvoyGatewayFiles(t testing.TB, files ...string) (*Gateway, string) {
	t.Helper()
	bin := cluster.Need(t, "envoy-gateway")
	e := env.For(t)
	run := func(name string) string { return filepath.Join(e.Dir(), name) }
	resources := run("resources")
	if err := os.Mkdir(resources, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(resources, filepath.Base(file)), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	placeEnvoy(t, e, run("data/envoy-versions/"+envoyVersion+"/bin"))
	config := fill(t, e, "envoygateway/config-standalone.yaml", map[string]string{"RUN": e.Dir()})
	certgen(t, bin, os.Environ(), "--local", "--config-home", run("config"))
	g := &Gateway{URL: "http://127.0.0.1:8080"}
	e.StartReady(t, "envoy-gateway", exec.Command(bin["envoy-gateway"], "server", "--config-path", config),
		func(ctx context.Context) error {
			address, err := adminAddress(run("run"))
			if err != nil {
				return err
			}
			g.Admin = "http://" + address
			return env.Answers200(http.DefaultClient, g.Admin+"/ready")(ctx)
		})
	return g, resources
}

// certgen makes the certificates by which Envoy Gateway and its Envoys know each other.
func certgen(t testing.TB, bin cluster.Binaries, environment []string, args ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), bin["envoy-gateway"], append([]string{"certgen", "--disable-topology-injector"}, args...)...)
	cmd.Env = environment
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("certgen: %v\n%s", err, out)
	}
}

// placeEnvoy puts the pinned Envoy where Envoy Gateway looks before it downloads one.
func placeEnvoy(t testing.TB, e *env.Env, dir string) {
	t.Helper()
	envoy, err := e.EnvoyBinary(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(envoy, filepath.Join(dir, "envoy")); err != nil {
		t.Fatal(err)
	}
}

// adminAddress is where the Envoy that Envoy Gateway runs has its admin interface.
func adminAddress(runtimeDir string) (string, error) {
	found, err := filepath.Glob(filepath.Join(runtimeDir, "*", "admin-address.txt"))
	if err != nil {
		return "", err
	}
	if len(found) != 1 {
		return "", fmt.Errorf("%d files with an admin address, want one", len(found))
	}
	address, err := os.ReadFile(found[0])
	return strings.TrimSpace(string(address)), err
}

// EnvoyGateway is Envoy Gateway's control plane for Kubernetes.
type EnvoyGateway struct {
	cluster *cluster.Cluster
	env     *env.Env
}

// systemNamespace is where Envoy Gateway keeps its own objects, gateways' Deployments among them.
const systemNamespace = "envoy-gateway-system"

// StartEnvoyGateway runs Envoy Gateway on the cluster until the test ends. Gateway API's CRDs must be there.
func StartEnvoyGateway(t testing.TB, c *cluster.Cluster) *EnvoyGateway {
	t.Helper()
	bin := cluster.Need(t, "envoy-gateway")
	c.InstallCRDs(t, envoyGatewaySource.Dir(t, "charts/gateway-helm/charts/crds/crds/generated"))
	if err := c.Apply(t.Context(), []byte("{apiVersion: v1, kind: Namespace, metadata: {name: "+systemNamespace+"}}")); err != nil {
		t.Fatal(err)
	}
	certgen(t, bin, append(os.Environ(), "KUBECONFIG="+c.AdminKubeconfig()))

	// It reads its certificates in /certs and nowhere else: so it gets a root folder of its own.
	g := &EnvoyGateway{cluster: c, env: env.For(t)}
	root := filepath.Join(g.env.Dir(), "root")
	g.writeSecret(t, "envoy-gateway", filepath.Join(root, "certs"))
	for from, to := range map[string]string{
		bin["envoy-gateway"]:                        "envoy-gateway",
		c.AdminKubeconfig():                         "kubeconfig",
		File("envoygateway/config-kubernetes.yaml"): "config.yaml",
	} {
		copyFile(t, from, filepath.Join(root, to))
	}
	if err := os.Mkdir(filepath.Join(root, "tmp"), 0o700); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("chroot", root, "/envoy-gateway", "server", "--config-path", "/config.yaml")
	cmd.Env = append(os.Environ(), "KUBECONFIG=/kubeconfig", "TMPDIR=/tmp")
	g.env.StartReady(t, "envoy-gateway", cmd, env.Answers200(http.DefaultClient, "http://127.0.0.1:8081/readyz"))
	return g
}

// StartEnvoy runs the data plane of a Gateway until the test ends, at the address of the pod that Envoy Gateway has
// made for it and with that pod's bootstrap, and waits until it is configured.
func (g *EnvoyGateway) StartEnvoy(t testing.TB, namespace, gateway string) *Gateway {
	t.Helper()
	labels := client.MatchingLabels{"gateway.envoyproxy.io/owning-gateway-namespace": namespace,
		"gateway.envoyproxy.io/owning-gateway-name": gateway}
	pod := gatewayPod(t, g.cluster, systemNamespace, labels)
	admin := env.Port(t)
	url := "http://" + net.JoinHostPort(pod.Status.PodIP, g.listenerPort(t, labels))
	return startEnvoy(t, g.env, url, admin, g.envoyArgs(t, pod, admin)...)
}

// listenerPort is the port, on its pod, of a gateway's first listener.
func (g *EnvoyGateway) listenerPort(t testing.TB, labels client.MatchingLabels) string {
	t.Helper()
	var services corev1.ServiceList
	if err := g.cluster.Client.List(t.Context(), &services, client.InNamespace(systemNamespace), labels); err != nil {
		t.Fatal(err)
	}
	if len(services.Items) != 1 {
		t.Fatalf("%d Services %v, want one", len(services.Items), labels)
	}
	return services.Items[0].Spec.Ports[0].TargetPort.String()
}

// envoyArgs is who the Envoy in a gateway's pod is and its bootstrap, as the pod's command line says, with what differs
// here: where Envoy Gateway and the pod's files are, and the ports of Envoy's own interfaces, which are Envoy
// Gateway's too.
func (g *EnvoyGateway) envoyArgs(t testing.TB, pod corev1.Pod, admin int) []string {
	t.Helper()
	certs, sds := filepath.Join(g.env.Dir(), pod.Name, "certs"), filepath.Join(g.env.Dir(), pod.Name, "sds")
	g.writeSecret(t, "envoy", certs)
	g.writeSDS(t, pod, sds, certs)

	i := slices.IndexFunc(pod.Spec.Containers, func(c corev1.Container) bool { return c.Name == "envoy" })
	if i < 0 {
		t.Fatalf("pod %s has no container envoy", pod.Name)
	}
	replace := strings.NewReplacer("/sds/", sds+"/", "port_value: 19000", fmt.Sprintf("port_value: %d", admin),
		"port_value: 19001", fmt.Sprintf("port_value: %d", env.Port(t)),
		"envoy-gateway."+systemNamespace+".svc.cluster.local.", "127.0.0.1", "$(ENVOY_POD_NAME)", pod.Name)
	given := pod.Spec.Containers[i].Args
	var args []string
	for _, name := range []string{"--service-cluster", "--service-node", "--config-yaml"} {
		at := slices.Index(given, name)
		if at < 0 || at+1 == len(given) {
			t.Fatalf("pod %s runs Envoy without %s: %q", pod.Name, name, given)
		}
		args = append(args, name, replace.Replace(given[at+1]))
	}
	return args
}

// writeSDS writes the files that tell a gateway's Envoy where its certificates are.
func (g *EnvoyGateway) writeSDS(t testing.TB, pod corev1.Pod, dir, certs string) {
	t.Helper()
	i := slices.IndexFunc(pod.Spec.Volumes, func(v corev1.Volume) bool { return v.Name == "sds" })
	if i < 0 {
		t.Fatalf("pod %s has no volume sds", pod.Name)
	}
	var files corev1.ConfigMap
	key := client.ObjectKey{Namespace: systemNamespace, Name: pod.Spec.Volumes[i].ConfigMap.Name}
	if err := g.cluster.Client.Get(t.Context(), key, &files); err != nil {
		t.Fatal(err)
	}
	data := map[string][]byte{}
	for name, content := range files.Data {
		data[name] = []byte(strings.ReplaceAll(content, "/certs/", certs+"/"))
	}
	writeFiles(t, dir, data)
}

// writeSecret writes a Secret of Envoy Gateway's as files.
func (g *EnvoyGateway) writeSecret(t testing.TB, name, dir string) {
	t.Helper()
	var secret corev1.Secret
	if err := g.cluster.Client.Get(t.Context(), client.ObjectKey{Namespace: systemNamespace, Name: name}, &secret); err != nil {
		t.Fatal(err)
	}
	writeFiles(t, dir, secret.Data)
}

func writeFiles(t testing.TB, dir string, files map[string][]byte) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func copyFile(t testing.TB, from, to string) {
	t.Helper()
	content, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(to, content, 0o700); err != nil {
		t.Fatal(err)
	}
}
