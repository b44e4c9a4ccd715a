package standalone

import (
	"net/netip"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/homing-dev/homing/pkg/endpoint"
	"github.com/homing-dev/homing/pkg/standalone/schema"
)

// ruleSet is compiled once for all tests.
var ruleSet = sync.OnceValues(schema.NewSet)

// loadFiles loads a configuration given as name and content in turn.
func loadFiles(t *testing.T, pairs ...string) ([]endpoint.PoolSpec, error) {
	t.Helper()
	rules, err := ruleSet()
	if err != nil {
		t.Fatal(err)
	}
	var files []file
	for i := 0; i+1 < len(pairs); i += 2 {
		files = append(files, file{pairs[i], []byte(pairs[i+1])})
	}
	return load(rules, Defaults{Policy: endpoint.DefaultPolicy(), RefusePort: refuseHealth}, "pools", files)
}

const (
	poolA = `apiVersion: inference.networking.k8s.io/v1
kind: InferencePool
metadata: {name: a}
spec:
  selector: {matchLabels: {app: a}}
  targetPorts: [{number: 8000}]
  endpointPickerRef: {name: homing, port: {number: 9002}}
`
	poolHead = `apiVersion: inference.networking.k8s.io/v1
kind: InferencePool
`
	policyHead = `apiVersion: homing.dev/v1alpha1
kind: PrefixRoutingPolicy
`
	endpointsHead = `apiVersion: homing.dev/v1alpha1
kind: StaticEndpoints
`
)

