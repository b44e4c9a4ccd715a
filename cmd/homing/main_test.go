package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3" //nolint:depguard // the test is the gateway
	"github.com/spf13/pflag"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// samples is a copy of the sample directory with the pool on a port of its own.
func samples(t *testing.T, port int) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS("../../config/samples/standalone")); err != nil {
		t.Fatal(err)
	}
	edit(t, filepath.Join(dir, "pool.yaml"), "number: 9002", fmt.Sprintf("number: %d", port))
	return dir
}

func edit(t *testing.T, path, old, replacement string) {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Contains(content, []byte(old)) {
		t.Fatalf("%s has no %q", path, old)
	}
	if err := os.WriteFile(path, bytes.Replace(content, []byte(old), []byte(replacement), 1), 0o600); err != nil {
		t.Fatal(err)
	}
}

func freePort(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// Whatever is configured wrongly gives one line that says what and where.
func TestExitMessages(t *testing.T) {
	for _, name := range []string{"KUBECONFIG", "POD_NAMESPACE", "KUBERNETES_SERVICE_HOST"} {
		t.Setenv(name, "")
	}
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	takenPort := fmt.Sprint(taken.Addr().(*net.TCPAddr).Port)
	good := samples(t, 9002)
	bad := samples(t, 9002)
	edit(t, filepath.Join(bad, "policy.yaml"), "prefixLength: 4096", "prefixLength: 12")
	worse := samples(t, 9002)
	edit(t, filepath.Join(worse, "policy.yaml"), "prefixLength: 4096", "prefixLength: 12")
	edit(t, filepath.Join(worse, "endpoints.yaml"), "18000", "18000, weight: 2")
	reserved := samples(t, 9003)
	empty := t.TempDir()
	file := filepath.Join(good, "pool.yaml")

	for _, tt := range []struct {
		name string
		args string
		want string
	}{
		{"no source of pools", "serve",
			"homing: no pools to serve: name a directory with --standalone, or outside of a cluster a --namespace and a --kubeconfig"},
		{"no cluster", "serve --namespace inference",
			"homing: no --kubeconfig, and not in a pod: unable to load in-cluster configuration, KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT must be defined"},
		{"no such kubeconfig", "serve --namespace inference --kubeconfig /nonexistent",
			"homing: --kubeconfig /nonexistent: stat /nonexistent: no such file or directory"},
		{"no such kubeconfig in a list", "serve --namespace inference --kubeconfig /nonexistent:/nor-this",
			"homing: --kubeconfig /nonexistent:/nor-this: invalid configuration: no configuration has been provided, try setting KUBERNETES_MASTER environment variable"},
		{"ports that are none", "serve --namespace inference --pool-ports 9002,9131-9100",
			`homing: invalid argument "9002,9131-9100" for "--pool-ports" flag: "9131-9100": want ports and ranges of ports, as 9002,9100-9131`},
		{"a namespace that cannot be", "serve --namespace a.b",
			`homing: --namespace "a.b": must not contain dots`},
		{"no such directory", "serve --standalone /nonexistent",
			"homing: --standalone: stat /nonexistent: no such file or directory"},
		{"not a directory", "serve --standalone " + file,
			"homing: --standalone " + file + ": not a directory"},
		{"nothing in it", "serve --standalone " + empty,
			"homing: " + empty + ": no InferencePool in any *.yaml or *.yml file"},
		{"a wrong file", "serve --standalone " + bad,
			"homing: " + bad + "/policy.yaml:10: spec.prefixLength: Invalid value: 12: must be between 1024 and 65536"},
		{"several wrong things", "serve --standalone " + worse,
			"homing: " + worse + "/endpoints.yaml:7: endpoints[0].weight: unknown field; want address, name, nodeLabels, port, ready\n" +
				"homing: " + worse + "/policy.yaml:10: spec.prefixLength: Invalid value: 12: must be between 1024 and 65536"},
		{"a pool on the health port", "serve --standalone " + reserved,
			"homing: " + reserved + "/pool.yaml:15: port 9003 is Homing's own, for health (--grpc-health-port)"},
		{"no certificate", "serve --standalone " + good + " --cert-path " + empty,
			"homing: --cert-path: stat " + empty + "/tls.crt: no such file or directory; the directory must hold tls.crt and tls.key"},
		{"a certificate without use", "serve --standalone " + good + " --secure-serving=false --cert-path " + empty,
			"homing: --cert-path " + empty + " has no effect with --secure-serving=false: drop one of them"},
		{"an address that is none", "serve --standalone " + good + " --bind-address localhost",
			`homing: --bind-address "localhost": want an IP address, as 127.0.0.1 or ::1`},
		{"a port out of range", "serve --standalone " + good + " --metrics-port 65536",
			"homing: --metrics-port 65536: want 0..65535"},
		{"the peers' port twice", "serve --standalone " + good + " --peer 127.0.0.1:9005 --peer-port 9090",
			"homing: --metrics-port and --peer-port are both 9090: give them different ports"},
		{"a peer that is none", "serve --standalone " + good + " --peer homing",
			`homing: --peer "homing": want host:port, as 10.0.0.2:9004 or [::1]:9004`},
		{"peers in a cluster", "serve --namespace inference --peer 127.0.0.1:9004",
			"homing: --peer is for --standalone: in a cluster other replicas are found by the Service"},
		{"peers that are not told", "serve --standalone " + good + " --peer 127.0.0.1:9004 --peer-port 0",
			"homing: --peer has no effect with --peer-port 0: drop one of them"},
		{"one port twice", "serve --standalone " + good + " --metrics-port 9003",
			"homing: --grpc-health-port and --metrics-port are both 9003: give them different ports"},
		{"a prefix too short", "serve --standalone " + good + " --default-prefix-length 1023",
			"homing: --default-prefix-length 1023: want 1024..65536"},
		{"a threshold too high", "serve --standalone " + good + " --default-concurrency-threshold 1025",
			"homing: --default-concurrency-threshold 1025: want 1..1024"},
		{"an inspection too short", "serve --standalone " + good + " --max-inspect-bytes 10",
			"homing: --max-inspect-bytes 10: want 1024..67108864"},
		{"a negative drain", "serve --standalone " + good + " --drain-timeout -1s",
			"homing: --drain-timeout -1s: want 0s or more"},
		{"a port that is taken", "serve --standalone " + good + " --bind-address 127.0.0.1 --metrics-port 0 --grpc-health-port " + takenPort,
			"homing: health: listen tcp 127.0.0.1:" + takenPort + ": bind: address already in use; free the port, or choose others with --grpc-health-port, --metrics-port and --peer-port"},
		{"an unknown flag", "serve --standlone x", "homing: unknown flag: --standlone"},
		{"a word too many", "serve now", `homing: unknown command "now" for "homing serve"`},
		{"an unknown command", "server", `homing: unknown command "server" for "homing"`},
		{"not a number", "serve --metrics-port many", `homing: invalid argument "many" for "--metrics-port" flag: strconv.ParseInt: parsing "many": invalid syntax`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			if code := run(context.Background(), strings.Fields(tt.args), &stdout, &stderr); code != 1 {
				t.Errorf("exit code %d, want 1", code)
			}
			if got := strings.TrimSuffix(stderr.String(), "\n"); got != tt.want {
				t.Errorf("got  %s\nwant %s", got, tt.want)
			}
			if stdout.Len() > 0 {
				t.Errorf("stdout: %s", &stdout)
			}
		})
	}
}

