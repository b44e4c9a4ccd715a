package extproc

import (
	"net/netip"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/homing-dev/homing/pkg/endpoint"
	"github.com/homing-dev/homing/pkg/prefix"
)

func TestParseSubset(t *testing.T) {
	list := func(values ...any) *structpb.Value {
		l, err := structpb.NewList(values)
		if err != nil {
			t.Fatal(err)
		}
		return structpb.NewListValue(l)
	}
	tests := map[string]struct {
		hint *structpb.Value
		want []string
	}{
		"list":              {list("10.0.0.2:8000", "10.0.0.1:8000"), []string{"10.0.0.1:8000", "10.0.0.2:8000"}},
		"comma string":      {structpb.NewStringValue("10.0.0.2:8000, 10.0.0.1:8000"), []string{"10.0.0.1:8000", "10.0.0.2:8000"}},
		"comma inside list": {list("10.0.0.1:1,10.0.0.1:2"), []string{"10.0.0.1:1", "10.0.0.1:2"}},
		"no port":           {structpb.NewStringValue("10.0.0.1"), []string{"10.0.0.1:0"}},
		"IPv6":              {list("[fd00::1]:8000", "fd00::2", "[fd00::3]"), []string{"[fd00::1]:8000", "[fd00::2]:0", "[fd00::3]:0"}},
		"IPv4 in IPv6":      {list("[::ffff:10.0.0.1]:8000", "::ffff:10.0.0.2"), []string{"10.0.0.1:8000", "10.0.0.2:0"}},
		"nonsense":          {list("vllm-0:8000", "", 7, "10.0.0.1:8000", "[]", "10.0.0.1:99999"), []string{"10.0.0.1:8000"}},
		"nothing":           {list(), nil},
		"empty string":      {structpb.NewStringValue(""), nil},
		"null":              {structpb.NewNullValue(), nil},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			subset := parseSubset(test.hint)
			if subset == nil {
				t.Error("a hint that is there must not be nil: nil allows everything")
			}
			var got []string
			for _, a := range subset {
				got = append(got, a.String())
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("subset (-want +got):\n%s", diff)
			}
		})
	}
}

func TestRequestReadsHeadersFromEitherValue(t *testing.T) {
	tests := map[string]struct {
		headers []*corev3.HeaderValue
		want    request
	}{
		"raw_value": {
			[]*corev3.HeaderValue{{Key: ":path", RawValue: []byte("/a?b")}, {Key: "content-encoding", RawValue: []byte("gzip")}},
			request{path: "/a?b", contentEncoding: "gzip"},
		},
		"value": {
			[]*corev3.HeaderValue{{Key: ":path", Value: "/a"}, {Key: isolationHeader, Value: "me"}},
			request{path: "/a", isolation: prefix.Digest("me")},
		},
		"none": {nil, request{}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			got := request{path: "left over", subset: []netip.AddrPort{{}}}
			got.read(&corev3.HeaderMap{Headers: test.headers}, nil)
			if diff := cmp.Diff(test.want, got, cmp.AllowUnexported(request{})); diff != "" {
				t.Errorf("request (-want +got):\n%s", diff)
			}
		})
	}
}

func TestModesOfNoProtocolConfigIsFullDuplex(t *testing.T) {
	if m := modesOf(nil); !m.duplexRequest() || !m.duplexResponse() || m.override {
		t.Errorf("modes = %+v, want full duplex without an override", m)
	}
}

func TestOverrideIsNotSentWhereItBreaksTheProtocol(t *testing.T) {
	c := &extprocv3.ProtocolConfiguration{RequestBodyMode: buffered, SendBodyWithoutWaitingForHeaderResponse: true}
	if modesOf(c).override {
		t.Error("override beside send_body_without_waiting_for_header_response, which forbids it")
	}
}

// home sends one request and returns the endpoint that its answer names.
func (g *gateway) home(open func() *call, messages ...*extprocv3.ProcessingRequest) string {
	g.tb.Helper()
	c := open()
	c.send(messages...)
	reply, err := c.rpc.Recv()
	if err != nil {
		g.tb.Fatal(err)
	}
	c.reset()
	return string(reply.GetRequestHeaders().GetResponse().GetHeaderMutation().GetSetHeaders()[0].GetHeader().GetRawValue())
}

func manyEndpoints(n int) option {
	var list []string
	for i := range n {
		list = append(list, netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, byte(i / 250), byte(1 + i%250)}), 8000).String())
	}
	return withEndpoints(list...)
}

