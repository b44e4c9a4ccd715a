package chart

import (
	"context"
	"fmt"
	"net/http"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/homing-dev/homing/test/cluster"
	"github.com/homing-dev/homing/test/env"
)

const crdName = "prefixroutingpolicies.homing.dev"

// install is a control plane whose pods kwok makes Ready, and a namespace that admits only pods of the
// strictest kind.
type install struct {
	*cluster.Cluster
	helm *cluster.Helm
}

const namespaces = `
apiVersion: v1
kind: Namespace
metadata: {name: inference, labels: {pod-security.kubernetes.io/enforce: restricted}}
---
apiVersion: v1
kind: Namespace
metadata: {name: second}
`

// The whole life of an install, with pools of its own: what Helm makes, the API server takes; an upgrade, a
// rollback and the end leave what is to be left.
func TestLifeOfAnInstall(t *testing.T) {
	c := cluster.Start(t)
	c.InstallCRDs(t, cluster.GatewayCRDs(t), cluster.InferenceCRDs(t)) // Homing's own is the chart's
	c.RunPods(t, cluster.PodsOnLoopback)
	c.AddNode(t, "p5-0", map[string]string{"node.kubernetes.io/instance-type": "p5.48xlarge"})
	env.Check(t, c.Apply(t.Context(), []byte(namespaces)))
	in := &install{c, c.Helm(t)}

	variants := []string{"--set", "rbac.nodes=true,networkPolicy.enabled=true,tls.mode=Plaintext", "--set-json",
		`variants=[{"name":"llama","port":9100,"selector":{"app":"llama"},"policy":{"prefixLength":8192},"route":{"parentRefs":[{"name":"gw"}]}}]`}
	notes := in.run(t, append([]string{"install", "homing", chartDir(), "-n", "inference", "--wait", "--timeout", "3m"}, variants...)...)
	for _, want := range []string{"llama, port 9100", "plaintext"} {
		if !strings.Contains(notes, want) {
			t.Errorf("notes do not say %q:\n%s", want, notes)
		}
	}
	in.ready(t, "inference", 2)
	in.exists(t, true, "inference", "homing.dev/v1alpha1", "PrefixRoutingPolicy", "llama")
	in.exists(t, true, "inference", "gateway.networking.k8s.io/v1", "HTTPRoute", "llama")
	t.Run("serves under the installed account", in.testServes)
	t.Run("helm test", in.testHelmTest)

	in.run(t, append([]string{"upgrade", "homing", chartDir(), "-n", "inference", "--wait", "--timeout", "3m", "--set", "replicas=3"}, variants[:2]...)...)
	in.ready(t, "inference", 3)
	in.exists(t, false, "inference", "inference.networking.k8s.io/v1", "InferencePool", "llama")
	in.run(t, "rollback", "homing", "1", "-n", "inference", "--wait", "--timeout", "3m")
	in.ready(t, "inference", 2)
	in.exists(t, true, "inference", "inference.networking.k8s.io/v1", "InferencePool", "llama")

	t.Run("a second install", func(t *testing.T) {
		in.run(t, "install", "other", chartDir(), "-n", "second", "--wait", "--timeout", "3m", "--set", "rbac.nodes=true,replicas=1")
		in.run(t, "uninstall", "other", "-n", "second", "--wait")
	})
	t.Run("an older CRD", in.testOlderCRD)

	in.run(t, "uninstall", "homing", "-n", "inference", "--wait")
	in.exists(t, false, "inference", "apps/v1", "Deployment", "homing")
	in.exists(t, false, "inference", "homing.dev/v1alpha1", "PrefixRoutingPolicy", "llama")
	in.exists(t, true, "", "apiextensions.k8s.io/v1", "CustomResourceDefinition", crdName)
}

func (in *install) run(t *testing.T, args ...string) string {
	t.Helper()
	start := time.Now()
	out, err := in.helm.Run(t.Context(), args...)
	env.Check(t, err)
	t.Logf("helm %s: %.1f s", args[0], time.Since(start).Seconds())
	return out
}

func (in *install) ready(t *testing.T, namespace string, replicas int32) {
	t.Helper()
	env.Eventually(t, func(ctx context.Context) error {
		var d appsv1.Deployment
		if err := in.Client.Get(ctx, types.NamespacedName{Namespace: namespace, Name: "homing"}, &d); err != nil {
			return err
		}
		if s := d.Status; s.ReadyReplicas != replicas || s.Replicas != replicas || s.UpdatedReplicas != replicas {
			return fmt.Errorf("deployment status %+v, want %d replicas", s, replicas)
		}
		return nil
	})
}

