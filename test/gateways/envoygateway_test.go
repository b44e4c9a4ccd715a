package gateways

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/homing-dev/homing/test/env"
	"github.com/homing-dev/homing/test/model"
)

func TestEnvoyGateway(t *testing.T) {
	in := newInstall(t, "--set", "tls.mode=Plaintext")
	eg := StartEnvoyGateway(t, in.Cluster)
	in.fallbackHeader(t, true)
	in.ApplyFiles(t, Config("envoy-gateway/kubernetes.yaml"))
	g := eg.StartEnvoy(t, namespace, "inference-gateway")
	in.meet(t, g)
	t.Run("picks", in.followsPicks)
	t.Run("streams", in.countsStreams)
	t.Run("many", in.holdsMany)
	t.Run("aborts", in.releasesAborted)
	t.Run("second choice", func(t *testing.T) { in.takesSecondChoice(t, false) })
	t.Run("request trailers", in.doublesBody)
	t.Run("rollout of Homing", func(t *testing.T) { in.survives(t, true, in.restart) })
	t.Run("crash of Homing", func(t *testing.T) { in.survives(t, false, in.crash) })
	t.Run("without Homing", func(t *testing.T) { in.away(t, false) })
	t.Run("patched", func(t *testing.T) {
		in.ApplyFiles(t, Config("envoy-gateway/patch.yaml"))
		env.Check(t, in.Apply(t.Context(), withoutResponseBody(t, Config("envoy-gateway/kubernetes.yaml"))))
		isPatched(t, g)
		in.reconnect()
		in.followsPicks(t)
		in.countsStreams(t)
		in.releasesAborted(t)
		in.takesSecondChoice(t, true)
	})
}

func TestEnvoyGatewayStandalone(t *testing.T) {
	h := &beside{site: &site{models: &model.Servers{}, servers: map[string][]*model.Server{}}, env: env.For(t)}
	h.serve(t, large, "127.0.0.2", "127.0.0.3", "127.0.0.4")
	h.serve(t, small, "127.0.0.5", "127.0.0.6")
	h.start(t, "--secure-serving=false")
	g, resources := StartEnvoyGatewayFiles(t, Config("envoy-gateway/standalone/gateway.yaml"), Config("envoy-gateway/standalone/homing.yaml"))
	h.meet(t, g)
	t.Run("picks", h.followsPicks)
	t.Run("streams", h.countsStreams)
	t.Run("many", h.holdsMany)
	t.Run("aborts", h.releasesAborted)
	t.Run("second choice", func(t *testing.T) { h.takesSecondChoice(t, false) })
	t.Run("restart of Homing", func(t *testing.T) { h.survives(t, false, h.restart) })
	t.Run("crash of Homing", func(t *testing.T) { h.survives(t, false, h.crash) })
	t.Run("patched", func(t *testing.T) {
		// From files, Envoy Gateway 1.9.1 names these clusters without the policy's kind.
		patch := strings.ReplaceAll(string(readFile(t, Config("envoy-gateway/patch.yaml"))), "name: envoyextensionpolicy/", "name: /")
		h.follow(t, resources, "patch.yaml", []byte(patch))
		h.follow(t, resources, "gateway.yaml", withoutResponseBody(t, Config("envoy-gateway/standalone/gateway.yaml")))
		isPatched(t, g)
		h.reconnect()
		h.followsPicks(t)
		h.countsStreams(t)
		h.releasesAborted(t)
		h.takesSecondChoice(t, true)
	})
	t.Run("TLS", func(t *testing.T) {
		h.process.Stop()
		h.start(t, "--secure-serving=true")
		h.follow(t, resources, "homing.yaml", readFile(t, Config("envoy-gateway/standalone/homing-tls.yaml")))
		h.reconnect()
		h.answers(t)
		h.followsPicks(t)
		h.countsStreams(t)
	})
}

// beside is a site without Kubernetes: Homing is a process beside the gateway.
type beside struct {
	*site
	env     *env.Env
	args    []string
	process *env.Homing
}

// serve starts the model servers of a pool, as config/gateways/envoy-gateway/standalone/pools names them.
func (b *beside) serve(t *testing.T, pool string, ips ...string) {
	t.Helper()
	for i, ip := range ips {
		m, err := b.models.Serve(fmt.Sprintf("%s-%d", pool, i), ip+":8000")
		env.Check(t, err)
		t.Cleanup(m.Crash)
		b.servers[pool] = append(b.servers[pool], m)
	}
}

func (b *beside) start(t *testing.T, args ...string) {
	t.Helper()
	files := &env.Files{Dir: Config("envoy-gateway/standalone/pools")}
	var err error
	b.args = args
	b.process, err = b.env.Homing(t.Context(), files, args...)
	env.Check(t, err)
	b.homing = func(ctx context.Context) ([]env.Metrics, error) {
		m, err := b.process.Metrics(ctx)
		return []env.Metrics{m}, err
	}
}

// restart stops Homing, as a system's service manager does, and starts it again.
func (b *beside) restart(t *testing.T) {
	t.Helper()
	begun := time.Now()
	b.process.Stop()
	b.start(t, b.args...)
	t.Logf("Homing was away for %.1f s", time.Since(begun).Seconds())
}

func (b *beside) crash(t *testing.T) {
	t.Helper()
	env.Check(t, b.process.Signal(syscall.SIGKILL))
	<-b.process.Done()
	b.start(t, b.args...)
}

// follow replaces a file that Envoy Gateway follows, in one step.
func (b *beside) follow(t *testing.T, dir, name string, text []byte) {
	t.Helper()
	temp := filepath.Join(b.env.Dir(), name)
	env.Check(t, os.WriteFile(temp, text, 0o600))
	env.Check(t, os.Rename(temp, filepath.Join(dir, name)))
}

func readFile(t *testing.T, path string) []byte {
	t.Helper()
	text, err := os.ReadFile(path)
	env.Check(t, err)
	return text
}

// withoutResponseBody is a file of objects, with what patch.yaml says to write where it is applied.
func withoutResponseBody(t *testing.T, path string) []byte {
	t.Helper()
	const body = "response: {body: FullDuplexStreamed}"
	text := string(readFile(t, path))
	if !strings.Contains(text, body) {
		t.Fatalf("%s has no %q", path, body)
	}
	return []byte(strings.ReplaceAll(text, body, "response: {}"))
}

// isPatched waits until Envoy's configuration is what patch.yaml says, of both pools.
func isPatched(t *testing.T, g *Gateway) {
	t.Helper()
	begun := time.Now()
	g.has(t, map[string]int{
		`"response_trailer_mode":"SEND"`:              2,
		`"response_body_mode":"FULL_DUPLEX_STREAMED"`: 0,
		`"selected_host_key":{`:                       2,
		`"override_host_sources":[{"metadata":{`:      2,
		`"max_outbound_control_frames":100000`:        2,
	})
	t.Logf("patched after %.1f s", time.Since(begun).Seconds())
}