func TestLoad(t *testing.T) {
	got, err := loadFiles(t,
		"pool.yaml", "# a comment\n---\n"+poolA+"---\n"+strings.NewReplacer("name: a", "name: b, namespace: other", "9002", "9100").Replace(poolA),
		"policy.yml", policyHead+`metadata: {name: p}
spec:
  targetRef: {name: a}
  strategy: LeastOutstandingRequests
  concurrencyThreshold: 8
  saturation: Reject
  nodeSelector:
    matchExpressions: [{key: type, operator: In, values: [p5, p5e]}]
`,
		"endpoints.yaml", endpointsHead+`metadata: {name: a, creationTimestamp: 2026-01-01T00:00:00Z}
endpoints:
  - {name: v1, address: "::ffff:10.0.0.1", port: 8001, nodeLabels: {type: p5}}
  - {name: v1, address: 10.0.0.1, port: 8000, nodeLabels: {type: p5e}}
  - {name: v0, address: "2001:db8::1", port: 8000, ready: true, nodeLabels: {type: p5}}
  - {name: elsewhere, address: 10.0.0.2, port: 8000, nodeLabels: {type: p4}}
  - {name: nowhere, address: 10.0.0.3, port: 8000}
  - {name: starting, address: 10.0.0.4, port: 8000, ready: false, nodeLabels: {type: p5}}
`)
	if err != nil {
		t.Fatal(err)
	}
	spec := func(name, uid, addr string) endpoint.Spec {
		ap := netip.MustParseAddrPort(addr)
		return endpoint.Spec{ID: endpoint.ID{UID: uid, Port: ap.Port()}, Name: name, Addr: ap}
	}
	policy := endpoint.DefaultPolicy()
	policy.Strategy, policy.ConcurrencyThreshold, policy.Reject = endpoint.LeastOutstandingRequests, 8, true
	want := []endpoint.PoolSpec{
		{
			Name: endpoint.PoolName{Namespace: "default", Name: "a"}, Port: 9002, Policy: policy,
			Endpoints: []endpoint.Spec{
				spec("v0", "v0@2001:db8::1", "[2001:db8::1]:8000"),
				spec("v1", "v1@10.0.0.1", "10.0.0.1:8000"),
				spec("v1", "v1@10.0.0.1", "10.0.0.1:8001"),
			},
		},
		{Name: endpoint.PoolName{Namespace: "other", Name: "b"}, Port: 9100, Policy: endpoint.DefaultPolicy()},
	}
	if diff := cmp.Diff(want, got, cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// Any file gives pools or errors that name it, never both, and never a panic.
func FuzzLoad(f *testing.F) {
	rules, err := ruleSet()
	if err != nil {
		f.Fatal(err)
	}
	for _, seed := range []string{
		poolA, poolA + "---\n" + policyOf("4096"), policyHead + "metadata: 5\nspec: []\n", endpointsHead + "metadata: {name: a}\nendpoints: [{name: v0, address: 127.0.0.1, port: 1}]\n",
		"a: &a [*a]\n", "<<: {kind: x}\n? [1]\n: 2\n", "apiVersion: homing.dev/v1alpha1\nkind: StaticEndpoints\nmetadata: {name: null}\nendpoints: {}\n", "--- 5\n...\n%TAG ! x\n",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, content string) {
		specs, err := load(rules, Defaults{Policy: endpoint.DefaultPolicy()}, "pools", []file{{"pools/a.yaml", []byte(content)}})
		if (err == nil) != (len(specs) > 0) {
			t.Errorf("%d pools and the error %v", len(specs), err)
		}
		if err != nil && !strings.HasPrefix(err.Error(), "pools") {
			t.Errorf("an error without a place: %v", err)
		}
	})
}

// Each thing that can be wrong gives one line that says where and what.
func TestLoadErrors(t *testing.T) {
	for _, tt := range []struct {
		name  string
		files []string
		want  []string
	}{
		{
			name: "an unknown field, with those that are known",
			files: []string{"a.yaml", poolA, "p.yaml", policyHead + `metadata: {name: p}
spec:
  targetRef: {name: a}
  prefixLenght: 4096
`},
			want: []string{"p.yaml:6: spec.prefixLenght: unknown field; want concurrencyThreshold, fallbackHeader, nodeSelector, prefixLength, saturation, strategy, targetRef"},
		},
		{
			name: "an unknown field in a list, and one in the metadata",
			files: []string{"a.yaml", poolA, "e.yaml", endpointsHead + `metadata: {name: a, lables: {}}
endpoints:
  - {name: v0, address: 127.0.0.1, port: 1}
  - name: v1
    address: 127.0.0.1
    port: 2
    weight: 3
`},
			want: []string{
				"e.yaml:3: metadata.lables: unknown field",
				"e.yaml:9: endpoints[1].weight: unknown field; want address, name, nodeLabels, port, ready",
			},
		},
		{
			name: "numbers out of range",
			files: []string{"a.yaml", poolA, "p.yaml", policyHead + `metadata: {name: p}
spec:
  targetRef: {name: a}
  prefixLength: 512
  concurrencyThreshold: 0
`},
			want: []string{
				"p.yaml:6: spec.prefixLength: Invalid value: 512: must be between 1024 and 65536",
				"p.yaml:7: spec.concurrencyThreshold: Invalid value: 0: must be between 1 and 1024",
			},
		},
		{
			name:  "a strategy that does not exist",
			files: []string{"a.yaml", poolA, "p.yaml", policyHead + "metadata: {name: p}\nspec: {targetRef: {name: a}, strategy: Psychic}\n"},
			want:  []string{`p.yaml:4: spec.strategy: Unsupported value: "Psychic": supported values: "Random", "LeastOutstandingRequests", "PrefixAware", "AdaptivePrefix"`},
		},
		{
			name: "an operator without values",
			files: []string{"a.yaml", poolA, "p.yaml", policyHead + `metadata: {name: p}
spec:
  targetRef: {name: a}
  nodeSelector:
    matchExpressions:
      - {key: a, operator: Exists}
      - {key: b, operator: In}
`},
			want: []string{"p.yaml:9: spec.nodeSelector.matchExpressions[1]: Invalid value: values must be given with operators In and NotIn, and left out with Exists and DoesNotExist"},
		},
		{
			name:  "two pools on one port",
			files: []string{"a.yaml", poolA, "b.yaml", strings.Replace(poolA, "name: a}\nspec", "name: b}\nspec", 1)},
			want:  []string{"b.yaml:7: port 9002 is already that of pool default/a"},
		},
		{
			name:  "a pool on a port of Homing's own",
			files: []string{"a.yaml", strings.Replace(poolA, "9002", "9003", 1)},
			want:  []string{"a.yaml:7: port 9003 is Homing's own, for health"},
		},
		{
			name: "a pool without a picker, of which its policy does not tell again",
			files: []string{"a.yaml", poolHead + "metadata: {name: a}\nspec:\n  selector: {matchLabels: {app: a}}\n  targetPorts: [{number: 8000}]\n",
				"p.yaml", policyHead + "metadata: {name: p}\nspec: {targetRef: {name: a}}\n"},
			want: []string{"a.yaml:4: the pool names no endpoint picker, so no port to serve it on"},
		},
		{
			name:  "two policies for one pool",
			files: []string{"a.yaml", poolA, "p.yaml", policyHead + "metadata: {name: p}\nspec: {targetRef: {name: a}}\n---\n" + policyHead + "metadata: {name: q}\nspec: {targetRef: {name: a}}\n"},
			want:  []string{"p.yaml:9: policy p already applies to pool default/a"},
		},
		{
			name: "what refers to nothing",
			files: []string{"a.yaml", poolA,
				"e.yaml", endpointsHead + "metadata: {name: b}\nendpoints: []\n",
				"p.yaml", policyHead + "metadata: {name: p}\nspec: {targetRef: {name: b}}\n"},
			want: []string{
				"e.yaml:3: there is no InferencePool default/b for these endpoints",
				"p.yaml:4: there is no InferencePool default/b",
			},
		},
		{
			name:  "the same thing twice",
			files: []string{"a.yaml", "\n" + poolA, "b.yml", poolA},
			want:  []string{"b.yml:3: metadata.name: InferencePool default/a is already in a.yaml:4"},
		},
		{
			name:  "a wrong annotation",
			files: []string{"a.yaml", strings.Replace(poolA, "{name: a}", "\n  name: a\n  annotations:\n    homing.dev/prefix-length: \"12\"", 1)},
			want:  []string{`a.yaml:6: annotation homing.dev/prefix-length: "12": must be between 1024 and 65536`},
		},
		{
			name: "endpoints that cannot be",
			files: []string{"a.yaml", poolA, "e.yaml", endpointsHead + `metadata: {name: a}
endpoints:
  - {name: v0, address: localhost, port: 1}
  - {name: v1, address: "[::1]", port: 1}
  - {name: v2, address: "fe80::1%eth0", port: 1}
  - {name: v3, address: 127.0.0.1, port: 1}
  - {name: v4, address: 127.0.0.1, port: 1}
  - {name: v3, address: 127.0.0.2, port: 1}
`},
			want: []string{
				`e.yaml:5: endpoints[0].address: "localhost" is not an IP address: want IPv4 or IPv6 without brackets, port, zone or host name`,
				`e.yaml:6: endpoints[1].address: "[::1]" is not an IP address: want IPv4 or IPv6 without brackets, port, zone or host name`,
				`e.yaml:7: endpoints[2].address: "fe80::1%eth0" is not an IP address: want IPv4 or IPv6 without brackets, port, zone or host name`,
				`e.yaml:9: endpoints[4].port: 127.0.0.1:1 is already endpoint "v3"`,
				`e.yaml:10: endpoints[5].name: "v3" is already at 127.0.0.1: one name is one server`,
			},
		},
		{
			name:  "a port that cannot be",
			files: []string{"a.yaml", poolA, "e.yaml", endpointsHead + "metadata: {name: a}\nendpoints:\n  - {name: v0, address: 127.0.0.1, port: 65536}\n"},
			want:  []string{"e.yaml:5: endpoints[0].port: Invalid value: 65536: must be between 1 and 65535"},
		},
		{
			name:  "a kind that is not read",
			files: []string{"a.yaml", poolA + "---\napiVersion: v1\nkind: Service\nmetadata: {name: a}\n"},
			want:  []string{`a.yaml:9: kind "Service" of apiVersion "v1" is not read here; want InferencePool (inference.networking.k8s.io/v1), PrefixRoutingPolicy (homing.dev/v1alpha1), StaticEndpoints (homing.dev/v1alpha1)`},
		},
		{
			name:  "not YAML, and the other files are checked all the same",
			files: []string{"a.yaml", poolA + "---\nkind: [\n", "b.yaml", poolHead + "metadata: {name: B}\nspec: 5\n"},
			want: []string{
				"a.yaml:9: not YAML: did not find expected node content",
				"b.yaml:3: metadata.name: Invalid value: \"B\": a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')",
				`b.yaml:4: spec: Invalid value: "integer": spec in body must be of type object: "integer"`,
			},
		},
		{
			name:  "a key twice",
			files: []string{"a.yaml", poolA + "kind: InferencePool\n"},
			want:  []string{`a.yaml:8: not YAML: mapping key "kind" already defined at line 2`},
		},
		{
			name:  "not a mapping",
			files: []string{"a.yaml", "- 1\n- 2\n"},
			want:  []string{"a.yaml:1: a document must be a mapping that starts with apiVersion and kind"},
		},
		{
			name:  "a number as a key, a date as a name",
			files: []string{"a.yaml", poolA, "e.yaml", endpointsHead + "metadata: {name: 2026-01-01}\nendpoints: []\n1: x\n"},
			want:  []string{"e.yaml:5: 1: unknown field; want apiVersion, endpoints, kind, metadata"},
		},
		{
			name:  "nothing to serve",
			files: []string{"a.yaml", "---\n# nothing\n---\n"},
			want:  []string{"pools: no InferencePool in any *.yaml or *.yml file"},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			specs, err := loadFiles(t, tt.files...)
			if err == nil {
				t.Fatalf("no error, but %+v", specs)
			}
			if diff := cmp.Diff(tt.want, strings.Split(err.Error(), "\n")); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

// A name that moves to another address is another endpoint, and leaves its count behind; one that
// stays keeps it, whatever else changes.
func TestIdentity(t *testing.T) {
	store := endpoint.NewStore()
	at := func(address string, port string) *endpoint.Endpoint {
		specs, err := loadFiles(t, "a.yaml", poolA, "e.yaml", endpointsHead+"metadata: {name: a}\nendpoints: [{name: v0, address: "+address+", port: "+port+"}]\n")
		if err != nil {
			t.Fatal(err)
		}
		return store.Publish(specs).Pool(specs[0].Name).Endpoints[0]
	}
	first := at("127.0.0.1", "8000")
	first.Load.Add()
	if moved := at("127.0.0.2", "8000"); moved.Load == first.Load || moved.Load.InFlight() != 0 {
		t.Error("an address took over the count of another")
	}
	if otherPort := at("127.0.0.1", "8001"); otherPort.Load == first.Load {
		t.Error("a port took over the count of another")
	}
	if back := at("127.0.0.1", "8000"); back.Load != first.Load {
		t.Error("an endpoint that came back lost the requests that still run there")
	}
}

func refuseHealth(port uint16) string {
	if port == 9003 {
		return "is Homing's own, for health"
	}
	return ""
}
