package extproc

import (
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	procmodev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/homing-dev/homing/pkg/endpoint"
	"github.com/homing-dev/homing/pkg/picker"
)

// TestStreamsEndAnywhere ends streams at every stage, as EOF and as Canceled. The gateway helper checks
// after each that picks and releases are equal and nothing is in flight.
func TestStreamsEndAnywhere(t *testing.T) {
	answered := []string{"request headers: " + named, "request body: " + chatSize + " end"}
	stages := []struct {
		name     string
		messages []*extprocv3.ProcessingRequest
		replies  []string
		phase    string
		picks    float64
	}{
		{"before any message", nil, nil, "start", 0},
		{"before the body", []*extprocv3.ProcessingRequest{post("/v1/chat/completions")}, nil, "request", 0},
		{"in the body", []*extprocv3.ProcessingRequest{post("/v1/chat/completions"), body(chat[:9], false)}, nil, "request", 0},
		{"after the pick", []*extprocv3.ProcessingRequest{post("/v1/chat/completions"), body(chat, true)}, answered, "picked", 1},
		{"in the response", []*extprocv3.ProcessingRequest{post("/v1/chat/completions"), body(chat, true), responseHeaders(false)},
			append(answered[:2:2], "response headers:"), "response", 1},
		{"after the response", []*extprocv3.ProcessingRequest{post("/v1/chat/completions"), body(chat, true), responseHeaders(false), responseTrailers()},
			append(answered[:2:2], "response headers:", "response trailers:"), "done", 1},
		{"after a local reply", []*extprocv3.ProcessingRequest{responseHeaders(true)}, []string{"response headers:"}, "local_reply", 0},
	}
	for _, stage := range stages {
		for end, finish := range map[string]func(*call){"eof": (*call).end, "canceled": (*call).reset} {
			t.Run(stage.name+"/"+end, func(t *testing.T) {
				g := newGateway(t)
				c := g.open(fullDuplex, none)
				for _, m := range stage.messages {
					c.send(clone(m))
				}
				c.want(stage.replies...)
				if n := float64(g.inFlight()["10.0.0.1:8000"]); n != stage.picks {
					t.Errorf("%v in flight before the end, want %v", n, stage.picks)
				}
				g.waitFor("the messages to arrive", func() bool {
					return g.begun.Load() == 1 && g.received.Load() == int64(len(stage.messages))
				})
				finish(c)
				g.wantMetric(1, "homing_streams_total", end, stage.phase)
				g.wantMetric(1, "homing_streams_total")
				g.wantMetric(stage.picks, "homing_picks_total")
				g.wantMetric(stage.picks, "homing_decision_seconds")
				g.wantMetric(stage.picks, "homing_pick_seconds")
			})
		}
	}
}

func TestServedElsewhereMovesTheRequest(t *testing.T) {
	const first, second = "10.0.0.1:8000", "[fd00::2]:8000"
	attributes := func(address string) *extprocv3.ProcessingRequest {
		m := responseHeaders(false)
		m.Attributes = map[string]*structpb.Struct{"envoy.filters.http.ext_proc": {Fields: map[string]*structpb.Value{
			"upstream.address": structpb.NewStringValue(address),
		}}}
		return m
	}
	trailing := responseTrailers()
	trailing.MetadataContext = servedBy(second).MetadataContext
	tests := map[string]struct {
		served    *extprocv3.ProcessingRequest
		at        string
		elsewhere float64
	}{
		"by metadata, elsewhere":     {servedBy(second), second, 1},
		"by metadata, as picked":     {servedBy(first), first, 0},
		"by attribute, elsewhere":    {attributes(second), second, 1},
		"by attribute, as picked":    {attributes(first), first, 0},
		"by metadata, with trailers": {trailing, second, 1},
		"as picked, mapped to IPv6":  {servedBy("[::ffff:10.0.0.1]:8000"), first, 0},
		"not of the pool":            {servedBy("10.7.7.7:80"), first, 1},
		"not an address":             {servedBy("envoy://inner/10.0.0.1:8000"), first, 0},
		"not told":                   {responseHeaders(false), first, 0},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			g := newGateway(t, withEndpoints(first, second))
			subset := headers(true, ":path", "/v1/models")
			subset.MetadataContext = metadata("envoy.lb.subset_hint", "x-gateway-destination-endpoint-subset", structpb.NewStringValue(first))
			for range 2 {
				c := g.open(fullDuplex, none)
				c.send(clone(subset))
				c.want("request headers: " + named)
				c.send(clone(test.served))
				if _, err := c.rpc.Recv(); err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(map[string]int64{test.at: 1}, g.inFlight()); diff != "" {
					t.Errorf("in flight (-want +got):\n%s", diff)
				}
				c.end()
			}
			g.wantMetric(2*test.elsewhere, "homing_served_elsewhere_total")
			if n := g.logsWith("served a request at another endpoint"); n != int(test.elsewhere) {
				t.Errorf("said %d times, want %v: once per pool", n, test.elsewhere)
			}
		})
	}
}

