package kubelet

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/homing-dev/homing/test/cluster"
	"github.com/homing-dev/homing/test/env"
)

// Homing is the image of this checkout's Homing: its program, with the arguments of the pod's container, at the
// pod's address, with the rights of the pod's ServiceAccount and no others. The container is an [env.Process].
func Homing(t testing.TB, c *cluster.Cluster) Image {
	t.Helper()
	e := env.For(t)
	binary, err := e.HomingBinary()
	if err != nil {
		t.Fatal(err)
	}
	return func(ctx context.Context, p *corev1.Pod) (Container, error) {
		kubeconfig := filepath.Join(e.Dir(), p.Name+".kubeconfig")
		if err := c.WriteKubeconfig(ctx, kubeconfig, p.Namespace, p.Spec.ServiceAccountName); err != nil {
			return nil, err
		}
		args := slices.Concat(p.Spec.Containers[0].Args,
			[]string{"--kubeconfig", kubeconfig, "--namespace", p.Namespace, "--bind-address", p.Status.PodIP})
		cmd := exec.Command(binary, args...)
		cmd.Env = append(os.Environ(), "POD_NAME="+p.Name)
		return e.Start(p.Name, cmd)
	}
}