func (in *install) exists(t *testing.T, want bool, namespace, apiVersion, kind, name string) {
	t.Helper()
	env.Eventually(t, func(ctx context.Context) error {
		o := &unstructured.Unstructured{}
		o.SetGroupVersionKind(schema.FromAPIVersionAndKind(apiVersion, kind))
		err := in.Client.Get(ctx, types.NamespacedName{Namespace: namespace, Name: name}, o)
		if err != nil && !apierrors.IsNotFound(err) {
			return err
		}
		if exists := err == nil; exists != want {
			return fmt.Errorf("%s %s exists: %t, want %t", kind, name, exists, want)
		}
		return nil
	})
}

// testServes runs the program as the Deployment would, with the account and the arguments of its pods.
func (in *install) testServes(t *testing.T) {
	var d appsv1.Deployment
	env.Check(t, in.Client.Get(t.Context(), types.NamespacedName{Namespace: "inference", Name: "homing"}, &d))
	container := d.Spec.Template.Spec.Containers[0]
	ports, err := env.FreePorts(2)
	env.Check(t, err)
	e := env.For(t)
	binary, err := e.HomingBinary()
	env.Check(t, err)
	account := in.ServiceAccount(t, "inference", d.Spec.Template.Spec.ServiceAccountName)
	args := slices.Concat(container.Args, []string{"--kubeconfig", in.Kubeconfig(t, account), "--namespace", "inference", "--bind-address", "127.0.0.1",
		"--grpc-health-port", fmt.Sprint(ports[0]), "--metrics-port", fmt.Sprint(ports[1]), "--drain-delay", "0s"})
	e.StartReady(t, "homing", exec.Command(binary, args...), env.Answers200(http.DefaultClient, fmt.Sprintf("http://127.0.0.1:%d/readyz", ports[1])))
	env.Eventually(t, func(ctx context.Context) error {
		o := &unstructured.Unstructured{}
		o.SetGroupVersionKind(schema.FromAPIVersionAndKind("homing.dev/v1alpha1", "PrefixRoutingPolicy"))
		if err := in.Client.Get(ctx, types.NamespacedName{Namespace: "inference", Name: "llama"}, o); err != nil {
			return err
		}
		if n, _, _ := unstructured.NestedInt64(o.Object, "status", "effective", "prefixLength"); n != 8192 {
			return fmt.Errorf("status %v, want prefixLength 8192 in effect", o.Object["status"])
		}
		return nil
	})
}

// testHelmTest plays the test's container, since nothing runs in these pods: helm waits for its end.
func (in *install) testHelmTest(t *testing.T) {
	done := make(chan error, 1)
	go func() {
		_, err := in.helm.Run(t.Context(), "test", "homing", "-n", "inference", "--timeout", "3m")
		done <- err
	}()
	key := types.NamespacedName{Namespace: "inference", Name: "homing-test"}
	env.Eventually(t, func(ctx context.Context) error {
		select {
		case err := <-done:
			t.Fatalf("helm test ended before its pod did: %v", err)
		default:
		}
		var p corev1.Pod
		if err := in.Client.Get(ctx, key, &p); err != nil {
			return err
		}
		if p.Status.Phase != corev1.PodRunning {
			return fmt.Errorf("pod is %s", p.Status.Phase)
		}
		if command := strings.Join(p.Spec.Containers[0].Command, " "); !strings.HasSuffix(command, "http://homing:9090/readyz") {
			t.Errorf("the test's command is %q", command)
		}
		base := p.DeepCopy()
		p.Status.Phase = corev1.PodSucceeded
		return in.Client.Status().Patch(ctx, &p, client.MergeFrom(base))
	})
	env.Check(t, <-done)
}

// testOlderCRD: Helm leaves CRDs alone, so an upgrade's notes say how to bring the cluster's up to date. They do not
// look at it: not everyone who may upgrade may read CRDs.
func (in *install) testOlderCRD(t *testing.T) {
	var crd apiextensionsv1.CustomResourceDefinition
	key := types.NamespacedName{Name: crdName}
	env.Check(t, in.Client.Get(t.Context(), key, &crd))
	field := func() bool {
		_, has := crd.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"].Properties["fallbackHeader"]
		return has
	}
	delete(crd.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"].Properties, "fallbackHeader")
	env.Check(t, in.Client.Update(t.Context(), &crd))
	const command = "helm show crds CHART | kubectl apply --server-side --force-conflicts -f -"
	if notes := in.run(t, "upgrade", "homing", chartDir(), "-n", "inference", "--reuse-values"); !strings.Contains(notes, command) {
		t.Errorf("an upgrade's notes do not tell how to upgrade the CRD:\n%s", notes)
	}
	if env.Check(t, in.Client.Get(t.Context(), key, &crd)); field() {
		t.Error("Helm upgraded the CRD: the notes are wrong")
	}
	env.Check(t, in.Apply(t.Context(), []byte(in.run(t, "show", "crds", chartDir()))))
	if env.Check(t, in.Client.Get(t.Context(), key, &crd)); !field() {
		t.Error("the command does not bring the CRD up to date")
	}
}
