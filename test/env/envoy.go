package env

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"

	"sigs.k8s.io/yaml"
)

// EnvoyOptions say what of config/envoy/envoy.yaml is replaced.
type EnvoyOptions struct {
	Picker      string   // ip:port of the picker
	PickerTLS   bool     // the picker speaks TLS, by any certificate
	Endpoints   []string // ip:port of each model server
	Concurrency int      // worker threads, 0 for 2
	// Plain adds a second listener that serves the same endpoints by round robin, without the picker.
	Plain bool
	// Edit changes the configuration further, last.
	Edit func(EnvoyConfig)
}

// Envoy is a running Envoy.
type Envoy struct {
	*Process
	URL   string // http://ip:port, by way of the picker
	Plain string // the same without it, where asked for
	Admin string // the admin interface
}

// Envoy starts the pinned Envoy with the configuration that config/envoy ships, on free ports, and waits
// until it serves.
func (e *Env) Envoy(ctx context.Context, o EnvoyOptions) (*Envoy, error) {
	config, err := ReadEnvoyConfig(filepath.Join(Root(), "config/envoy/envoy.yaml"))
	if err != nil {
		return nil, err
	}
	ports, err := FreePorts(3)
	if err != nil {
		return nil, err
	}
	envoy, err := config.apply(o, ports)
	if err != nil {
		return nil, err
	}
	text, err := json.MarshalIndent(config, "", " ")
	if err != nil {
		return nil, err
	}
	file := e.file(fmt.Sprintf("envoy-%d.json", ports[0]))
	if err := os.WriteFile(file, text, 0o600); err != nil {
		return nil, err
	}
	if o.Concurrency == 0 {
		o.Concurrency = 2
	}
	envoy.Process, err = e.StartEnvoy(ctx, envoy.Admin, "-c", file, "--concurrency", strconv.Itoa(o.Concurrency))
	return envoy, err
}

// StartEnvoy starts the pinned Envoy with arguments that name its configuration, and waits until it serves,
// as its admin interface at http://ip:port says.
func (e *Env) StartEnvoy(ctx context.Context, admin string, args ...string) (*Process, error) {
	binary, err := e.EnvoyBinary(ctx)
	if err != nil {
		return nil, err
	}
	p, err := e.Start("envoy", exec.Command(binary, append([]string{
		"--use-dynamic-base-id", "--log-level", "warning", "--file-flush-interval-msec", "50",
	}, args...)...))
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	return p, p.Await(ctx, 50*time.Millisecond, Answers200(http.DefaultClient, admin+"/ready"))
}

// EnvoyBinary is the path of the pinned Envoy, which it fetches if need be.
func (e *Env) EnvoyBinary(ctx context.Context) (string, error) {
	return e.script(ctx, "envoy/envoy.sh")
}

// EnvoyConfig is an Envoy configuration as plain JSON values. Its methods panic where the part they
// name is missing.
type EnvoyConfig map[string]any

// ReadEnvoyConfig reads a configuration in YAML or JSON.
func ReadEnvoyConfig(path string) (EnvoyConfig, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	config := EnvoyConfig{}
	return config, yaml.Unmarshal(text, &config)
}

// apply replaces what the options name, and puts the listener, the admin interface and the plain
// listener on the three ports.
func (c EnvoyConfig) apply(o EnvoyOptions, ports []int) (*Envoy, error) {
	envoy := &Envoy{URL: loopbackURL(ports[0]), Admin: loopbackURL(ports[1])}
	c["admin"] = map[string]any{"address": loopback(ports[1])}
	c.Listener()["address"] = loopback(ports[0])
	if err := setEndpoints(c.Cluster("pool"), o.Endpoints); err != nil {
		return nil, err
	}
	if err := setEndpoints(c.Cluster("picker"), []string{o.Picker}); err != nil {
		return nil, err
	}
	if o.PickerTLS {
		c.Cluster("picker")["transport_socket"] = map[string]any{
			"name": "envoy.transport_sockets.tls",
			"typed_config": map[string]any{
				"@type":              "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext",
				"common_tls_context": map[string]any{"alpn_protocols": []any{"h2"}},
			},
		}
	}
	if o.Plain {
		envoy.Plain = loopbackURL(ports[2])
		c.addPlain(ports[2])
	}
	if o.Edit != nil {
		o.Edit(c)
	}
	return envoy, nil
}

// Listener is the listener that serves by way of the picker.
func (c EnvoyConfig) Listener() map[string]any { return dig(c, "static_resources", "listeners", 0) }

// ConnectionManager is that listener's HTTP connection manager.
func (c EnvoyConfig) ConnectionManager() map[string]any {
	return dig(c.Listener(), "filter_chains", 0, "filters", 0, "typed_config")
}

