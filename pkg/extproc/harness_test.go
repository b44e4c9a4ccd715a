package extproc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	procmodev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"github.com/go-logr/logr/funcr"
	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/homing-dev/homing/pkg/endpoint"
	"github.com/homing-dev/homing/pkg/picker"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type mode = procmodev3.ProcessingMode_BodySendMode

const (
	none       = procmodev3.ProcessingMode_NONE
	streamed   = procmodev3.ProcessingMode_STREAMED
	buffered   = procmodev3.ProcessingMode_BUFFERED
	partial    = procmodev3.ProcessingMode_BUFFERED_PARTIAL
	fullDuplex = procmodev3.ProcessingMode_FULL_DUPLEX_STREAMED
)

var llama = endpoint.PoolName{Namespace: "inference", Name: "llama"}

// gateway is a service behind in-memory gRPC, and what a gateway sees of it.
type gateway struct {
	tb      testing.TB
	store   *endpoint.Store
	service *Service
	server  *grpc.Server
	reg     *prometheus.Registry
	client  extprocv3.ExternalProcessorClient
	handler func(grpc.ServerStream) error // in the service's place, if set

	begun, ended, received atomic.Int64 // on the server's side: streams, streams, messages

	mu   sync.Mutex
	logs []string
}

type option func(*Options, *endpoint.PoolSpec)

func withPolicy(change func(*endpoint.Policy)) option {
	return func(_ *Options, p *endpoint.PoolSpec) { change(&p.Policy) }
}

func withEndpoints(addresses ...string) option {
	return func(_ *Options, p *endpoint.PoolSpec) { p.Endpoints = specs(addresses...) }
}

func withOptions(change func(*Options)) option {
	return func(o *Options, _ *endpoint.PoolSpec) { change(o) }
}

func specs(addresses ...string) []endpoint.Spec {
	var list []endpoint.Spec
	for i, a := range addresses {
		addr := netip.MustParseAddrPort(a)
		name := fmt.Sprintf("vllm-%d", i)
		list = append(list, endpoint.Spec{ID: endpoint.ID{UID: name, Port: addr.Port()}, Name: name, Addr: addr})
	}
	return list
}

// newLocal makes a service of a pool with one endpoint, 10.0.0.1:8000, unless the options say
// otherwise. Nothing serves it.
func newLocal(tb testing.TB, options ...option) *gateway {
	tb.Helper()
	g := &gateway{tb: tb, store: endpoint.NewStore(), reg: prometheus.NewRegistry()}
	pool := endpoint.PoolSpec{Name: llama, Port: 9002, Policy: endpoint.DefaultPolicy(), Endpoints: specs("10.0.0.1:8000")}
	o := Options{
		Pool: llama, Store: g.store, Picker: picker.New(sequence()), Metrics: NewMetrics(g.reg, g.store),
		Log: funcr.New(func(_, line string) {
			g.mu.Lock()
			defer g.mu.Unlock()
			g.logs = append(g.logs, line)
		}, funcr.Options{}),
	}
	for _, change := range options {
		change(&o, &pool)
	}
	g.publish(pool)
	g.service = New(o)
	return g
}

// newGateway serves such a service over in-memory gRPC.
func newGateway(tb testing.TB, options ...option) *gateway {
	tb.Helper()
	g := newLocal(tb, options...)
	listener := bufconn.Listen(1 << 20)
	g.server = grpc.NewServer(grpc.StreamInterceptor(g.track))
	g.service.Register(g.server)
	go func() { _ = g.server.Serve(listener) }()
	conn, err := grpc.NewClient("passthrough:///gateway", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }))
	if err != nil {
		tb.Fatal(err)
	}
	g.client = extprocv3.NewExternalProcessorClient(conn)
	tb.Cleanup(func() {
		g.server.GracefulStop() // waits for all streams
		_ = conn.Close()
		g.checkBalance()
	})
	return g
}

func (g *gateway) publish(pools ...endpoint.PoolSpec) { g.store.Publish(pools) }

func (g *gateway) track(srv any, ss grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	g.begun.Add(1)
	defer g.ended.Add(1)
	if g.handler != nil {
		return g.handler(ss)
	}
	return handler(srv, &countingStream{ss, &g.received})
}

// countingStream counts the messages that were received.
type countingStream struct {
	grpc.ServerStream
	received *atomic.Int64
}

func (s *countingStream) RecvMsg(m any) error {
	err := s.ServerStream.RecvMsg(m)
	if err == nil {
		s.received.Add(1)
	}
	return err
}

// waitFor waits until a condition holds that another goroutine brings about.
func (g *gateway) waitFor(what string, holds func() bool) {
	g.tb.Helper()
	for deadline := time.Now().Add(10 * time.Second); !holds(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			g.tb.Fatalf("waited in vain for %s", what)
		}
	}
}

