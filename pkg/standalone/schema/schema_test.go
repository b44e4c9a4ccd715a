package schema

import (
	"context"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	crdvalidation "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/validation"
	structural "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"sigs.k8s.io/yaml"

	"github.com/homing-dev/homing/config/crd"
	"github.com/homing-dev/homing/pkg/endpoint"
)

// An API server would take each schema: it is structural, its defaults hold, its CEL rules compile and
// stay within the cost budget.
func TestSchemasAreValid(t *testing.T) {
	for name, source := range map[string][]byte{"PrefixRoutingPolicy": crd.PrefixRoutingPolicy, "StaticEndpoints": staticEndpoints} {
		t.Run(name, func(t *testing.T) {
			var def apiextensionsv1.CustomResourceDefinition
			if err := yaml.UnmarshalStrict(source, &def); err != nil {
				t.Fatal(err)
			}
			apiextensionsv1.SetDefaults_CustomResourceDefinition(&def)
			apiextensionsv1.SetDefaults_CustomResourceDefinitionSpec(&def.Spec)
			var internal apiextensions.CustomResourceDefinition
			if err := apiextensionsv1.Convert_v1_CustomResourceDefinition_To_apiextensions_CustomResourceDefinition(&def, &internal, nil); err != nil {
				t.Fatal(err)
			}
			internal.Status.StoredVersions = []string{"v1alpha1"}
			for _, err := range crdvalidation.ValidateCustomResourceDefinition(context.Background(), &internal) {
				t.Error(err)
			}
		})
	}
}

// check reads a document and says what is wrong with it, sorted, and what it became.
func check(t *testing.T, document string) (map[string]any, []string) {
	t.Helper()
	set, err := NewSet()
	if err != nil {
		t.Fatal(err)
	}
	text, err := yaml.YAMLToJSON([]byte(document))
	if err != nil {
		t.Fatal(err)
	}
	var obj map[string]any
	if err := utiljson.Unmarshal(text, &obj); err != nil {
		t.Fatal(err)
	}
	rules := set[Key(obj["apiVersion"].(string), obj["kind"].(string))]
	if rules == nil {
		t.Fatalf("no rules for %v", obj["kind"])
	}
	var lines []string
	for _, e := range rules.Check(obj) {
		lines = append(lines, e.Error())
	}
	slices.Sort(lines)
	return obj, lines
}

func TestDefaults(t *testing.T) {
	got, errs := check(t, `
apiVersion: homing.dev/v1alpha1
kind: PrefixRoutingPolicy
metadata: {name: p}
spec: {targetRef: {name: a}, prefixLength: null}`)
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	// The numbers have no default here: what a policy leaves out, annotations and the install decide.
	want := map[string]any{
		"targetRef":  map[string]any{"group": "inference.networking.k8s.io", "kind": "InferencePool", "name": "a"},
		"saturation": "Overflow",
	}
	if diff := cmp.Diff(want, got["spec"]); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if ns := got["metadata"].(map[string]any)["namespace"]; ns != DefaultNamespace {
		t.Errorf("namespace %v, want %s", ns, DefaultNamespace)
	}
}

// The ranges in the API's markers are those that pkg/endpoint states.
func TestRanges(t *testing.T) {
	for _, tt := range []struct {
		field    string
		min, max int
	}{
		{"prefixLength", endpoint.MinPrefixLength, endpoint.MaxPrefixLength},
		{"concurrencyThreshold", endpoint.MinConcurrencyThreshold, endpoint.MaxConcurrencyThreshold},
	} {
		for value, ok := range map[int]bool{tt.min: true, tt.max: true, tt.min - 1: false, tt.max + 1: false, -1: false} {
			_, errs := check(t, string(must(yaml.Marshal(map[string]any{
				"apiVersion": "homing.dev/v1alpha1", "kind": "PrefixRoutingPolicy",
				"metadata": map[string]any{"name": "p"},
				"spec":     map[string]any{"targetRef": map[string]any{"name": "a"}, tt.field: value},
			}))))
			if (len(errs) == 0) != ok {
				t.Errorf("%s %d: got %v, want accepted=%v", tt.field, value, errs, ok)
			}
		}
	}
}

func must(text []byte, err error) []byte {
	if err != nil {
		panic(err)
	}
	return text
}

// Every strategy of the picker is one that a policy may name.
func TestStrategies(t *testing.T) {
	for s := endpoint.Random; !strings.HasPrefix(s.String(), "Strategy("); s++ {
		_, errs := check(t, `
apiVersion: homing.dev/v1alpha1
kind: PrefixRoutingPolicy
metadata: {name: p}
spec: {targetRef: {name: a}, strategy: `+s.String()+`}`)
		if len(errs) > 0 {
			t.Errorf("%s: %v", s, errs)
		}
	}
}

func TestKinds(t *testing.T) {
	set, err := NewSet()
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"homing.dev/v1alpha1, PrefixRoutingPolicy",
		"homing.dev/v1alpha1, StaticEndpoints",
		"inference.networking.k8s.io/v1, InferencePool",
	}
	if diff := cmp.Diff(want, slices.Sorted(maps.Keys(set))); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// The page on configuration has every field of a policy and of an endpoint.
func TestFieldsAreDocumented(t *testing.T) {
	page, err := os.ReadFile("../../../docs/configuration.md")
	if err != nil {
		t.Fatal(err)
	}
	set, err := NewSet()
	if err != nil {
		t.Fatal(err)
	}
	spec := set[Key("homing.dev/v1alpha1", "PrefixRoutingPolicy")].structural.Properties["spec"].Properties
	item := set[Key("homing.dev/v1alpha1", "StaticEndpoints")].structural.Properties["endpoints"].Items.Properties
	for _, fields := range []map[string]structural.Structural{spec, item} {
		for name := range fields {
			if !regexp.MustCompile("(?m)^\\| `" + name + "[.`]").Match(page) {
				t.Errorf("%s has no row", name)
			}
		}
	}
}

func TestKubernetesSample(t *testing.T) {
	content, err := os.ReadFile("../../../config/samples/kubernetes/llama-70b.yaml")
	if err != nil {
		t.Fatal(err)
	}
	checked := 0
	for document := range strings.SplitSeq(string(content), "\n---\n") {
		if strings.Contains(document, "kind: HTTPRoute") {
			continue // Gateway API's own, whose schema is not here
		}
		if _, errs := check(t, document); len(errs) > 0 {
			t.Error(errs)
		}
		checked++
	}
	if checked != 2 {
		t.Errorf("%d documents, want a pool and a policy", checked)
	}
}