func TestPortsThatPoolsMayHave(t *testing.T) {
	f := flags{healthPort: 9003, metricsPort: 9090, peerPort: 9004}
	for port, want := range map[uint16]string{9003: "health", 9090: "metrics", 9004: "peers", 9002: "", 80: ""} {
		if got := f.refusePort(port); (got == "") != (want == "") || !strings.Contains(got, want) {
			t.Errorf("port %d: %q, want %q", port, got, want)
		}
	}
	if err := f.cluster.ports.Set("9002,9100-9131"); err != nil {
		t.Fatal(err)
	}
	for port, want := range map[uint16]string{9003: "health", 9002: "", 9100: "", 9131: "", 9001: "Service", 9132: "9002,9100-9131 (--pool-ports)"} {
		if got := f.refusePort(port); (got == "") != (want == "") || !strings.Contains(got, want) {
			t.Errorf("port %d with --pool-ports: %q, want %q", port, got, want)
		}
	}
	f.standalone = "dir" // there is no Service
	if got := f.refusePort(80); got != "" {
		t.Errorf("port 80 of a file: %q", got)
	}
}

func TestHelp(t *testing.T) {
	var stdout, stderr bytes.Buffer
	if code := run(context.Background(), []string{"serve", "--help"}, &stdout, &stderr); code != 0 {
		t.Fatalf("exit code %d: %s", code, &stderr)
	}
	for _, flag := range []string{
		"standalone", "bind-address", "secure-serving", "cert-path", "grpc-health-port", "metrics-port", "pprof",
		"drain-delay", "drain-timeout", "max-inspect-bytes", "peer-port", "peer", "replicas", "default-prefix-length", "default-concurrency-threshold", "verbosity",
	} {
		if !strings.Contains(stdout.String(), "--"+flag+" ") {
			t.Errorf("the help does not tell of --%s", flag)
		}
	}
}

