package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/homing-dev/homing/test/env"
)

// fieldOwner is who the test's server-side applies are by.
const fieldOwner = client.FieldOwner("homing-test")

// ApplyFiles applies the objects in YAML files, server-side, in their order.
func (c *Cluster) ApplyFiles(t testing.TB, paths ...string) {
	t.Helper()
	for _, path := range paths {
		content, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Apply(t.Context(), content); err != nil {
			t.Fatalf("%s: %v", path, err)
		}
	}
}

// Apply applies the objects of a YAML stream, server-side, in their order. An object that the API server refuses
// ends it; its error is the API server's.
func (c *Cluster) Apply(ctx context.Context, manifests []byte) error {
	objects, err := decode(manifests)
	if err != nil {
		return err
	}
	return c.apply(ctx, objects)
}

func (c *Cluster) apply(ctx context.Context, objects []*unstructured.Unstructured) error {
	for _, o := range objects {
		if err := c.Client.Apply(ctx, client.ApplyConfigurationFromUnstructured(o), fieldOwner, client.ForceOwnership); err != nil {
			return fmt.Errorf("%s %s: %w", o.GetKind(), client.ObjectKeyFromObject(o), err)
		}
	}
	return nil
}

// decode reads a YAML stream; documents without content are passed over.
func decode(manifests []byte) ([]*unstructured.Unstructured, error) {
	var objects []*unstructured.Unstructured
	for d := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(manifests), 4096); ; {
		o := &unstructured.Unstructured{}
		switch err := d.Decode(&o.Object); {
		case errors.Is(err, io.EOF):
			return objects, nil
		case err != nil:
			return nil, err
		case len(o.Object) > 0:
			objects = append(objects, o)
		}
	}
}

// InstallCRDs applies every CustomResourceDefinition in the YAML files of these folders, nothing else of what is
// there, and waits until the API server serves them.
func (c *Cluster) InstallCRDs(t testing.TB, dirs ...string) {
	t.Helper()
	start := time.Now()
	var crds []*unstructured.Unstructured
	for _, dir := range dirs {
		found := crdsIn(t, dir)
		if len(found) == 0 {
			t.Fatalf("no CustomResourceDefinition in %s", dir)
		}
		crds = append(crds, found...)
	}
	if err := c.apply(t.Context(), crds); err != nil {
		t.Fatal(err)
	}
	for _, crd := range crds {
		env.Eventually(t, func(ctx context.Context) error { return c.served(ctx, crd.GetName()) })
	}
	t.Logf("%d CRDs served in %.1f s", len(crds), time.Since(start).Seconds())
}

func crdsIn(t testing.TB, dir string) []*unstructured.Unstructured {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(dir, "*.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var crds []*unstructured.Unstructured
	for _, path := range paths {
		content, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		objects, err := decode(content)
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		for _, o := range objects {
			if o.GetKind() == "CustomResourceDefinition" {
				crds = append(crds, o)
			}
		}
	}
	return crds
}

// served says whether a CRD is established and every version that it serves can be listed.
func (c *Cluster) served(ctx context.Context, name string) error {
	var crd apiextensionsv1.CustomResourceDefinition
	if err := c.Client.Get(ctx, client.ObjectKey{Name: name}, &crd); err != nil {
		return err
	}
	for _, version := range crd.Spec.Versions {
		if !version.Served {
			continue
		}
		list := &unstructured.UnstructuredList{}
		list.SetAPIVersion(crd.Spec.Group + "/" + version.Name)
		list.SetKind(crd.Spec.Names.ListKind)
		if err := c.Client.List(ctx, list, client.Limit(1)); err != nil {
			return fmt.Errorf("CRD %s is not served yet: %w", name, err)
		}
	}
	return nil
}

// GatewayCRDs is the folder of Gateway API's standard CRDs, of the version that go.mod names.
func GatewayCRDs(t testing.TB) string {
	t.Helper()
	return gatewayAPI.Dir(t, "config/crd/standard")
}

// InferenceCRDs is the folder of the Gateway API Inference Extension's CRDs, of the version that go.mod names.
func InferenceCRDs(t testing.TB) string {
	t.Helper()
	return inferenceExtension.Dir(t, "config/crd/bases")
}

// HomingCRDs is the folder of Homing's own CRDs.
func HomingCRDs() string { return filepath.Join(env.Root(), "config/crd") }
