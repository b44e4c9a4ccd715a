package cluster

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// Helm runs helm, with no state of the user's.
type Helm struct {
	bin string
	env []string
}

// Helm is helm as the administrator of this cluster.
func (c *Cluster) Helm(t testing.TB) *Helm {
	t.Helper()
	return NewHelm(t, c.kubeconfig)
}

// NewHelm is helm for the cluster of a kubeconfig; empty, it is for what needs no cluster.
func NewHelm(t testing.TB, kubeconfig string) *Helm {
	t.Helper()
	home := t.TempDir()
	return &Helm{bin: Need(t, "helm")["helm"], env: append(os.Environ(), "KUBECONFIG="+kubeconfig,
		"HELM_CACHE_HOME="+filepath.Join(home, "cache"), "HELM_CONFIG_HOME="+filepath.Join(home, "config"),
		"HELM_DATA_HOME="+filepath.Join(home, "data"))}
}

// Run gives what `helm args...` printed to its standard output; the error carries what it printed to the other.
func (h *Helm) Run(ctx context.Context, args ...string) (string, error) {
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, h.bin, args...)
	cmd.Env, cmd.Stdout, cmd.Stderr = h.env, &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return stdout.String(), fmt.Errorf("helm %s: %w\n%s", strings.Join(args, " "), err, &stderr)
	}
	return stdout.String(), nil
}
