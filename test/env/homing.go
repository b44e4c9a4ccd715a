package env

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
)

// Homing is a running `homing serve --standalone`.
type Homing struct {
	*Process
	MetricsURL string // the metrics page
	HealthAddr string // ip:port of the gRPC health service
}

// Homing builds this checkout's homing, starts it on the files, on free ports of 127.0.0.1 and in
// plaintext, and waits until it says that it is ready. args are more flags, of which the last wins.
func (e *Env) Homing(ctx context.Context, files *Files, args ...string) (*Homing, error) {
	binary, err := e.HomingBinary()
	if err != nil {
		return nil, err
	}
	ports, err := FreePorts(2)
	if err != nil {
		return nil, err
	}
	h := &Homing{
		HealthAddr: net.JoinHostPort("127.0.0.1", strconv.Itoa(ports[0])),
		MetricsURL: loopbackURL(ports[1]) + "/metrics",
	}
	h.Process, err = e.Start("homing", exec.Command(binary, append([]string{
		"serve", "--standalone", files.Dir, "--bind-address", "127.0.0.1", "--secure-serving=false",
		"--grpc-health-port", strconv.Itoa(ports[0]), "--metrics-port", strconv.Itoa(ports[1]),
		"--drain-delay", "0s", // nobody balances load here
	}, args...)...))
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	return h, h.Await(ctx, 50*time.Millisecond, h.serving)
}

// Metrics reads Homing's metrics.
func (h *Homing) Metrics(ctx context.Context) (Metrics, error) { return Scrape(ctx, h.MetricsURL) }

// serving says nil once the health service answers SERVING.
func (h *Homing) serving(ctx context.Context) error {
	conn, err := grpc.NewClient(h.HealthAddr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	answer, err := healthpb.NewHealthClient(conn).Check(ctx, &healthpb.HealthCheckRequest{})
	if err != nil {
		return err
	}
	if answer.Status != healthpb.HealthCheckResponse_SERVING {
		return fmt.Errorf("health: %s", answer.Status)
	}
	return nil
}

// HomingBinary builds this checkout's homing, once per program, and gives its path.
func (e *Env) HomingBinary() (string, error) {
	begun := time.Now()
	stopTicker := e.tick(5*time.Second, func() string {
		return fmt.Sprintf("homing: building, %.0f s so far", time.Since(begun).Seconds())
	})
	defer stopTicker()
	return buildHoming()
}

// buildHoming builds cmd/homing once per program, with the race detector where the program has it. The
// binary is put in its place in one step, so that programs may build at the same time.
var buildHoming = sync.OnceValues(func() (string, error) {
	name, args := "homing", []string{"build", "-o"}
	if raceEnabled {
		name, args = "homing-race", []string{"build", "-race", "-o"}
	}
	binary := filepath.Join(cacheDir(), "bin", name)
	own := fmt.Sprintf("%s-%d", binary, os.Getpid())
	cmd := exec.Command("go", append(args, own, "./cmd/homing")...)
	cmd.Dir = Root()
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("building homing: %w\n%s", err, out)
	}
	return binary, os.Rename(own, binary)
})

// Files is the folder of a `homing serve --standalone`.
type Files struct{ Dir string }

// Pool is what the files say about a pool.
type Pool struct {
	Name      string
	Port      int      // that the pool's picker is served at
	Endpoints []string // ip:port; the i-th one's name is NAME-i
}

// Policy is what the files say about a pool's policy. Zero fields are left out.
type Policy struct {
	Strategy             string
	PrefixLength         int
	ConcurrencyThreshold int
	Saturation           string
	FallbackHeader       bool
}

// Files makes an empty folder for a standalone Homing.
func (e *Env) Files() (*Files, error) {
	dir, err := os.MkdirTemp(e.dir, "standalone-")
	return &Files{Dir: dir}, err
}

// WritePool writes or replaces the pool and its endpoints.
func (f *Files) WritePool(p Pool) error {
	var b strings.Builder
	fmt.Fprintf(&b, `apiVersion: inference.networking.k8s.io/v1
kind: InferencePool
metadata: {name: %[1]s}
spec:
  selector: {matchLabels: {app: %[1]s}}
  targetPorts: [{number: 8000}]
  endpointPickerRef: {name: homing, port: {number: %[2]d}}
---
apiVersion: homing.dev/v1alpha1
kind: StaticEndpoints
metadata: {name: %[1]s}
endpoints:
`, p.Name, p.Port)
	if len(p.Endpoints) == 0 {
		b.WriteString("  []\n")
	}
	for i, addr := range p.Endpoints {
		host, port, err := net.SplitHostPort(addr)
		if err != nil {
			return err
		}
		fmt.Fprintf(&b, "- {name: %s-%d, address: %q, port: %s}\n", p.Name, i, host, port)
	}
	return f.Write(p.Name+"-pool.yaml", b.String())
}

// WritePolicy writes or replaces a pool's policy.
func (f *Files) WritePolicy(pool string, p Policy) error {
	var b strings.Builder
	fmt.Fprintf(&b, `apiVersion: homing.dev/v1alpha1
kind: PrefixRoutingPolicy
metadata: {name: %[1]s}
spec:
  targetRef: {group: inference.networking.k8s.io, kind: InferencePool, name: %[1]s}
`, pool)
	for _, field := range []struct {
		name  string
		value any
		unset bool
	}{
		{"strategy", p.Strategy, p.Strategy == ""},
		{"prefixLength", p.PrefixLength, p.PrefixLength == 0},
		{"concurrencyThreshold", p.ConcurrencyThreshold, p.ConcurrencyThreshold == 0},
		{"saturation", p.Saturation, p.Saturation == ""},
		{"fallbackHeader", p.FallbackHeader, !p.FallbackHeader},
	} {
		if !field.unset {
			fmt.Fprintf(&b, "  %s: %v\n", field.name, field.value)
		}
	}
	return f.Write(pool+"-policy.yaml", b.String())
}

// Write replaces a file in one step, as a careful operator would.
func (f *Files) Write(name, text string) error {
	temp := filepath.Join(f.Dir, "."+name+".new")
	if err := os.WriteFile(temp, []byte(text), 0o600); err != nil {
		return err
	}
	return os.Rename(temp, filepath.Join(f.Dir, name))
}
