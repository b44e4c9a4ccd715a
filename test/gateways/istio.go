package gateways

import (
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/homing-dev/homing/test/cluster"
	"github.com/homing-dev/homing/test/env"
)

// Istio is Istio's control plane, istiod's pilot.
type Istio struct {
	cluster *cluster.Cluster
	env     *env.Env
}

// Where pilot listens, on 127.0.0.1.
const istioXDS, istioWeb = 15010, 15080

// StartIstio runs pilot until the test ends, with what Istio's charts install that a gateway needs: the CRDs and the
// templates of gateways' Deployments. Gateway API's and the Inference Extension's CRDs must be there.
//
// Unlike an installed Istio it has no certificates and no agents: the connection from Envoy to pilot is plaintext,
// there is no mesh TLS, and two of Istio's own Envoy filters, which the upstream Envoy lacks, are off.
func StartIstio(t testing.TB, c *cluster.Cluster) *Istio {
	t.Helper()
	bin := cluster.Need(t, "pilot-discovery")
	charts := istioSource.Dir(t, "manifests/charts")
	c.InstallCRDs(t, filepath.Join(charts, "base/files"))
	if err := c.Apply(t.Context(), []byte("{apiVersion: v1, kind: Namespace, metadata: {name: istio-system}}")); err != nil {
		t.Fatal(err)
	}
	templates, err := c.Helm(t).Run(t.Context(), "template", "istiod", filepath.Join(charts, "istio-control/istio-discovery"),
		"--namespace", "istio-system", "--show-only", "templates/istiod-injector-configmap.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Apply(t.Context(), []byte(templates)); err != nil {
		t.Fatal(err)
	}

	i := &Istio{cluster: c, env: env.For(t)}
	cmd := exec.Command(bin["pilot-discovery"], "discovery", "--kubeconfig", c.AdminKubeconfig(),
		"--meshConfig", File("istio/mesh.yaml"), "--grpcAddr", fmt.Sprintf("127.0.0.1:%d", istioXDS),
		"--httpAddr", fmt.Sprintf("127.0.0.1:%d", istioWeb), "--monitoringAddr", "127.0.0.1:15014",
		"--secureGRPCAddr", "", "--httpsAddr", "", "--ctrlz_address", "127.0.0.1", "--shutdownDuration", "1s")
	cmd.Env = append(os.Environ(), "POD_NAME=istiod", "POD_NAMESPACE=istio-system",
		"ENABLE_GATEWAY_API_INFERENCE_EXTENSION=true", "ENABLE_LEADER_ELECTION=false",
		"ENABLE_CA_SERVER=false", "PILOT_CERT_PROVIDER=none",
		"PILOT_ENABLE_ALPN_FILTER=false", "PILOT_ENABLE_METADATA_EXCHANGE=false")
	i.env.StartReady(t, "pilot-discovery", cmd, env.Answers200(http.DefaultClient, fmt.Sprintf("http://127.0.0.1:%d/ready", istioWeb)))
	return i
}

// StartEnvoy runs the data plane of a Gateway until the test ends, at the address of the pod that Istio has made for
// it, and waits until it is configured. The Gateway's first listener is at port 80.
func (i *Istio) StartEnvoy(t testing.TB, namespace, gateway string) *Gateway {
	t.Helper()
	pod := gatewayPod(t, i.cluster, namespace, client.MatchingLabels{"gateway.networking.k8s.io/gateway-name": gateway})
	admin := env.Port(t)
	bootstrap := fill(t, i.env, "istio/envoy-bootstrap.yaml", map[string]string{
		"IP": pod.Status.PodIP, "POD": pod.Name, "NAMESPACE": namespace, "GATEWAY": gateway,
		"ADMIN": strconv.Itoa(admin), "XDS": strconv.Itoa(istioXDS),
	})
	return startEnvoy(t, i.env, "http://"+pod.Status.PodIP, admin, "-c", bootstrap)
}