// checkBalance fails the test unless every pick was released, by the metrics and by the endpoints.
func (g *gateway) checkBalance() {
	g.tb.Helper()
	if picks, releases := g.metric("homing_picks_total"), g.metric("homing_releases_total"); picks != releases {
		g.tb.Errorf("%v picks, but %v releases", picks, releases)
	}
	for pool := range g.store.Snapshot().Pools {
		for _, e := range pool.Endpoints {
			if n := e.Load.InFlight(); n != 0 {
				g.tb.Errorf("%d in flight at %s when all streams have ended", n, e.Address)
			}
		}
	}
}

// inFlight is what is counted at each endpoint of the pool, by address.
func (g *gateway) inFlight() map[string]int64 {
	counts := map[string]int64{}
	for _, e := range g.store.Snapshot().Pool(llama).Endpoints {
		if n := e.Load.InFlight(); n != 0 {
			counts[e.Address] = n
		}
	}
	return counts
}

// metric sums the series of a metric whose label values include all those given. A histogram's value
// is its count.
func (g *gateway) metric(name string, values ...string) float64 {
	g.tb.Helper()
	families, err := g.reg.Gather()
	if err != nil {
		g.tb.Fatal(err)
	}
	sum := 0.0
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.Metric {
			var have []string
			for _, l := range m.Label {
				have = append(have, l.GetValue())
			}
			if !slices.ContainsFunc(values, func(v string) bool { return !slices.Contains(have, v) }) {
				sum += m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
			}
		}
	}
	return sum
}

func (g *gateway) wantMetric(want float64, name string, values ...string) {
	g.tb.Helper()
	if got := g.metric(name, values...); got != want {
		g.tb.Errorf("%s%v = %v, want %v", name, values, got, want)
	}
}

func (g *gateway) logsWith(text string) int {
	g.mu.Lock()
	defer g.mu.Unlock()
	n := 0
	for _, line := range g.logs {
		if strings.Contains(line, text) {
			n++
		}
	}
	return n
}

// call is one stream, from the gateway's side.
type call struct {
	gateway *gateway
	rpc     extprocv3.ExternalProcessor_ProcessClient
	cancel  context.CancelFunc
	config  *extprocv3.ProtocolConfiguration // of the next message
}

func (g *gateway) open(request, response mode) *call {
	g.tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	g.tb.Cleanup(cancel)
	rpc, err := g.client.Process(ctx)
	if err != nil {
		g.tb.Fatal(err)
	}
	return &call{gateway: g, rpc: rpc, cancel: cancel,
		config: &extprocv3.ProtocolConfiguration{RequestBodyMode: request, ResponseBodyMode: response}}
}

// send sends messages; the first of the stream carries the modes.
func (c *call) send(messages ...*extprocv3.ProcessingRequest) {
	c.gateway.tb.Helper()
	for _, m := range messages {
		m.ProtocolConfig, c.config = c.config, nil
		if err := c.rpc.Send(m); err != nil {
			c.gateway.tb.Fatalf("send: %v", err)
		}
	}
}

// want receives as many replies as there are descriptions, and compares.
func (c *call) want(descriptions ...string) {
	c.gateway.tb.Helper()
	var got []string
	for range descriptions {
		reply, err := c.rpc.Recv()
		if err != nil {
			got = append(got, err.Error())
			break
		}
		got = append(got, describe(reply))
	}
	if diff := cmp.Diff(descriptions, got); diff != "" {
		c.gateway.tb.Fatalf("replies (-want +got):\n%s", diff)
	}
}

// end closes the stream as a gateway does that is through. There must be no reply left. The picker has
// counted the stream when the gateway sees its end.
func (c *call) end() {
	c.gateway.tb.Helper()
	if err := c.rpc.CloseSend(); err != nil {
		c.gateway.tb.Fatal(err)
	}
	if reply, err := c.rpc.Recv(); !errors.Is(err, io.EOF) {
		c.gateway.tb.Fatalf("at the end: reply %v, error %v, want EOF", reply, err)
	}
}

// reset ends the stream as Canceled, and waits for the picker to notice.
func (c *call) reset() {
	before := c.gateway.ended.Load()
	c.cancel()
	c.gateway.waitFor("a stream to end", func() bool { return c.gateway.ended.Load() > before })
}

func clone(m *extprocv3.ProcessingRequest) *extprocv3.ProcessingRequest {
	return proto.Clone(m).(*extprocv3.ProcessingRequest)
}