// TestGatewaysThatCloseEarly plays the rows of the table of modes that was measured with Envoy 1.40.0.
func TestGatewaysThatCloseEarly(t *testing.T) {
	const request, response = "request", "response_headers"
	type play func(*call)
	withHeaders := func(finish play) play {
		return func(c *call) {
			c.send(responseHeaders(false))
			c.want("response headers:")
			finish(c)
		}
	}
	tests := map[string]struct {
		response play
		mode     mode
		at       string // where it is closed early, if it is
	}{
		"SEND/NONE/SEND": {withHeaders((*call).end), none, ""},
		"SKIP/NONE/SEND": {(*call).end, none, ""},
		"SEND/NONE/SKIP": {withHeaders((*call).reset), none, response},
		"SKIP/NONE/SKIP": {(*call).reset, none, request},
		"SEND/FULL_DUPLEX/SEND": {withHeaders(func(c *call) {
			c.send(responseBody("x", true))
			c.want(`response body: "x" end`)
			c.reset()
		}), fullDuplex, ""},
		"SEND/STREAMED/SKIP": {withHeaders(func(c *call) {
			c.send(responseBody("x", true))
			c.want("response body:")
			c.reset()
		}), streamed, ""},
		"SEND/NONE/SEND, all of it there at once": {func(c *call) {
			m := responseHeaders(false)
			h := m.GetResponseHeaders().Headers
			h.Headers = append(h.Headers, &corev3.HeaderValue{Key: "content-length", RawValue: []byte("5")})
			c.send(m)
			c.want("response headers:")
			c.reset()
		}, none, ""},
		"a response without a body": {func(c *call) {
			c.send(responseHeaders(true))
			c.want("response headers:")
			c.reset()
		}, none, ""},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			at := time.Unix(1e9, 0) // nothing takes any time
			g := newGateway(t, withOptions(func(o *Options) { o.Now = func() time.Time { return at } }))
			for range 5 {
				c := g.open(fullDuplex, test.mode)
				c.send(headers(true, ":path", "/v1/models"))
				c.want("request headers: " + named)
				test.response(c)
			}
			early, lines := 0.0, 0
			if test.at != "" {
				early, lines = 5, 1
			}
			g.wantMetric(early, "homing_streams_closed_early_total")
			g.wantMetric(early, "homing_streams_closed_early_total", test.at)
			if n := g.logsWith("before responses end"); n != lines {
				t.Errorf("said %d times, want %d", n, lines)
			}
		})
	}
}

func TestALostConnectionIsNotCalledAHabit(t *testing.T) {
	var now atomic.Int64
	g := newGateway(t, withOptions(func(o *Options) { o.Now = func() time.Time { return time.Unix(now.Load(), 0) } }))
	for range 5 {
		c := g.open(fullDuplex, none)
		c.send(headers(true, ":path", "/v1/models"), responseHeaders(false))
		c.want("request headers: "+named, "response headers:")
		now.Add(5)
		c.reset()
	}
	g.wantMetric(0, "homing_streams_closed_early_total")
}

func TestAPanicCostsItsStreamOnly(t *testing.T) {
	var armed atomic.Bool
	random := sequence()
	g := newGateway(t,
		withPolicy(func(p *endpoint.Policy) { p.Strategy = endpoint.Random }),
		withOptions(func(o *Options) {
			o.Picker = picker.New(func() uint64 {
				if armed.Load() {
					panic("in the pick")
				}
				return random()
			})
			o.Now = func() time.Time { return time.Unix(0, 0) }
		}))
	other := g.open(fullDuplex, none)
	other.send(post("/invocations"))
	other.want("request headers: " + named)

	armed.Store(true)
	c := g.open(fullDuplex, none)
	c.send(post("/invocations"))
	if _, err := c.rpc.Recv(); status.Code(err) != codes.Internal || strings.Contains(err.Error(), "pick)") {
		t.Errorf("the panicked stream ended with %v, want Internal and no detail", err)
	}
	armed.Store(false)

	other.send(body("still here", true))
	other.want(`request body: "still here" end`)
	other.end()
	g.wantMetric(1, "homing_streams_total", "panic")
	g.wantMetric(1, "homing_streams_total", "eof")
	if g.logsWith("A stream panicked") != 1 {
		t.Error("the panic was not logged")
	}
}

func TestAPanicAfterThePickReleasesIt(t *testing.T) {
	var calls atomic.Int32
	g := newGateway(t, withOptions(func(o *Options) {
		o.Now = func() time.Time {
			if calls.Add(1) == 3 { // the first is the service's, then come the first message's and the answer's
				panic("after the pick")
			}
			return time.Unix(0, 0)
		}
	}))
	c := g.open(fullDuplex, none)
	c.send(headers(true, ":path", "/v1/models"))
	c.want("request headers: " + named)
	if _, err := c.rpc.Recv(); status.Code(err) != codes.Internal {
		t.Errorf("the panicked stream ended with %v, want Internal", err)
	}
	g.wantMetric(1, "homing_picks_total")
	g.wantMetric(1, "homing_releases_total")
	g.wantMetric(1, "homing_streams_total", "panic", "picked")
}

func TestMessagesOutOfOrder(t *testing.T) {
	observed := post("/")
	observed.ObservabilityMode = true
	tests := map[string]struct {
		mode     mode
		messages []*extprocv3.ProcessingRequest
		want     codes.Code
	}{
		"body first":         {buffered, []*extprocv3.ProcessingRequest{body("x", true)}, codes.InvalidArgument},
		"trailers first":     {fullDuplex, []*extprocv3.ProcessingRequest{trailers()}, codes.InvalidArgument},
		"headers twice":      {fullDuplex, []*extprocv3.ProcessingRequest{post("/"), post("/")}, codes.InvalidArgument},
		"observability mode": {fullDuplex, []*extprocv3.ProcessingRequest{observed}, codes.Unimplemented},
		"gRPC body mode":     {procmodev3.ProcessingMode_GRPC, []*extprocv3.ProcessingRequest{post("/")}, codes.Unimplemented},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			g := newGateway(t)
			c := g.open(test.mode, none)
			c.send(test.messages...)
			if _, err := c.rpc.Recv(); status.Code(err) != test.want {
				t.Errorf("error %v, want %v", err, test.want)
			}
			g.wantMetric(1, "homing_streams_total", "failed")
			if n := g.logsWith("A stream failed"); n != 1 {
				t.Errorf("%d log lines say why, want one", n)
			}
		})
	}
}
