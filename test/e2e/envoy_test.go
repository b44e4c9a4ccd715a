package e2e

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	toolscache "k8s.io/client-go/tools/cache"

	"github.com/homing-dev/homing/test/env"
)

// followed are the clusters of Envoys whose endpoints are pods: what a Service would be.
var followed = map[string]struct {
	label, value string
	port         int
}{
	first:              {"app", first, 8000},
	second:             {"app", second, 8000},
	"homing-" + first:  {"app.kubernetes.io/name", "homing", 9002},
	"homing-" + second: {"app.kubernetes.io/name", "homing", 9100},
}

// followPods writes the endpoints of Envoy's clusters to files as pods become Ready and are deleted, until the test
// ends, and gives the folder. It is what a gateway's control plane does by EndpointSlices, which can't have loopback
// addresses.
func (r *rig) followPods(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	clients, err := kubernetes.NewForConfig(r.Config)
	env.Check(t, err)
	factory := informers.NewSharedInformerFactoryWithOptions(clients, 0, informers.WithNamespace(namespace))
	pods := factory.Core().V1().Pods()
	written := map[string][]byte{}
	update := func(any) {
		for name := range followed {
			if err := writeEndpoints(dir, name, pods.Lister().List, written); err != nil {
				t.Error(err)
			}
		}
	}
	_, err = pods.Informer().AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc: update, UpdateFunc: func(_, obj any) { update(obj) }, DeleteFunc: update,
	})
	env.Check(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	factory.Start(ctx.Done())
	t.Cleanup(func() { cancel(); factory.Shutdown() })
	for name := range followed {
		env.Eventually(t, func(context.Context) error {
			_, err := os.Stat(filepath.Join(dir, name+".json"))
			return err
		})
	}
	return dir
}

// writeEndpoints writes the file of a cluster if it has changed, in one step.
func writeEndpoints(dir, name string, list func(labels.Selector) ([]*corev1.Pod, error), written map[string][]byte) error {
	f := followed[name]
	pods, err := list(labels.SelectorFromSet(labels.Set{f.label: f.value}))
	if err != nil {
		return err
	}
	ips := []string{}
	for _, p := range pods {
		if serves(p) {
			ips = append(ips, p.Status.PodIP)
		}
	}
	slices.Sort(ips)
	members := make([]any, len(ips))
	for i, ip := range ips {
		members[i] = map[string]any{"endpoint": map[string]any{"address": map[string]any{
			"socket_address": map[string]any{"address": ip, "port_value": f.port}}}}
	}
	text, err := json.Marshal(map[string]any{"resources": []any{map[string]any{
		"@type":        "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment",
		"cluster_name": name, "endpoints": []any{map[string]any{"lb_endpoints": members}},
	}}})
	if err != nil || string(text) == string(written[name]) {
		return err
	}
	written[name] = text
	temp := filepath.Join(dir, "."+name)
	if err := os.WriteFile(temp, text, 0o600); err != nil {
		return err
	}
	return os.Rename(temp, filepath.Join(dir, name+".json"))
}

// envoy runs an Envoy with the configuration that is shipped, whose pool and picker are pods. Their traffic is
// encrypted on the way to Homing, as the chart has it by default.
func (r *rig) envoy(t *testing.T, pool string, edit func(env.EnvoyConfig)) *env.Envoy {
	t.Helper()
	envoy, err := r.env.Envoy(t.Context(), env.EnvoyOptions{PickerTLS: true, Picker: "127.0.0.1:1", Edit: func(c env.EnvoyConfig) {
		c["node"] = map[string]any{"id": "e2e", "cluster": "e2e"}
		r.follow(c.Cluster("pool"), pool)
		r.follow(c.Cluster("picker"), "homing-"+pool)
		c.ConnectionManager()["route_config"].(map[string]any)["response_headers_to_add"] = []any{map[string]any{"header": map[string]any{"key": upstream, "value": "%UPSTREAM_REMOTE_ADDRESS%"}}}
		if edit != nil {
			edit(c)
		}
	}})
	env.Check(t, err)
	return envoy
}

// upstream is the header by which Envoys tell where they sent a request.
const upstream = "x-upstream"

// follow has a cluster's endpoints come from its file.
func (r *rig) follow(cluster map[string]any, name string) {
	delete(cluster, "load_assignment")
	cluster["type"] = "EDS"
	cluster["eds_cluster_config"] = map[string]any{"service_name": name, "eds_config": map[string]any{
		"resource_api_version": "V3",
		"path_config_source": map[string]any{
			"path": filepath.Join(r.eds, name+".json"), "watched_directory": map[string]any{"path": r.eds},
		},
	}}
}

// byHeader has Envoy send each request to the address in the endpoint header and nowhere else, without a second try: no
// endpoints of its own, no fallbacks, no metadata, the response's body by way of Homing, TLS without ALPN. So does Envoy AI
// Gateway: internal/extensionserver/inferencepool.go and post_cluster_modify.go of envoyproxy/ai-gateway.
func byHeader(c env.EnvoyConfig) {
	pool := c.Cluster("pool")
	delete(pool, "eds_cluster_config")
	delete(pool, "load_balancing_policy")
	pool["type"] = "ORIGINAL_DST"
	pool["lb_policy"] = "CLUSTER_PROVIDED"
	pool["original_dst_lb_config"] = map[string]any{"use_http_header": true, "http_header_name": "x-gateway-destination-endpoint"}
	delete(c.Route(), "retry_policy")
	delete(c.ExtProc(), "metadata_options")
	delete(c.ExtProc(), "response_attributes")
	c.ExtProc()["processing_mode"].(map[string]any)["response_body_mode"] = "FULL_DUPLEX_STREAMED"
	tls := c.Cluster("picker")["transport_socket"].(map[string]any)["typed_config"].(map[string]any)
	delete(tls, "common_tls_context")
}
