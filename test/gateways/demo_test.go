package gateways

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/homing-dev/homing/test/cluster"
	"github.com/homing-dev/homing/test/env"
	"github.com/homing-dev/homing/test/netns"
)

func TestMain(m *testing.M) { os.Exit(netns.Run(m, Prepare)) }

// demo is a cluster with the objects of demo.yaml, model servers on the addresses of its pods, and Homing.
type demo struct {
	*cluster.Cluster
	models []string // ip:port
}

// startCluster runs a cluster with pods and the objects of demo.yaml.
func startCluster(t *testing.T) *demo {
	d := &demo{Cluster: cluster.Start(t)}
	d.InstallCRDs(t, cluster.GatewayCRDs(t), cluster.InferenceCRDs(t))
	d.RunPods(t, netns.Pods)
	d.AddNode(t, "node-0", nil)
	d.ApplyFiles(t, File("demo.yaml"))
	for _, ip := range d.podIPs(t, "model", 3) {
		d.models = append(d.models, serveModel(t, ip+":8000"))
	}
	d.podIPs(t, "homing", 1)
	return d
}

// podIPs waits for n pods with this app label that have addresses.
func (d *demo) podIPs(t *testing.T, app string, n int) []string {
	t.Helper()
	var ips []string
	env.Eventually(t, func(ctx context.Context) error {
		var pods corev1.PodList
		if err := d.Client.List(ctx, &pods, client.InNamespace("demo"), client.MatchingLabels{"app": app}); err != nil {
			return err
		}
		ips = nil
		for _, p := range pods.Items {
			if p.Status.PodIP != "" {
				ips = append(ips, p.Status.PodIP)
			}
		}
		if len(ips) != n {
			return fmt.Errorf("pods of %s at %v, want %d", app, ips, n)
		}
		return nil
	})
	return ips
}

// serveModel runs a model server that says in each answer who it is, and gives its address.
func serveModel(t *testing.T, address string) string {
	t.Helper()
	cluster.Serve(t, address, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, err := io.Copy(io.Discard, r.Body); err != nil {
			return // the client has gone
		}
		w.Header().Set("x-served-by", address)
		_, _ = io.WriteString(w, "{}")
	}))
	return address
}

// startHoming runs Homing from files that say the same as the cluster.
func startHoming(t *testing.T, e *env.Env, models []string, args ...string) *env.Homing {
	t.Helper()
	files, err := e.Files()
	if err != nil {
		t.Fatal(err)
	}
	if err := files.WritePool(env.Pool{Name: "model", Port: 9002, Endpoints: models}); err != nil {
		t.Fatal(err)
	}
	if err := files.WritePolicy("model", env.Policy{Strategy: "PrefixAware", PrefixLength: 1024}); err != nil {
		t.Fatal(err)
	}
	begun := time.Now()
	h, err := e.Homing(t.Context(), files, append([]string{"--bind-address", "0.0.0.0"}, args...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("homing ready in %.1f s, its build included", time.Since(begun).Seconds())
	return h
}

// ask sends a chat whose prompt begins with prefix, and gives who served it.
func ask(ctx context.Context, url, prefix string) (string, error) {
	body, err := json.Marshal(map[string]any{"model": "m", "messages": []any{map[string]any{
		"role": "user", "content": prefix + strings.Repeat(" all happy families are alike", 100)}}})
	if err != nil {
		return "", err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/v1/chat/completions", strings.NewReader(string(body)))
	if err != nil {
		return "", err
	}
	req.Header.Set("content-type", "application/json")
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	answer, err := io.ReadAll(res.Body)
	if err != nil {
		return "", err
	}
	if res.StatusCode != http.StatusOK {
		return "", fmt.Errorf("%s: %s", res.Status, answer)
	}
	return res.Header.Get("x-served-by"), nil
}

// followsPicks asks in turn for thirty prompts, three times. Each prompt must be served at one place, each model
// server must serve some, and Homing must have seen every request: what no round robin does.
func followsPicks(t *testing.T, g *Gateway, models []string) {
	t.Helper()
	begun := time.Now()
	env.Eventually(t, func(ctx context.Context) error {
		_, err := ask(ctx, g.URL, "warm-up")
		return err
	})
	t.Logf("first answer %.1f s after the gateway", time.Since(begun).Seconds())
	homes := map[string]string{}
	for range 3 {
		for n := range 30 {
			prefix := fmt.Sprintf("prompt %d", n)
			served, err := ask(t.Context(), g.URL, prefix)
			if err != nil {
				t.Fatal(err)
			}
			if home := homes[prefix]; home != "" && home != served {
				t.Errorf("%s was served by %s, then by %s", prefix, home, served)
			}
			homes[prefix] = served
		}
	}
	share := map[string]int{}
	for _, home := range homes {
		share[home]++
	}
	t.Logf("prompts by model server: %v", share)
	for _, m := range models {
		if share[m] == 0 {
			t.Errorf("no prompt went to %s", m)
		}
	}
}
