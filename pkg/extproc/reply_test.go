package extproc

import (
	"encoding/json"
	"io"
	"strings"
	"testing"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"github.com/google/go-cmp/cmp"

	"github.com/homing-dev/homing/pkg/endpoint"
)

func TestFallbacks(t *testing.T) {
	three := withEndpoints("10.0.0.1:8000", "10.0.0.2:8000", "[fd00::3]:8000")
	answer := func(g *gateway) (header, list string) {
		c := g.open(fullDuplex, none)
		c.send(headers(true, ":path", "/v1/models"))
		reply, err := c.rpc.Recv()
		if err != nil {
			t.Fatal(err)
		}
		c.end()
		lb := reply.DynamicMetadata.Fields["envoy.lb"].GetStructValue()
		return string(reply.GetRequestHeaders().Response.HeaderMutation.SetHeaders[0].Header.RawValue),
			lb.Fields["x-gateway-destination-endpoint"].GetStringValue()
	}
	header, list := answer(newGateway(t, three))
	if addresses := strings.Split(list, ","); len(addresses) != 3 || addresses[0] != header || strings.Contains(header, ",") {
		t.Errorf("header %q, metadata %q: want the pick alone in the header, and first of three in the metadata", header, list)
	}
	header, list = answer(newGateway(t, three, withPolicy(func(p *endpoint.Policy) { p.FallbackHeader = true })))
	if header != list || strings.Count(list, ",") != 2 {
		t.Errorf("with fallbackHeader: header %q, metadata %q, want the same list of three", header, list)
	}
}

func TestRefusals(t *testing.T) {
	reject := withPolicy(func(p *endpoint.Policy) { p.Reject, p.ConcurrencyThreshold = true, 1 })
	gone := func(g *gateway) { g.publish() }
	full := func(g *gateway) {
		for _, e := range g.store.Snapshot().Pool(llama).Endpoints {
			e.Load.Add()
			g.tb.Cleanup(e.Load.Release)
		}
	}
	type answer struct {
		Error struct {
			Message, Type, Code string
			Param               *string
		}
	}
	tests := map[string]struct {
		options []option
		prepare func(*gateway)
		status  int32
		headers map[string]string
		kind    string
		reason  string
	}{
		"no endpoint": {[]option{withEndpoints()}, nil, 503, map[string]string{"content-type": "application/json"}, "server_error", "no_ready_endpoint"},
		"no pool":     {nil, gone, 503, map[string]string{"content-type": "application/json"}, "server_error", "no_pool"},
		"saturated": {[]option{reject}, full, 429, map[string]string{"content-type": "application/json", "retry-after": "1"},
			"rate_limit_error", "saturated"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			g := newGateway(t, test.options...)
			if test.prepare != nil {
				test.prepare(g)
			}
			c := g.open(fullDuplex, none)
			c.send(post("/v1/chat/completions"))
			if name != "no pool" { // which is known at the headers
				c.send(body(chat, true))
			}
			reply, err := c.rpc.Recv()
			if err != nil {
				t.Fatal(err)
			}
			c.end()

			got := reply.GetImmediateResponse()
			if int32(got.GetStatus().GetCode()) != test.status {
				t.Errorf("status %v, want %d", got.GetStatus(), test.status)
			}
			if diff := cmp.Diff(test.headers, headersOf(got.GetHeaders())); diff != "" {
				t.Errorf("headers (-want +got):\n%s", diff)
			}
			var a answer
			if err := json.Unmarshal(got.GetBody(), &a); err != nil {
				t.Fatalf("body %s: %v", got.GetBody(), err)
			}
			if a.Error.Type != test.kind || a.Error.Code != test.reason || a.Error.Message == "" || a.Error.Param != nil ||
				!strings.Contains(string(got.GetBody()), `"param":null`) {
				t.Errorf("body %s, want type %s and code %s", got.GetBody(), test.kind, test.reason)
			}
			if name != "no pool" { // whose series are gone with the pool
				g.wantMetric(1, "homing_immediate_responses_total", test.reason)
				g.wantMetric(1, "homing_streams_total", "refused")
			}
		})
	}
}

func headersOf(m *extprocv3.HeaderMutation) map[string]string {
	h := map[string]string{}
	for _, o := range m.GetSetHeaders() {
		h[o.Header.Key] = string(o.Header.RawValue)
	}
	return h
}

func TestAnErrorThatIsNotInTheTableIsInternal(t *testing.T) {
	if r := refusals[refusalOf(io.ErrUnexpectedEOF)]; r.status != 500 || r.reason != "internal" {
		t.Errorf("refusal = %d %s, want 500 internal", r.status, r.reason)
	}
}