func TestIsolation(t *testing.T) {
	g := newGateway(t, manyEndpoints(1000))
	duplex := func() *call { return g.open(fullDuplex, none) }
	hidden := func() *call { return g.open(none, none) }
	const path = "/v1/chat/completions"
	with := func(id string) *extprocv3.ProcessingRequest {
		return headers(false, ":path", path, isolationHeader, id)
	}
	plain := g.home(duplex, post(path), body(chat, true))
	alice := g.home(duplex, with("alice"), body(chat, true))

	same := map[string]string{
		"the same chat":            g.home(duplex, post(path), body(chat, true)),
		"the same chat, in pieces": g.home(duplex, post(path), body(chat[:17], false), body(chat[17:], true)),
	}
	for name, got := range same {
		if got != plain {
			t.Errorf("%s went to %s, want its home %s", name, got, plain)
		}
	}
	sameAsAlice := map[string]string{
		"the same id":                      g.home(duplex, with("alice"), body(chat, true)),
		"the header, over the body's key":  g.home(duplex, with("alice"), body(chat[:len(chat)-1]+`,"prompt_cache_key":"bob"}`, true)),
		"the same id in prompt_cache_key":  g.home(duplex, post(path), body(chat[:len(chat)-1]+`,"prompt_cache_key":"alice"}`, true)),
		"an empty header counts as absent": g.home(duplex, with(""), body(chat[:len(chat)-1]+`,"prompt_cache_key":"alice"}`, true)),
	}
	for name, got := range sameAsAlice {
		if got != alice {
			t.Errorf("%s went to %s, want alice's home %s", name, got, alice)
		}
	}
	if bob := g.home(duplex, with("bob"), body(chat, true)); alice == plain || bob == alice || bob == plain {
		t.Errorf("homes of no id, alice and bob are %s, %s and %s of 1,000, want them apart", plain, alice, bob)
	}

	// Without text, the id alone is the key, whether the body is seen or not.
	idHome := g.home(hidden, with("alice"))
	noText := map[string]string{
		"headers only":               g.home(duplex, headers(true, ":path", "/v1/models", isolationHeader, "alice")),
		"a hidden body, again":       g.home(hidden, with("alice")),
		"a chat without messages":    g.home(duplex, with("alice"), body(`{"model":"m","messages":[]}`, true)),
		"the same, by the body's id": g.home(duplex, post(path), body(`{"messages":[],"prompt_cache_key":"alice"}`, true)),
	}
	for name, got := range noText {
		if got != idHome {
			t.Errorf("%s went to %s, want the id's home %s", name, got, idHome)
		}
	}
	g.wantMetric(2, "homing_picks_without_body_total")
	g.wantMetric(0, "homing_picks_total", "no_key")
}

func TestRequestsWithoutKeyGoToTheLeastLoaded(t *testing.T) {
	g := newGateway(t, withEndpoints("10.0.0.1:8000", "10.0.0.2:8000", "10.0.0.3:8000"))
	var open []*call
	for range 3 {
		c := g.open(fullDuplex, none)
		c.send(headers(true, ":path", "/v1/models"))
		if _, err := c.rpc.Recv(); err != nil {
			t.Fatal(err)
		}
		open = append(open, c)
	}
	want := map[string]int64{"10.0.0.1:8000": 1, "10.0.0.2:8000": 1, "10.0.0.3:8000": 1}
	if diff := cmp.Diff(want, g.inFlight()); diff != "" {
		t.Errorf("in flight (-want +got):\n%s", diff)
	}
	for _, c := range open {
		c.end()
	}
	g.wantMetric(3, "homing_picks_total", "PrefixAware", "no_key")
}

func TestSubsetIsTheOnlyPlaceToPick(t *testing.T) {
	const second = "[fd00::2]:8000"
	request := func(hint string) *extprocv3.ProcessingRequest {
		m := headers(true, ":path", "/v1/models")
		m.MetadataContext = metadata("envoy.lb.subset_hint", "x-gateway-destination-endpoint-subset", structpb.NewStringValue(hint))
		return m
	}
	tests := map[string]struct {
		hint, want string
	}{
		"one address":      {second, "request headers: " + overwrites + second + " lb=" + second},
		"without its port": {"fd00::2", "request headers: " + overwrites + second + " lb=" + second},
		"an unknown one":   {"10.9.9.9:8000", "immediate: 503 content-type=application/json"},
		"nothing":          {"", "immediate: 503 content-type=application/json"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			g := newGateway(t, withEndpoints("10.0.0.1:8000", second, "10.0.0.3:8000"),
				withPolicy(func(p *endpoint.Policy) { p.Strategy = endpoint.Random }))
			c := g.open(fullDuplex, none)
			c.send(request(test.hint))
			c.want(test.want)
			c.end()
		})
	}
}
