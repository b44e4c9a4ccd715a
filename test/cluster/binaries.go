package cluster

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// Binaries are the paths of programs by the names that hack/cluster/ensure.sh gives them.
type Binaries map[string]string

// Ensure finds or makes programs. A first build takes minutes; make runs the script before the tests, and so
// does whoever wants to see its progress.
func Ensure(what ...string) (Binaries, error) {
	root, err := Root()
	if err != nil {
		return nil, err
	}
	var stdout, stderr bytes.Buffer
	cmd := exec.Command(filepath.Join(root, "hack/cluster/ensure.sh"), what...)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
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

// ensure is Ensure for a test. The short tests do without the built Kubernetes: there it skips.
func ensure(t testing.TB, what ...string) Binaries {
	t.Helper()
	if testing.Short() {
		t.Skip("needs the built Kubernetes: not in the short tests")
	}
	found, err := Ensure(what...)
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// Root is the folder of this checkout, from any of its folders.
func Root() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "hack/cluster/ensure.sh")); err == nil {
			return dir, nil
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", fmt.Errorf("not inside a checkout: %s", dir)
		}
		dir = parent
	}
}

// ModuleDir is the folder of a Go module's source. in says whose go.mod gives the version: "." or a module of
// hack/tools, as a path from the checkout.
func ModuleDir(t testing.TB, in, module string) string {
	t.Helper()
	root, err := Root()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("go", "mod", "download", "-json", module)
	cmd.Dir = filepath.Join(root, in)
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("source of %s: %v\n%s", module, err, out)
	}
	var answer struct{ Dir string }
	if err := json.Unmarshal(out, &answer); err != nil {
		t.Fatalf("source of %s: %v", module, err)
	}
	return answer.Dir
}