// ExtProc is the configuration of its ext_proc filter.
func (c EnvoyConfig) ExtProc() map[string]any {
	return dig(c.ConnectionManager(), "http_filters", 0, "typed_config")
}

// Route is the action of its only route.
func (c EnvoyConfig) Route() map[string]any {
	return dig(c.ConnectionManager(), "route_config", "virtual_hosts", 0, "routes", 0, "route")
}

// Cluster is the cluster of that name, "pool" or "picker".
func (c EnvoyConfig) Cluster(name string) map[string]any {
	for _, cluster := range dig(c, "static_resources")["clusters"].([]any) {
		if cluster := cluster.(map[string]any); cluster["name"] == name {
			return cluster
		}
	}
	panic("no cluster " + name)
}

// copy is the same configuration again, of which nothing is shared.
func (c EnvoyConfig) copy() EnvoyConfig {
	other := EnvoyConfig{}
	text, err := json.Marshal(c)
	if err == nil {
		err = json.Unmarshal(text, &other)
	}
	if err != nil {
		panic(err) // it was JSON just now
	}
	return other
}

// add appends to the listeners or the clusters.
func (c EnvoyConfig) add(kind string, resource map[string]any) {
	resources := dig(c, "static_resources")
	resources[kind] = append(resources[kind].([]any), resource)
}

// AddPool serves another pool under /NAME/, by the same filter: a route of its own names the pool's cluster
// and the picker's port for it.
func (c EnvoyConfig) AddPool(name, picker string, endpoints []string) error {
	other := c.copy()
	pool, ask := other.Cluster("pool"), other.Cluster("picker")
	pool["name"], ask["name"] = "pool-"+name, "picker-"+name
	if err := errors.Join(setEndpoints(pool, endpoints), setEndpoints(ask, []string{picker})); err != nil {
		return err
	}
	c.add("clusters", pool)
	c.add("clusters", ask)

	action := other.Route()
	action["cluster"] = pool["name"]
	host := dig(c.ConnectionManager(), "route_config", "virtual_hosts", 0)
	host["routes"] = append([]any{map[string]any{
		"match": map[string]any{"prefix": "/" + name + "/"},
		"route": action,
		"typed_per_filter_config": map[string]any{"envoy.filters.http.ext_proc": map[string]any{
			"@type": "type.googleapis.com/envoy.extensions.filters.http.ext_proc.v3.ExtProcPerRoute",
			"overrides": map[string]any{"grpc_service": map[string]any{
				"envoy_grpc": map[string]any{"cluster_name": ask["name"]}, "timeout": "0s",
			}},
		}},
	}}, host["routes"].([]any)...)
	return nil
}

// addPlain copies the listener and its pool, and takes the picker out of the copies.
func (c EnvoyConfig) addPlain(port int) {
	plain := c.copy()
	listener, cluster := plain.Listener(), plain.Cluster("pool")
	listener["name"], cluster["name"] = "plain", "plain"
	listener["address"] = loopback(port)
	plain.Route()["cluster"] = "plain"
	manager := plain.ConnectionManager()
	manager["http_filters"] = manager["http_filters"].([]any)[1:]
	delete(cluster, "load_balancing_policy") // the default is round robin

	c.add("listeners", listener)
	c.add("clusters", cluster)
}

// setEndpoints makes these addresses the endpoints of a cluster.
func setEndpoints(cluster map[string]any, addrs []string) error {
	endpoints := make([]any, 0, len(addrs))
	for _, addr := range addrs {
		host, portText, err := net.SplitHostPort(addr)
		if err != nil {
			return err
		}
		port, err := strconv.Atoi(portText)
		if err != nil {
			return fmt.Errorf("address %s: %w", addr, err)
		}
		endpoints = append(endpoints, map[string]any{"endpoint": map[string]any{"address": socketAddress(host, port)}})
	}
	dig(cluster, "load_assignment", "endpoints", 0)["lb_endpoints"] = endpoints
	return nil
}

// dig follows names and indexes down JSON values to an object.
func dig(value any, path ...any) map[string]any {
	if c, ok := value.(EnvoyConfig); ok {
		value = map[string]any(c)
	}
	for _, step := range path {
		switch step := step.(type) {
		case string:
			value = value.(map[string]any)[step]
		case int:
			value = value.([]any)[step]
		}
	}
	return value.(map[string]any)
}

func loopbackURL(port int) string { return fmt.Sprintf("http://127.0.0.1:%d", port) }

func loopback(port int) map[string]any { return socketAddress("127.0.0.1", port) }

func socketAddress(host string, port int) map[string]any {
	return map[string]any{"socket_address": map[string]any{"address": host, "port_value": port}}
}
