package server

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/homing-dev/homing/pkg/endpoint"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	serving    = healthv1.HealthCheckResponse_SERVING
	notServing = healthv1.HealthCheckResponse_NOT_SERVING
)

func TestReadyAfterFirstSnapshot(t *testing.T) {
	h := start(t, nil)
	health := dial(t, h.HealthAddr().String())
	check := func(want healthv1.HealthCheckResponse_ServingStatus) {
		t.Helper()
		for _, service := range readinessServices() {
			if got := status(t, health, service); got != want {
				t.Errorf("%q: %v, want %v", service, got, want)
			}
		}
		if got := status(t, health, "liveness"); got != serving {
			t.Errorf("liveness: %v", got)
		}
	}
	check(notServing)
	if code, body := h.get("/readyz"); code != 503 || body != "not ready: waiting for the first snapshot of pools\n" {
		t.Errorf("readyz: %d %q", code, body)
	}
	if code, _ := h.get("/healthz"); code != 200 {
		t.Errorf("healthz: %d", code)
	}

	port := freePort(t)
	h.serve(map[string]uint16{"a": port})
	h.eventually("never ready", func() bool { code, _ := h.get("/readyz"); return code == 200 })
	check(serving)
	if got := status(t, dial(t, local(port)), "envoy.service.ext_proc.v3.ExternalProcessor"); got != serving {
		t.Errorf("on the pool's own port: %v", got)
	}
}

// An install without pools is ready: there is nothing it does not serve.
func TestReadyWithoutPools(t *testing.T) {
	h := start(t, nil)
	h.publish(nil)
	h.eventually("never ready", func() bool { code, _ := h.get("/readyz"); return code == 200 })
}

func TestPoolsComeAndGo(t *testing.T) {
	h := start(t, nil)
	a, b := freePort(t), freePort(t)
	h.serve(map[string]uint16{"a": a})
	old := openStream(t, dial(t, local(a)))
	mustAnswer(t, old, "a")

	h.serve(map[string]uint16{"a": a, "b": b})
	mustAnswer(t, openStream(t, dial(t, local(b))), "b")
	mustAnswer(t, old, "a")

	// a goes, and b takes over its port, while a stream of a is still under way.
	h.serve(map[string]uint16{"b": a})
	mustAnswer(t, openStream(t, dial(t, local(a))), "b")
	mustAnswer(t, old, "a")
	if got := h.up("a", a); got != -1 {
		t.Errorf("the metric of a pool that went is %v", got)
	}
	if got := h.up("b", b); got != -1 {
		t.Errorf("the metric of a port that was left is %v", got)
	}
	if c, err := net.Dial("tcp", local(b)); err == nil {
		_ = c.Close()
		t.Error("a port that was left still answers")
	}
	if err := old.CloseSend(); err != nil {
		t.Error(err)
	}
}

func TestRemovedPoolIsCutInTheEnd(t *testing.T) {
	h := start(t, func(o *Options) { o.Drain.Timeout = time.Millisecond })
	port := freePort(t)
	h.serve(map[string]uint16{"a": port})
	stream := openStream(t, dial(t, local(port)))
	mustAnswer(t, stream, "a")
	h.publish(nil)
	h.eventually("the stream goes on for ever", func() bool { _, err := ask(stream); return err != nil })
}

func TestPortTaken(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := uint16(taken.Addr().(*net.TCPAddr).Port)
	h := start(t, nil)
	h.publish(map[string]uint16{"a": port})
	h.eventually("the metric does not say so", func() bool { return h.up("a", port) == 0 })
	h.eventually("readiness does not say why", func() bool {
		code, body := h.get("/readyz")
		return code == 503 && strings.Contains(body, "pool ns/a: ") && strings.Contains(body, "address already in use")
	})

	// Tried again, and said once.
	h.eventually("not tried again", func() bool { return h.asked(port) >= 3 })
	if n := h.logged("A pool's port cannot be opened"); n != 1 {
		t.Errorf("said %d times", n)
	}
	if err := taken.Close(); err != nil {
		t.Fatal(err)
	}
	h.eventually("never opened", func() bool { return h.up("a", port) == 1 })
	h.eventually("never ready", func() bool { code, _ := h.get("/readyz"); return code == 200 })

	// A later pool that finds its port taken does not take readiness from those that are served.
	if taken, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	second := uint16(taken.Addr().(*net.TCPAddr).Port)
	h.publish(map[string]uint16{"a": port, "b": second})
	h.eventually("the metric does not say so", func() bool { return h.up("b", second) == 0 })
	if code, body := h.get("/readyz"); code != 200 {
		t.Errorf("readyz: %d %q", code, body)
	}
	h.publish(map[string]uint16{"a": port})
	h.eventually("the metric stays", func() bool { return h.up("b", second) == -1 })
}

// A socket that breaks is opened again.
func TestListenerFails(t *testing.T) {
	h := start(t, nil)
	port := freePort(t)
	h.serve(map[string]uint16{"a": port})
	mustAnswer(t, openStream(t, dial(t, local(port))), "a")
	h.breakSocket(port)
	h.eventually("the failure is not told", func() bool { return h.logged("A pool's port failed") == 1 })
	h.eventually("never opened again", func() bool {
		c, err := net.Dial("tcp", local(port))
		if err == nil {
			_ = c.Close()
		}
		return err == nil
	})
	mustAnswer(t, openStream(t, dial(t, local(port))), "a")
}

