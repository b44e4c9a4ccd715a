package cluster

import (
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os/exec"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/homing-dev/homing/test/env"
)

// PodsOnLoopback gives pods addresses from 127.1.0.2 on.
const PodsOnLoopback = "127.1.0.1/24"

// RunPods runs the controller manager, the scheduler and kwok until the test ends: from then on Deployments have
// pods, and pods on a node of [Cluster.AddNode] are Ready at once, with addresses inside cidr, counted up from its
// own. On loopback no EndpointSlice or Endpoints come of them, since the API server refuses such addresses there.
// stages, files of kwok's Stages for pods, replace those that make pods Ready and remove deleted ones.
func (c *Cluster) RunPods(t testing.TB, cidr string, stages ...string) {
	t.Helper()
	bin := Need(t, "kube-controller-manager", "kube-scheduler", "kwok")
	prefix, err := netip.ParsePrefix(cidr)
	if err != nil {
		t.Fatal(err)
	}
	controllers := "*"
	if prefix.Addr().IsLoopback() {
		controllers += ",-endpointslice-controller,-endpoints-controller,-endpointslice-mirroring-controller"
	}
	c.startKubeComponent(t, bin, "kube-controller-manager", "--controllers", controllers,
		"--service-account-private-key-file", filepath.Join(c.env.Dir(), serviceAccountKey),
		"--kube-api-qps", "200", "--kube-api-burst", "400")
	c.startKubeComponent(t, bin, "kube-scheduler", "--kube-api-qps", "200", "--kube-api-burst", "400")
	if len(stages) == 0 {
		for _, name := range []string{"pod-ready", "pod-complete", "pod-delete"} {
			stages = append(stages, kwok.Dir(t, "kustomize/stage/pod/fast/"+name+".yaml"))
		}
	}
	c.startKwok(t, bin["kwok"], cidr, stages)
}

// startKubeComponent starts the controller manager or the scheduler: what both want, and args.
func (c *Cluster) startKubeComponent(t testing.TB, bin Binaries, name string, args ...string) {
	t.Helper()
	port := env.Port(t)
	args = append([]string{"--kubeconfig", c.kubeconfig, "--leader-elect=false", "--authentication-skip-lookup",
		"--bind-address", "127.0.0.1", "--secure-port", fmt.Sprint(port), "--cert-dir", t.TempDir()}, args...)
	web, err := rest.HTTPClientFor(&rest.Config{TLSClientConfig: rest.TLSClientConfig{Insecure: true}}) // self-signed
	if err != nil {
		t.Fatal(err)
	}
	c.env.StartReady(t, name, exec.Command(bin[name], args...), env.Answers200(web, fmt.Sprintf("https://127.0.0.1:%d/healthz", port)))
}

func (c *Cluster) startKwok(t testing.TB, bin, cidr string, podStages []string) {
	t.Helper()
	address := fmt.Sprintf("127.0.0.1:%d", env.Port(t))
	args := []string{"--kubeconfig", c.kubeconfig, "--manage-all-nodes", "--cidr", cidr, "--node-ip", "127.0.0.1",
		"--server-address", address}
	nodes := kwok.Dir(t, "kustomize/stage/node")
	for _, stage := range append([]string{nodes + "/fast/node-initialize.yaml", nodes + "/heartbeat/node-heartbeat.yaml"}, podStages...) {
		args = append(args, "--config", stage)
	}
	c.env.StartReady(t, "kwok", exec.Command(bin, args...), env.Answers200(http.DefaultClient, "http://"+address+"/healthz"))
}

// AddNode adds a node for pods to be scheduled on. kwok makes it Ready.
func (c *Cluster) AddNode(t testing.TB, name string, labels map[string]string) {
	t.Helper()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}
	if err := c.Client.Create(t.Context(), node); err != nil {
		t.Fatal(err)
	}
}

// Serve answers HTTP at ip:port, a pod's address for example, until the test ends.
func Serve(t testing.TB, address string, handler http.Handler) {
	t.Helper()
	l, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: handler}
	go func() { _ = server.Serve(l) }() // its end is the test's, below
	t.Cleanup(func() { _ = server.Close() })
}
