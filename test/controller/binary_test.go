package controller

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os/exec"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	inferencev1 "sigs.k8s.io/gateway-api-inference-extension/api/v1"

	"github.com/homing-dev/homing/test/env"
)

// The program itself, from a kubeconfig of its ServiceAccount: it says what it waits for, is ready with its
// pools' ports open, which follow the pools, and drains at the end.
func (r *rig) testBinary(t *testing.T) {
	const ns = "binary"
	r.bareNamespace(t, ns)
	ports, err := env.FreePorts(5)
	env.Check(t, err)
	r.apply(t, pool(ns, "llama", ports[0], ""))
	e := env.For(t)
	binary, err := e.HomingBinary()
	env.Check(t, err)
	cmd := exec.Command(binary, "serve", "--kubeconfig", r.Kubeconfig(t, r.ServiceAccount(t, ns, "homing")), "--namespace", ns,
		"--bind-address", "127.0.0.1", "--grpc-health-port", fmt.Sprint(ports[1]), "--metrics-port", fmt.Sprint(ports[2]), "--peer-port", fmt.Sprint(ports[4]), "--drain-delay", "100ms")
	web := fmt.Sprintf("http://127.0.0.1:%d", ports[2])
	p := e.StartReady(t, "homing", cmd, func(ctx context.Context) error {
		return page(ctx, web+"/readyz", http.StatusServiceUnavailable, `cannot list resource "pods"`)
	})
	r.grant(t, ns)
	env.Eventually(t, func(ctx context.Context) error { return page(ctx, web+"/readyz", http.StatusOK, "ok") })

	open := func(port int, want bool) {
		t.Helper()
		env.Eventually(t, func(context.Context) error {
			conn, err := net.DialTimeout("tcp", fmt.Sprintf("127.0.0.1:%d", port), time.Second)
			if err == nil {
				conn.Close()
			}
			if open := err == nil; open != want {
				return fmt.Errorf("port %d open: %t, want %t", port, open, want)
			}
			return nil
		})
	}
	open(ports[0], true)
	r.apply(t, pool(ns, "mistral", ports[3], ""))
	open(ports[3], true)
	env.Check(t, r.api.Delete(t.Context(), &inferencev1.InferencePool{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "mistral"}}))
	open(ports[3], false)
	open(ports[0], true)
	for _, metric := range []string{`homing_watch_up{resource="pods"} 1`, "homing_publication_seconds_count"} {
		env.Eventually(t, func(ctx context.Context) error { return page(ctx, web+"/metrics", http.StatusOK, metric) })
	}
	p.Stop()
	if err := p.Err(); err != nil {
		t.Errorf("after SIGTERM: %v, want a clean end", err)
	}
}

// page says whether a page has this status and these words.
func page(ctx context.Context, url string, status int, words string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		return err
	}
	if res.StatusCode != status || !strings.Contains(string(body), words) {
		return fmt.Errorf("GET %s: %s: %.300s; want %d and %q", url, res.Status, body, status, words)
	}
	return nil
}
