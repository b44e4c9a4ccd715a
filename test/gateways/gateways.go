// Package gateways runs other projects' gateways for tests: their control planes as they are, against a cluster of
// [cluster], with the pinned Envoy as data plane.
//
// Invariant: it runs inside a network of its own ([netns]). There pods and gateways have their usual ports on
// addresses of their own, as in a cluster: a gateway's Envoy listens on its pod's address, and a test's model servers
// and Homing on theirs. The objects that a user applies are the files of config/gateways, as docs/gateways shows them.
package gateways

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/homing-dev/homing/test/cluster"
	"github.com/homing-dev/homing/test/env"
)

// Gateway is a gateway's data plane.
type Gateway struct {
	URL   string // http://ip:port of its listener
	Admin string // Envoy's admin interface, http://ip:port
}

// has waits until Envoy goes by a configuration that has each text so many times.
func (g *Gateway) has(t testing.TB, counts map[string]int) {
	t.Helper()
	env.Eventually(t, func(ctx context.Context) error {
		text, err := g.configuration(ctx)
		if err != nil {
			return err
		}
		for want, n := range counts {
			if got := strings.Count(text, want); got != n {
				return fmt.Errorf("the configuration of Envoy has %d times %s, want %d", got, want, n)
			}
		}
		return nil
	})
}

// configuration is what Envoy goes by, as JSON: neither what it has replaced and still drains, nor what is not in force
// yet.
func (g *Gateway) configuration(ctx context.Context) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, g.Admin+"/config_dump", nil)
	if err != nil {
		return "", err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	var dump any
	if err := json.NewDecoder(res.Body).Decode(&dump); err != nil {
		return "", fmt.Errorf("the configuration of Envoy: %w", err)
	}
	keepActive(dump)
	text, err := json.Marshal(dump)
	return string(text), err
}

func keepActive(value any) {
	switch value := value.(type) {
	case map[string]any:
		for _, key := range []string{"draining_state", "warming_state", "dynamic_warming_clusters"} {
			delete(value, key)
		}
		for _, v := range value {
			keepActive(v)
		}
	case []any:
		for _, v := range value {
			keepActive(v)
		}
	}
}

// File is the path of a file of this package's folder.
func File(name string) string { return filepath.Join(env.Root(), "test/gateways", name) }

// Config is the path of a file of config/gateways.
func Config(name string) string { return filepath.Join(env.Root(), "config/gateways", name) }

// The modules whose charts and CRDs the gateways want.
var (
	istioSource        = cluster.Module{Path: "istio.io/istio", In: "hack/tools/istio"}
	envoyGatewaySource = cluster.Module{Path: "github.com/envoyproxy/gateway", In: "hack/tools/envoygateway"}
)

// Prepare fetches and builds all that tests of gateways run, before they go into their network.
func Prepare() error {
	if err := cluster.Prepare(); err != nil {
		return err
	}
	for _, m := range []cluster.Module{istioSource, envoyGatewaySource} {
		if _, err := m.Fetch(); err != nil {
			return err
		}
	}
	if _, err := cluster.Ensure("pilot-discovery", "envoy-gateway"); err != nil {
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
	_, err = e.EnvoyBinary(context.Background())
	return err
}

// gatewayPod waits for the one pod with these labels, as its gateway's control plane has made it, and an address.
func gatewayPod(t testing.TB, c *cluster.Cluster, namespace string, labels client.MatchingLabels) corev1.Pod {
	t.Helper()
	var pods corev1.PodList
	env.Eventually(t, func(ctx context.Context) error {
		if err := c.Client.List(ctx, &pods, client.InNamespace(namespace), labels); err != nil {
			return err
		}
		if len(pods.Items) != 1 || pods.Items[0].Status.PodIP == "" {
			return fmt.Errorf("%d pods %v in %s, want one with an address", len(pods.Items), labels, namespace)
		}
		return nil
	})
	return pods.Items[0]
}

// fill reads a file of this folder, replaces each @KEY@, and gives the path of the result.
func fill(t testing.TB, e *env.Env, name string, values map[string]string) string {
	t.Helper()
	text, err := os.ReadFile(File(name))
	if err != nil {
		t.Fatal(err)
	}
	var pairs []string
	for key, value := range values {
		pairs = append(pairs, "@"+key+"@", value)
	}
	path := filepath.Join(e.Dir(), strings.ReplaceAll(name, "/", "-"))
	if err := os.WriteFile(path, []byte(strings.NewReplacer(pairs...).Replace(string(text))), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// startEnvoy runs a gateway's Envoy until the test ends, and waits until it is configured.
func startEnvoy(t testing.TB, e *env.Env, url string, admin int, args ...string) *Gateway {
	t.Helper()
	begun := time.Now()
	g := &Gateway{URL: url, Admin: fmt.Sprintf("http://127.0.0.1:%d", admin)}
	if _, err := e.StartEnvoy(t.Context(), g.Admin, args...); err != nil {
		t.Fatal(err)
	}
	t.Logf("the gateway's Envoy ready in %.1f s", time.Since(begun).Seconds())
	return g
}