func TestOwnPortFails(t *testing.T) {
	h := start(t, nil)
	h.eventually("not serving", func() bool { code, _ := h.get("/healthz"); return code == 200 })
	if err := h.healthAt.Close(); err != nil {
		t.Fatal(err)
	}
	if err := h.wait(); err == nil || !strings.HasPrefix(err.Error(), "health: ") {
		t.Errorf("ended with %v", err)
	}
}

func TestDrain(t *testing.T) {
	h := start(t, func(o *Options) { o.Drain.Delay = 2 * time.Second })
	port := freePort(t)
	h.serve(map[string]uint16{"a": port})
	health, pool := dial(t, h.HealthAddr().String()), dial(t, local(port))
	h.eventually("never ready", func() bool { return status(t, health, "readiness") == serving })
	before := openStream(t, pool)
	mustAnswer(t, before, "a")

	h.stop()
	h.eventually("health goes on", func() bool { return status(t, health, "") == notServing })
	if got := status(t, health, "liveness"); got != serving {
		t.Errorf("liveness while draining: %v", got)
	}
	if code, body := h.get("/readyz"); code != 503 || body != "not ready: draining\n" {
		t.Errorf("readyz: %d %q", code, body)
	}
	during := openStream(t, pool) // gateways have not noticed yet
	mustAnswer(t, during, "a")
	mustAnswer(t, before, "a")

	h.eventually("new connections are taken for ever", func() bool {
		c, err := net.Dial("tcp", local(port))
		if err == nil {
			_ = c.Close()
		}
		return err != nil
	})
	mustAnswer(t, before, "a")
	mustAnswer(t, during, "a")
	select {
	case err := <-h.ended:
		t.Fatalf("it ended with two streams under way: %v", err)
	default:
	}
	for _, s := range []interface{ CloseSend() error }{before, during} {
		if err := s.CloseSend(); err != nil {
			t.Error(err)
		}
	}
	if err := h.wait(); err != nil {
		t.Error(err)
	}
}

// A service is told when its port has closed, and not before: another pool's end is none of its business.
func TestServicesAreToldOfTheDrain(t *testing.T) {
	told := make(chan string, 2)
	h := start(t, func(o *Options) {
		o.Register = func(ctx context.Context, pool endpoint.PoolName, r grpc.ServiceRegistrar) {
			echo(ctx, pool, r)
			context.AfterFunc(ctx, func() { told <- pool.Name })
		}
	})
	a, b := freePort(t), freePort(t)
	h.serve(map[string]uint16{"a": a, "b": b})
	h.publish(map[string]uint16{"b": b})
	if got := <-told; got != "a" {
		t.Errorf("pool %s was told when a was removed", got)
	}
	stream := openStream(t, dial(t, local(b)))
	mustAnswer(t, stream, "b")
	if len(told) > 0 {
		t.Error("pool b was told while it was served")
	}
	h.stop()
	if got := <-told; got != "b" {
		t.Errorf("pool %s was told at the end", got)
	}
	mustAnswer(t, stream, "b")
	if err := stream.CloseSend(); err != nil {
		t.Error(err)
	}
}

// A client that watches health on a pool's port would hold a graceful stop for as long as it likes.
func TestWatchDoesNotHoldTheDrain(t *testing.T) {
	h := start(t, func(o *Options) { o.Drain.Timeout = time.Hour })
	port := freePort(t)
	h.serve(map[string]uint16{"a": port})
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	for _, address := range []string{local(port), h.HealthAddr().String()} {
		watch, err := healthv1.NewHealthClient(dial(t, address)).Watch(ctx, &healthv1.HealthCheckRequest{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := watch.Recv(); err != nil {
			t.Fatal(err)
		}
	}
	h.stop()
	if err := h.wait(); err != nil {
		t.Error(err)
	}
}

func TestNewErrors(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	port := taken.Addr().(*net.TCPAddr).Port
	empty, odd := t.TempDir(), t.TempDir()
	for _, name := range []string{"tls.crt", "tls.key"} {
		if err := os.WriteFile(filepath.Join(odd, name), []byte("not PEM"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for name, tt := range map[string]struct {
		change func(*Options)
		want   string
		is     error
	}{
		"health port":    {func(o *Options) { o.HealthPort = port }, "health: listen tcp 127.0.0.1:", syscall.EADDRINUSE},
		"metrics port":   {func(o *Options) { o.MetricsPort = port }, "metrics: listen tcp 127.0.0.1:", syscall.EADDRINUSE},
		"no certificate": {func(o *Options) { o.TLS = TLSOptions{CertPath: empty} }, "certificate in " + empty + ": open " + filepath.Join(empty, "tls.crt"), os.ErrNotExist},
		"not a certificate": {func(o *Options) { o.TLS = TLSOptions{CertPath: odd} },
			"certificate in " + odd + ": tls: failed to find any PEM data in certificate input", nil},
	} {
		t.Run(name, func(t *testing.T) {
			registry := prometheus.NewRegistry()
			o := Options{Store: endpoint.NewStore(), BindAddress: "127.0.0.1", TLS: TLSOptions{Plaintext: true}, Registerer: registry, Gatherer: registry}
			tt.change(&o)
			_, err := New(o)
			if err == nil || !strings.HasPrefix(err.Error(), tt.want) {
				t.Errorf("got %v, want %q", err, tt.want)
			}
			if tt.is != nil && !errors.Is(err, tt.is) {
				t.Errorf("%v is not %v", err, tt.is)
			}
		})
	}
}

func TestProfilingOnlyWhenAsked(t *testing.T) {
	for _, on := range []bool{false, true} {
		h := start(t, func(o *Options) { o.Profiling = on })
		if code, _ := h.get("/debug/pprof/cmdline"); (code == 200) != on {
			t.Errorf("profiling %v: status %d", on, code)
		}
	}
}
