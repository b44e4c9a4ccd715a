package standalone

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"

	"github.com/homing-dev/homing/pkg/endpoint"
)

// patience is how long a test waits for what must come. Nothing is measured by it.
const patience = 30 * time.Second

// following is a follower at work in a directory of the test's own.
type following struct {
	t     *testing.T
	dir   string
	store *endpoint.Store
	*Follower

	mu   sync.Mutex
	logs []string // guarded by mu
}

func follow(t *testing.T, dir string) *following {
	t.Helper()
	f := &following{t: t, dir: dir, store: endpoint.NewStore()}
	var err error
	f.Follower, err = New(Options{
		Dir: dir, Store: f.store, Defaults: Defaults{Policy: endpoint.DefaultPolicy()}, Registerer: prometheus.NewRegistry(),
		Log: funcr.New(func(_, args string) {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.logs = append(f.logs, args)
		}, funcr.Options{}),
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- f.Start(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return f
}

// until waits until the length that pool default/a hashes is n.
func (f *following) until(n int) {
	f.t.Helper()
	deadline := time.After(patience)
	for {
		changed := f.store.Changed()
		if pool := f.store.Snapshot().Pool(endpoint.PoolName{Namespace: "default", Name: "a"}); pool != nil && pool.Policy.PrefixLength == n {
			return
		}
		select {
		case <-changed:
		case <-deadline:
			f.t.Fatalf("no snapshot with prefix length %d", n)
		}
	}
}

// untilErrors waits until the metric says that n things are wrong.
func (f *following) untilErrors(n float64) {
	f.t.Helper()
	for deadline := time.Now().Add(patience); testutil.ToFloat64(f.metrics.errors) != n; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			f.t.Fatalf("homing_config_errors is not %v", n)
		}
	}
}

func (f *following) logged(text string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := 0
	for _, line := range f.logs {
		n += strings.Count(line, text)
	}
	return n
}

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

func policyOf(length string) string {
	return policyHead + "metadata: {name: p}\nspec: {targetRef: {name: a}, prefixLength: " + length + "}\n"
}

func TestFollow(t *testing.T) {
	defer goleak.VerifyNone(t)
	dir := t.TempDir()
	write(t, filepath.Join(dir, "pool.yaml"), poolA)
	write(t, filepath.Join(dir, "policy.yaml"), policyOf("1024"))
	t.Run("", func(t *testing.T) { // so that its cleanup comes before the look at goroutines
		f := follow(t, dir)
		f.until(1024)

		write(t, filepath.Join(dir, "policy.yaml"), policyOf("2048"))
		f.until(2048)

		t.Log("an atomic rename, as editors and deployment tools do it")
		write(t, filepath.Join(dir, ".policy.yaml.tmp"), policyOf("3072"))
		if err := os.Rename(filepath.Join(dir, ".policy.yaml.tmp"), filepath.Join(dir, "policy.yaml")); err != nil {
			t.Fatal(err)
		}
		f.until(3072)

		t.Log("a file that turns bad keeps the last good state, and says so once")
		write(t, filepath.Join(dir, "policy.yaml"), policyOf("1"))
		f.untilErrors(1)
		f.until(3072)
		if n := f.logged(filepath.Join(dir, "policy.yaml") + ":4: spec.prefixLength: Invalid value: 1: must be between 1024 and 65536"); n != 1 {
			t.Errorf("said %d times: %q", n, f.logs)
		}
		if got := testutil.ToFloat64(f.metrics.reloads.WithLabelValues("failure")); got != 1 {
			t.Errorf("%v failed reloads, want 1", got)
		}

		t.Log("and another file does not bring in half of it")
		write(t, filepath.Join(dir, "zzz.yaml"), endpointsHead+"metadata: {name: a}\nendpoints: [{name: v0, address: 127.0.0.1, port: 0}]\n")
		f.untilErrors(2)
		f.until(3072)

		t.Log("all good again")
		write(t, filepath.Join(dir, "zzz.yaml"), endpointsHead+"metadata: {name: a}\nendpoints: [{name: v0, address: 127.0.0.1, port: 1}]\n")
		write(t, filepath.Join(dir, "policy.yaml"), policyOf("4096"))
		f.until(4096)
		f.untilErrors(0)

		t.Log("a file that goes takes its part with it")
		if err := os.Remove(filepath.Join(dir, "policy.yaml")); err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(dir, "pool.yaml"), strings.Replace(poolA, "{name: a}", "{name: a, annotations: {homing.dev/prefix-length: '5000'}}", 1))
		f.until(5000)
	})
}

// A ConfigMap's volume shows its files through two symbolic links, and changes by replacing the first.
func TestFollowConfigMap(t *testing.T) {
	dir := t.TempDir()
	link := func(target, name string) {
		t.Helper()
		if err := os.Symlink(target, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	version := func(name, length string) {
		t.Helper()
		if err := os.Mkdir(filepath.Join(dir, name), 0o700); err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(dir, name, "pools.yaml"), poolA+"---\n"+policyOf(length))
	}
	version("..2026_01", "1024")
	link("..2026_01", "..data")
	link(filepath.Join("..data", "pools.yaml"), "pools.yaml")
	f := follow(t, dir)
	f.until(1024)
	for name, length := range map[string]int{"..2026_02": 2048, "..2026_03": 3072} {
		version(name, map[int]string{2048: "2048", 3072: "3072"}[length])
		link(name, "..data_tmp")
		if err := os.Rename(filepath.Join(dir, "..data_tmp"), filepath.Join(dir, "..data")); err != nil {
			t.Fatal(err)
		}
		f.until(length)
	}
}

// A directory that is replaced is not announced; it is found by looking.
func TestFollowReplacedDirectory(t *testing.T) {
	parent := t.TempDir()
	dir := filepath.Join(parent, "pools")
	for name, length := range map[string]string{"pools": "1024", "next": "2048"} {
		if err := os.Mkdir(filepath.Join(parent, name), 0o700); err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(parent, name, "all.yaml"), poolA+"---\n"+policyOf(length))
	}
	f := follow(t, dir)
	f.until(1024)
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	f.untilErrors(1)
	f.until(1024)
	if err := os.Rename(filepath.Join(parent, "next"), dir); err != nil {
		t.Fatal(err)
	}
	f.until(2048)
	f.untilErrors(0)
}

func TestNewErrors(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "folder.yaml"), 0o700); err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct{ dir, want string }{
		"no directory":   {filepath.Join(dir, "none"), "no such file or directory"},
		"an odd file":    {dir, "folder.yaml: not a regular file"},
		"nothing inside": {t.TempDir(), "no InferencePool in any *.yaml or *.yml file"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := New(Options{Dir: tt.dir, Store: endpoint.NewStore(), Registerer: prometheus.NewRegistry()})
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want %q", err, tt.want)
			}
		})
	}
}