// describe puts a reply into a line.
func describe(r *extprocv3.ProcessingResponse) string {
	var parts []string
	add := func(format string, args ...any) { parts = append(parts, fmt.Sprintf(format, args...)) }
	common := func(c *extprocv3.CommonResponse) {
		for _, h := range c.GetHeaderMutation().GetSetHeaders() {
			add("%s %s=%s", h.AppendAction, h.Header.Key, h.Header.RawValue)
		}
		if s := c.GetBodyMutation().GetStreamedResponse(); s != nil {
			if len(s.Body) > 16 {
				add("%d bytes", len(s.Body))
			} else {
				add("%q", s.Body)
			}
			if s.EndOfStream {
				add("end")
			}
		}
	}
	switch m := r.Response.(type) {
	case *extprocv3.ProcessingResponse_RequestHeaders:
		add("request headers:")
		common(m.RequestHeaders.Response)
	case *extprocv3.ProcessingResponse_RequestBody:
		add("request body:")
		common(m.RequestBody.Response)
	case *extprocv3.ProcessingResponse_RequestTrailers:
		add("request trailers:")
	case *extprocv3.ProcessingResponse_ResponseHeaders:
		add("response headers:")
		common(m.ResponseHeaders.Response)
	case *extprocv3.ProcessingResponse_ResponseBody:
		add("response body:")
		common(m.ResponseBody.Response)
	case *extprocv3.ProcessingResponse_ResponseTrailers:
		add("response trailers:")
	case *extprocv3.ProcessingResponse_ImmediateResponse:
		add("immediate: %d", m.ImmediateResponse.Status.Code)
		for _, h := range m.ImmediateResponse.Headers.SetHeaders {
			add("%s=%s", h.Header.Key, h.Header.RawValue)
		}
	default:
		add("%T", m)
	}
	if v, ok := r.DynamicMetadata.GetFields()["envoy.lb"]; ok {
		add("lb=%s", v.GetStructValue().Fields["x-gateway-destination-endpoint"].GetStringValue())
	}
	if o := r.ModeOverride; o != nil {
		add("override %s/%s/%s", o.RequestBodyMode, o.ResponseBodyMode, o.ResponseTrailerMode)
	}
	return strings.Join(parts, " ")
}

// The answer that names 10.0.0.1:8000, and short names for replies that change nothing.
const (
	overwrites = "OVERWRITE_IF_EXISTS_OR_ADD x-gateway-destination-endpoint="
	named      = overwrites + "10.0.0.1:8000 lb=10.0.0.1:8000"
)

func headers(end bool, pairs ...string) *extprocv3.ProcessingRequest {
	h := &corev3.HeaderMap{}
	for i := 0; i < len(pairs); i += 2 {
		h.Headers = append(h.Headers, &corev3.HeaderValue{Key: pairs[i], RawValue: []byte(pairs[i+1])})
	}
	return &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_RequestHeaders{
		RequestHeaders: &extprocv3.HttpHeaders{Headers: h, EndOfStream: end},
	}}
}

func post(path string) *extprocv3.ProcessingRequest {
	return headers(false, ":method", "POST", ":path", path)
}

func body(b string, end bool) *extprocv3.ProcessingRequest {
	return &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_RequestBody{
		RequestBody: &extprocv3.HttpBody{Body: []byte(b), EndOfStream: end},
	}}
}

func trailers() *extprocv3.ProcessingRequest {
	return &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_RequestTrailers{RequestTrailers: &extprocv3.HttpTrailers{}}}
}

func responseHeaders(end bool) *extprocv3.ProcessingRequest {
	return &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_ResponseHeaders{
		ResponseHeaders: &extprocv3.HttpHeaders{EndOfStream: end, Headers: &corev3.HeaderMap{
			Headers: []*corev3.HeaderValue{{Key: ":status", RawValue: []byte("200")}},
		}},
	}}
}

// servedBy adds the metadata by which a gateway tells which endpoint served.
func servedBy(address string) *extprocv3.ProcessingRequest {
	m := responseHeaders(false)
	m.MetadataContext = metadata("envoy.lb", "x-gateway-destination-endpoint-served", structpb.NewStringValue(address))
	return m
}

func metadata(namespace, key string, value *structpb.Value) *corev3.Metadata {
	return &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{
		namespace: {Fields: map[string]*structpb.Value{key: value}},
	}}
}

func responseBody(b string, end bool) *extprocv3.ProcessingRequest {
	return &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_ResponseBody{
		ResponseBody: &extprocv3.HttpBody{Body: []byte(b), EndOfStream: end},
	}}
}

func responseTrailers() *extprocv3.ProcessingRequest {
	return &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_ResponseTrailers{ResponseTrailers: &extprocv3.HttpTrailers{}}}
}

// sequence is a source of numbers that is the same in every run.
func sequence() func() uint64 {
	var mu sync.Mutex
	n := uint64(0)
	return func() uint64 {
		mu.Lock()
		defer mu.Unlock()
		n += 0x9e3779b97f4a7c15
		return n
	}
}