// The page on configuration has every flag, and each default as it is.
func TestFlagsAreDocumented(t *testing.T) {
	page, err := os.ReadFile("../../docs/configuration.md")
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("KUBECONFIG", "")
	t.Setenv("POD_NAMESPACE", "")
	newServeCommand().Flags().VisitAll(func(f *pflag.Flag) {
		row := regexp.MustCompile("(?m)^\\| `(?:-v`, `)?--" + f.Name + "(?: [A-Z]+)?` \\|([^|]*)\\|").FindSubmatch(page)
		if row == nil {
			t.Errorf("--%s has no row", f.Name)
			return
		}
		said, value := strings.Trim(string(row[1]), "` "), f.DefValue
		if d, err := time.ParseDuration(value); err == nil && f.Value.Type() == "duration" {
			if shown, err := time.ParseDuration(said); err != nil || shown != d {
				t.Errorf("--%s: the page says %q, its default is %q", f.Name, said, value)
			}
			return
		}
		if value != "" && value != "[]" && said != value {
			t.Errorf("--%s: the page says %q, its default is %q", f.Name, said, value)
		}
	})
}

func TestVersion(t *testing.T) {
	var stdout, stderr bytes.Buffer
	if code := run(context.Background(), []string{"version"}, &stdout, &stderr); code != 0 {
		t.Fatalf("exit code %d: %s", code, &stderr)
	}
	if !regexp.MustCompile(`^homing \S+ \(revision \S+, go1\.\S+, \w+/\w+\)\n$`).Match(stdout.Bytes()) {
		t.Errorf("got %q", &stdout)
	}
}

// The sample directory works as it is: a pool is served on its port, by the strategy of its policy, to
// one of its endpoints.
func TestServeSamples(t *testing.T) {
	port := freePort(t)
	dir := samples(t, port)
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	logs, stderr := io.Pipe()
	code := make(chan int, 1)
	go func() {
		code <- run(ctx, []string{
			"serve", "--standalone", dir, "--secure-serving=false", "--bind-address", "127.0.0.1",
			"--grpc-health-port", "0", "--metrics-port", "0", "--drain-delay", "0s",
		}, io.Discard, stderr)
		_ = stderr.Close()
	}()
	metrics := followLogs(t, logs)

	conn, err := grpc.NewClient(fmt.Sprintf("127.0.0.1:%d", port), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	rpc, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	stream, err := extprocv3.NewExternalProcessorClient(conn).Process(rpc, grpc.WaitForReady(true))
	if err != nil {
		t.Fatal(err)
	}
	request := &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_RequestHeaders{RequestHeaders: &extprocv3.HttpHeaders{EndOfStream: true}}}
	if err := stream.Send(request); err != nil {
		t.Fatal(err)
	}
	answer, err := stream.Recv()
	if err != nil {
		t.Fatal(err)
	}
	if text := answer.String(); !regexp.MustCompile(`127\.0\.0\.1:1800[012]`).MatchString(text) {
		t.Errorf("the answer names no endpoint of the sample: %s", text)
	}

	body := get(t, <-metrics, "/metrics")
	for _, name := range []string{"homing_build_info{", "homing_listener_up{", "homing_config_errors 0", "go_goroutines ", "process_open_fds "} {
		if !strings.Contains(body, "\n"+name) {
			t.Errorf("no %s among the metrics", name)
		}
	}
	if err := stream.CloseSend(); err != nil {
		t.Error(err)
	}
	if err := conn.Close(); err != nil {
		t.Error(err)
	}
	stop()
	if c := <-code; c != 0 {
		t.Errorf("exit code %d", c)
	}
}

// followLogs reads the log to its end, and finds the address of the metrics in it.
func followLogs(t *testing.T, logs io.Reader) <-chan string {
	metrics := make(chan string, 1)
	go func() {
		for lines := bufio.NewScanner(logs); lines.Scan(); {
			var line struct{ Level, Metrics string }
			if err := json.Unmarshal(lines.Bytes(), &line); err != nil || line.Level == "" {
				t.Errorf("not a line of JSON with a level: %s", lines.Bytes())
			}
			if line.Metrics != "" {
				metrics <- line.Metrics
			}
		}
	}()
	return metrics
}

func get(t *testing.T, address, path string) string {
	t.Helper()
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 30 * time.Second}
	r, err := client.Get("http://" + address + path)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	body, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}
