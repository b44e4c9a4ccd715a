// Package chart tests charts/homing with the real helm, and on a real API server.
package chart

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/homing-dev/homing/test/cluster"
	"github.com/homing-dev/homing/test/env"
)

var rewrite = flag.Bool("update", false, "write what is rendered to testdata")

func chartDir() string { return filepath.Join(env.Root(), "charts/homing") }

// The chart ships the CRD that is generated from the types.
func TestCRDIsTheGeneratedOne(t *testing.T) {
	const name = "homing.dev_prefixroutingpolicies.yaml"
	generated, err := os.ReadFile(filepath.Join(env.Root(), "config/crd", name))
	env.Check(t, err)
	shipped, err := os.ReadFile(filepath.Join(chartDir(), "crds", name))
	env.Check(t, err)
	if !bytes.Equal(generated, shipped) {
		t.Errorf("charts/homing/crds/%s is not config/crd/%s: copy it", name, name)
	}
}

func TestRendering(t *testing.T) {
	helm := cluster.NewHelm(t, "")
	if out, err := helm.Run(t.Context(), "lint", "--strict", chartDir()); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	for name, args := range map[string][]string{
		"default": nil,
		"full":    {"--values", "testdata/full.values.yaml"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := helm.Run(t.Context(), append([]string{"template", "homing", chartDir(), "--namespace", "inference"}, args...)...)
			env.Check(t, err)
			golden := filepath.Join("testdata", name+".yaml")
			if *rewrite {
				env.Check(t, os.WriteFile(golden, []byte(got), 0o644))
			}
			want, err := os.ReadFile(golden)
			env.Check(t, err)
			if diff := cmp.Diff(string(want), got); diff != "" {
				t.Errorf("rendered (-%s +now; go test ./test/chart -update if it is meant):\n%s", golden, diff)
			}
		})
	}
}

// What YAML takes for a number, and what Kubernetes takes for no label, is rendered so that it is taken.
func TestUnusualNames(t *testing.T) {
	helm := cluster.NewHelm(t, "")
	got, err := helm.Run(t.Context(), "template", "homing-405", chartDir(), "--namespace", "405", "--set", "replicas=0,variants[0].port=9100",
		"--set-string", "variants[0].name=405,variants[0].selector.app=405",
		"--set-string", "image.tag=v0.1.0@sha256:"+strings.Repeat("0123456789abcdef", 4))
	env.Check(t, err)
	for _, want := range []string{
		`namespace: "405"`, `name: "405"`, `app.kubernetes.io/version: "v0.1.0"`, "homing:v0.1.0@sha256:0123", "--replicas=1",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no %s in\n%s", want, got)
		}
	}
	if _, err := helm.Run(t.Context(), "template", "v1.homing", chartDir()); err == nil || !strings.Contains(err.Error(), "set fullnameOverride") {
		t.Errorf("a release named v1.homing: %v", err)
	}
}

// Values that cannot work are refused in words that say what to do.
func TestWrongValues(t *testing.T) {
	helm := cluster.NewHelm(t, "")
	const a, b = "variants[0].name=a,variants[0].selector.app=a,variants[0].port=9100", "variants[1].name=b,variants[1].selector.app=b,variants[1].port=9100"
	for values, want := range map[string]string{
		"replica=3":                   "additional properties 'replica' not allowed",
		"defaults.prefixLength=100":   "'/defaults/prefixLength': minimum: got 100, want 1,024",
		"tls.mode=None":               "value must be one of 'SelfSigned', 'Secret', 'CertManager', 'Plaintext'",
		"tls.mode=Secret":             "set tls.secretName to a Secret with tls.crt and tls.key",
		"tls.mode=CertManager":        "set tls.issuerRef.name",
		"service.portRange.last=9000": "first 9100 is above last 9000",
		"service.portRange.last=9999": "more than the 200 ports",
		"service.port=9090":           "port 9090 is Homing's own",
		"service.port=9004":           "port 9004 is Homing's own",
		"variants[0].name=a":          "missing properties 'port', 'selector'",
		a + ",variants[0].port=9300":  "port 9300 of a is not one of the Service's: service.port (9002) or service.portRange (9100..9131)",
		a + "," + b:                   "a and b both have port 9100; each pool needs its own",
		a + ",variants[1].name=a,variants[1].port=9101,variants[1].selector.app=b":                                                             "two are named a",
		a + ",variants[0].policy.prefixLength=70000":                                                                                           "maximum: got 70,000, want 65,536",
		a + ",variants[0].policy.nodeSelector.matchExpressions[0].key=gpu,variants[0].policy.nodeSelector.matchExpressions[0].operator=Exists": "needs rbac.nodes=true",
		a + ",variants[0].route.hostnames[0]=x":                                                                                                "missing property 'parentRefs'",
		"extraArgs[0]=verbose":                                                                                                                 "'verbose' does not match pattern",
		"serviceMonitor.interval=fast":                                                                                                         "'fast' does not match pattern",
	} {
		t.Run(values, func(t *testing.T) {
			_, err := helm.Run(t.Context(), "template", "homing", chartDir(), "--set", values)
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("got %v\nwant an error with %q", err, want)
			}
		})
	}
}
