// Package cluster runs a real Kubernetes control plane for tests, without Docker: etcd and kube-apiserver, and on
// demand the controller manager, the scheduler and kwok, which plays the nodes.
//
// Invariants: everything listens on loopback, on ports of its own, and keeps its data in the test's folder, so any
// number of clusters run side by side; kwok gives pods addresses where a process of the test may listen. Nothing
// runs in a pod.
package cluster

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"github.com/go-logr/logr"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/homing-dev/homing/test/env"
)

const (
	adminToken        = "admin-token"
	serviceAccountKey = "service-account.key" // the file that tokens of ServiceAccounts are signed with
)

// Cluster is a running control plane.
type Cluster struct {
	// Config is the administrator's (system:masters).
	Config *rest.Config
	// Client is the administrator's, for the built-in types, CustomResourceDefinitions and unstructured objects.
	Client client.Client

	env        *env.Env
	kubeconfig string // the administrator's
}

// silence keeps controller-runtime from complaining, with a stack trace, that nobody set its logger. A suite that
// wants to read its controllers' logs sets another after Start.
var silence = sync.OnceFunc(func() { log.SetLogger(logr.Discard()) })

// Start runs etcd and kube-apiserver, with RBAC, until the test ends.
func Start(t testing.TB) *Cluster {
	t.Helper()
	silence()
	bin := Need(t, "etcd", "kube-apiserver")
	c := &Cluster{env: env.For(t)}
	etcd := c.startEtcd(t, bin["etcd"])
	c.startAPIServer(t, bin["kube-apiserver"], etcd)
	c.kubeconfig = c.Kubeconfig(t, c.Config)

	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, apiextensionsv1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	var err error
	if c.Client, err = client.New(c.Config, client.Options{Scheme: scheme}); err != nil {
		t.Fatal(err)
	}
	return c
}

// startEtcd gives the URL for clients.
func (c *Cluster) startEtcd(t testing.TB, bin string) string {
	t.Helper()
	clients := fmt.Sprintf("http://127.0.0.1:%d", env.Port(t))
	peers := fmt.Sprintf("http://127.0.0.1:%d", env.Port(t))
	c.env.StartReady(t, "etcd", exec.Command(bin, "--data-dir", filepath.Join(c.env.Dir(), "etcd"),
		"--listen-client-urls", clients, "--advertise-client-urls", clients,
		"--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers, "--initial-cluster", "default="+peers,
		"--unsafe-no-fsync", "--log-level", "warn"), env.Answers200(http.DefaultClient, clients+"/readyz"))
	return clients
}

func (c *Cluster) startAPIServer(t testing.TB, bin, etcd string) {
	t.Helper()
	certificate, key, err := cert.GenerateSelfSignedCertKey("127.0.0.1", []net.IP{net.IPv4(127, 0, 0, 1)}, []string{"localhost"})
	if err != nil {
		t.Fatal(err)
	}
	chain, err := cert.ParseCertsPEM(certificate) // the server's certificate, and that of its own authority
	if err != nil {
		t.Fatal(err)
	}
	authority, err := cert.EncodeCertificates(chain[len(chain)-1])
	if err != nil {
		t.Fatal(err)
	}
	signing, err := keyutil.MakeEllipticPrivateKeyPEM()
	if err != nil {
		t.Fatal(err)
	}
	certFile, keyFile := c.file(t, "apiserver.crt", certificate), c.file(t, "apiserver.key", key)
	signingFile := c.file(t, serviceAccountKey, signing)
	tokens := c.file(t, "tokens.csv", []byte(adminToken+",admin,admin,system:masters\n")) // token, user, UID, group

	port := env.Port(t)
	c.Config = &rest.Config{
		Host:            fmt.Sprintf("https://127.0.0.1:%d", port),
		BearerToken:     adminToken,
		TLSClientConfig: rest.TLSClientConfig{CAData: authority},
		QPS:             -1,
		WarningHandler:  rest.NoWarnings{}, // they are for whoever writes manifests
	}
	web, err := rest.HTTPClientFor(c.Config)
	if err != nil {
		t.Fatal(err)
	}
	c.env.StartReady(t, "kube-apiserver", exec.Command(bin, "--etcd-servers", etcd,
		"--bind-address", "127.0.0.1", "--advertise-address", "127.0.0.1", "--secure-port", fmt.Sprint(port),
		"--tls-cert-file", certFile, "--tls-private-key-file", keyFile, "--cert-dir", c.env.Dir(),
		"--authorization-mode", "RBAC", "--token-auth-file", tokens,
		"--service-account-issuer", "https://kubernetes.default.svc",
		"--service-account-key-file", signingFile, "--service-account-signing-key-file", signingFile,
		"--service-cluster-ip-range", "198.19.0.0/16", // of the block for benchmarks (RFC 2544): nobody's
		"--endpoint-reconciler-type", "none", // no endpoints for the kubernetes Service: they can't be on loopback
		"--disable-admission-plugins", "ServiceAccount", // pods are welcome before their ServiceAccount is there
		"--allow-privileged"), env.Answers200(web, c.Config.Host+"/readyz"))
}

// file writes a file of the cluster and gives its path.
func (c *Cluster) file(t testing.TB, name string, content []byte) string {
	t.Helper()
	path := filepath.Join(c.env.Dir(), name)
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}
