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

// ModuleDir is the folder of a Go module's source. in says whose go.mod gives the version: "." or a module of
// hack/tools, as a path from the checkout.
func ModuleDir(t testing.TB, in, module string) string {
	t.Helper()
	cmd := exec.Command("go", "mod", "download", "-json", module)
	cmd.Dir = filepath.Join(env.Root(), in)
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
