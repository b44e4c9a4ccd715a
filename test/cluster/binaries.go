package cluster

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/homing-dev/homing/test/env"
)

// Binaries are the paths of programs by the names that hack/cluster/ensure.sh gives them.
type Binaries map[string]string

// Ensure finds or makes programs. A first build takes minutes; the script's progress goes to standard error.
func Ensure(what ...string) (Binaries, error) {
	var stdout, stderr bytes.Buffer
	cmd := exec.Command(filepath.Join(env.Root(), "hack/cluster/ensure.sh"), what...)
	cmd.Stdout, cmd.Stderr = &stdout, io.MultiWriter(os.Stderr, &stderr)
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("hack/cluster/ensure.sh %s: %w\n%s", strings.Join(what, " "), err, &stderr)
	}
	found := Binaries{}
	for lines := bufio.NewScanner(&stdout); lines.Scan(); {
		if name, path, ok := strings.Cut(lines.Text(), " "); ok {
			found[name] = path
		}
	}
	return found, nil
}

// Need is [Ensure] for a test. The short tests do without what has to be built: there it skips.
func Need(t testing.TB, what ...string) Binaries {
	t.Helper()
	if testing.Short() {
		t.Skip("needs control planes built: not in the short tests")
	}
	found, err := Ensure(what...)
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// Module is a Go module of which tests want files: CRDs, charts.
type Module struct {
	Path string
	In   string // whose go.mod gives the version: "." or a module of hack/tools, as a path from the checkout
}

// The modules whose files a cluster wants.
var (
	gatewayAPI         = Module{"sigs.k8s.io/gateway-api", "."}
	inferenceExtension = Module{"sigs.k8s.io/gateway-api-inference-extension", "."}
	kwok               = Module{"sigs.k8s.io/kwok", "hack/tools/kwok"}
)

// Fetch gives the folder of the module's source, in Go's cache.
func (m Module) Fetch() (string, error) {
	cmd := exec.Command("go", "mod", "download", "-json", m.Path)
	cmd.Dir = filepath.Join(env.Root(), m.In)
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("source of %s: %w\n%s", m.Path, err, out)
	}
	var answer struct{ Dir string }
	if err := json.Unmarshal(out, &answer); err != nil {
		return "", fmt.Errorf("source of %s: %w", m.Path, err)
	}
	return answer.Dir, nil
}

// Dir is a folder of the module's source.
func (m Module) Dir(t testing.TB, name string) string {
	t.Helper()
	root, err := m.Fetch()
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(root, name)
}

// Prepare fetches and builds all that a cluster with pods needs, for tests that run without the machine's network.
func Prepare() error {
	for _, m := range []Module{gatewayAPI, inferenceExtension, kwok} {
		if _, err := m.Fetch(); err != nil {
			return err
		}
	}
	_, err := Ensure("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kwok", "helm")
	return err
}
