package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/homing-dev/homing/pkg/controller"
	"github.com/homing-dev/homing/pkg/endpoint"
	"github.com/homing-dev/homing/pkg/peer"
)

// namespaceFile is where Kubernetes tells a pod its namespace.
const namespaceFile = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"

// clusterFlags are those of `homing serve` that say which pools of which API server to serve.
type clusterFlags struct {
	kubeconfig, namespace, service, pod string
	elect                               bool
	ports                               portRanges
}

func (f *clusterFlags) register(set *pflag.FlagSet) {
	set.StringVar(&f.kubeconfig, "kubeconfig", os.Getenv("KUBECONFIG"), "the `file`, or list of files, that says how to reach the API server (default: $KUBECONFIG, or the pod's own access)")
	set.StringVar(&f.namespace, "namespace", os.Getenv("POD_NAMESPACE"), "the `namespace` whose InferencePools are served (default: $POD_NAMESPACE, or the pod's own)")
	set.StringVar(&f.service, "service-name", "homing", "the `name` of this install's Service: pools whose endpointPickerRef names it are served")
	set.Var(&f.ports, "pool-ports", "the `ports` of this install's Service, as 9002,9100-9131: a pool that names another, which no gateway would reach, is told so (default: any)")
	set.StringVar(&f.pod, "pod-name", os.Getenv("POD_NAME"), "the `name` of this replica's pod, which is left out when the Service tells where the others are (default: $POD_NAME)")
	set.BoolVar(&f.elect, "leader-elect", true, "agree by a Lease which replica writes the policies' status; false for a single replica. Every replica serves")
}

// check says what is wrong with the flags, and fills in the namespace.
func (f *clusterFlags) check() error {
	if f.namespace == "" {
		content, err := os.ReadFile(namespaceFile)
		if err != nil {
			return errors.New("no pools to serve: name a directory with --standalone, or outside of a cluster a --namespace and a --kubeconfig")
		}
		f.namespace = strings.TrimSpace(string(content))
	}
	for flag, name := range map[string]string{"--namespace": f.namespace, "--service-name": f.service} {
		if wrong := validation.IsDNS1123Label(name); len(wrong) > 0 {
			return fmt.Errorf("%s %q: %s", flag, name, wrong[0])
		}
	}
	return nil
}

// newController is the source of pools that follows an API server.
func newController(f *flags, store *endpoint.Store, registry prometheus.Registerer, peers *peer.Peers, log logr.Logger) (*controller.Controller, error) {
	config, err := restConfig(f.cluster.kubeconfig)
	if err != nil {
		return nil, err
	}
	options := controller.Options{
		Config: config, Namespace: f.cluster.namespace, Service: f.cluster.service,
		Store: store, Defaults: f.defaults, RefusePort: f.refusePort, Registerer: registry, Log: log,
		Pod: f.cluster.pod, Replicas: followReplicas(f, peers),
	}
	if f.cluster.elect {
		host, err := os.Hostname()
		if err != nil {
			return nil, fmt.Errorf("--leader-elect: %w", err)
		}
		options.Identity = host + "_" + string(uuid.NewUUID()) // a restarted container is another
	}
	return controller.New(options)
}

func restConfig(kubeconfig string) (*rest.Config, error) {
	if kubeconfig == "" {
		config, err := rest.InClusterConfig()
		if err != nil {
			return nil, fmt.Errorf("no --kubeconfig, and not in a pod: %w", err)
		}
		return config, nil
	}
	rules := &clientcmd.ClientConfigLoadingRules{ExplicitPath: kubeconfig}
	if list := filepath.SplitList(kubeconfig); len(list) > 1 { // as kubectl has it, where some need not be there
		rules = &clientcmd.ClientConfigLoadingRules{Precedence: list}
	}
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{}).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("--kubeconfig %s: %w", kubeconfig, err)
	}
	return config, nil
}
