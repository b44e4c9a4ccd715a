package extproc

import (
	"context"
	"errors"
	"io"
	"strings"
	"syscall"
	"testing"
	"time"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"
)

// deafStream is a stream that receives a script and whose replies go nowhere, without gRPC's own cost.
type deafStream struct {
	grpc.ServerStream
	script    []*extprocv3.ProcessingRequest
	receiving func() // called before each message, if set
	replies   int
}

func (d *deafStream) RecvMsg(m any) error {
	if d.receiving != nil {
		d.receiving()
	}
	if len(d.script) == 0 {
		return io.EOF
	}
	in := m.(*extprocv3.ProcessingRequest)
	in.Request, in.ProtocolConfig = d.script[0].Request, d.script[0].ProtocolConfig
	d.script = d.script[1:]
	return nil
}

func (d *deafStream) SendMsg(any) error                           { d.replies++; return nil }
func (d *deafStream) Send(*extprocv3.ProcessingResponse) error    { return d.SendMsg(nil) }
func (d *deafStream) Recv() (*extprocv3.ProcessingRequest, error) { return nil, nil }
func (d *deafStream) Context() context.Context                    { return context.Background() }

// picked is a stream whose answer is out, full duplex both ways.
func picked(tb testing.TB) (*stream, *deafStream) {
	tb.Helper()
	g := newLocal(tb)
	st := g.service.streams.Get().(*stream)
	deaf := &deafStream{}
	st.rpc = deaf
	handle := func(m *extprocv3.ProcessingRequest) {
		st.in.Reset()
		st.in.Request, st.in.ProtocolConfig = m.Request, m.ProtocolConfig
		if err := st.handle(); err != nil {
			tb.Fatal(err)
		}
	}
	handle(headers(true, ":path", "/v1/models"))
	handle(responseHeaders(false))
	if st.phase != phaseResponse || deaf.replies != 2 {
		tb.Fatalf("phase %d after %d replies, want the response's and 2", st.phase, deaf.replies)
	}
	return st, deaf
}

func TestAResponseChunkAllocatesNothing(t *testing.T) {
	st, deaf := picked(t)
	st.in.Request = responseBody(strings.Repeat("x", 100_000), false).Request
	before := deaf.replies
	const runs = 100
	allocs := testing.AllocsPerRun(runs, func() {
		if err := st.handle(); err != nil {
			t.Fatal(err)
		}
	})
	if allocs != 0 {
		t.Errorf("%v allocations for a response chunk, want 0", allocs)
	}
	if got := deaf.replies - before; got != 2*(runs+1) { // AllocsPerRun warms up once
		t.Errorf("%d replies, want two pieces for each chunk", got)
	}
}

// TestARequestAllocatesLittle bounds what the picker itself allocates for a whole request.
func TestARequestAllocatesLittle(t *testing.T) {
	g := newLocal(t, manyEndpoints(10))
	script := []*extprocv3.ProcessingRequest{postIn(fullDuplex, none), body(chat[:30], false), body(chat[30:], true),
		responseHeaders(false), responseTrailers()}
	st := g.service.streams.Get().(*stream)
	deaf := &deafStream{}
	allocs := testing.AllocsPerRun(100, func() { st.play(t, deaf, script) })
	if allocs > 2 { // the path, and the list of endpoints
		t.Errorf("%v allocations for a request, want at most 2", allocs)
	}
	if g.metric("homing_picks_total", "home") != 101 {
		t.Error("the requests were not picked by their key")
	}
	g.checkBalance()
}

// play handles a whole request.
func (st *stream) play(tb testing.TB, deaf *deafStream, script []*extprocv3.ProcessingRequest) {
	deaf.script, st.rpc = script, deaf
	if err := st.run(); !errors.Is(err, io.EOF) {
		tb.Fatal(err)
	}
	st.finish(endEOF)
	st.reset()
}

// postIn is the headers of a chat, as the first message of a stream in these modes.
func postIn(request, response mode) *extprocv3.ProcessingRequest {
	m := post("/v1/chat/completions")
	m.ProtocolConfig = &extprocv3.ProtocolConfiguration{RequestBodyMode: request, ResponseBodyMode: response}
	return m
}

// chat32K is a chat of 32 KiB, cut into chunks as Envoy does it.
func chat32K() []string {
	message := `{"role":"user","content":"` + strings.Repeat("All happy families are alike. ", 32) + `"},`
	text := `{"model":"llama","messages":[`
	for len(text)+len(message) < 32<<10 {
		text += message
	}
	text = strings.TrimSuffix(text, ",") + `],"stream":true}`
	var chunks []string
	for ; len(text) > 16<<10; text = text[16<<10:] {
		chunks = append(chunks, text[:16<<10])
	}
	return append(chunks, text)
}

// BenchmarkStream is a whole request over in-memory gRPC. cpu-ns/op is of both ends, and so more than
// the picker's part.
func BenchmarkStream(b *testing.B) {
	b.Run("chat=32KiB", func(b *testing.B) { benchmarkStream(b, 0) })
	b.Run("chat=32KiB/chunks=100", func(b *testing.B) { benchmarkStream(b, 100) })
}

// benchmarkStream plays a 32 KiB chat; with response chunks, full duplex both ways.
func benchmarkStream(b *testing.B, responseChunks int) {
	g := newGateway(b, manyEndpoints(10))
	response := none
	if responseChunks > 0 {
		response = fullDuplex
	}
	script := []*extprocv3.ProcessingRequest{postIn(fullDuplex, response)}
	chunks := chat32K()
	for i, c := range chunks {
		script = append(script, body(c, i == len(chunks)-1))
	}
	script = append(script, responseHeaders(false))
	for range responseChunks {
		script = append(script, responseBody(`data: {"choices":[{"index":0,"delta":{"content":" token"}}]}`+"\n\n", false))
	}
	script = append(script, responseTrailers())
	replies := 1 + len(chunks) + 1 + responseChunks + 1

	b.ReportAllocs()
	before := cpuTime(b)
	defer func() { b.ReportMetric(float64(cpuTime(b)-before)/float64(b.N), "cpu-ns/op") }()
	for b.Loop() {
		rpc, err := g.client.Process(context.Background())
		if err != nil {
			b.Fatal(err)
		}
		for _, m := range script {
			if err := rpc.Send(m); err != nil {
				b.Fatal(err)
			}
		}
		for range replies {
			if _, err := rpc.Recv(); err != nil {
				b.Fatal(err)
			}
		}
		if err := rpc.CloseSend(); err != nil {
			b.Fatal(err)
		}
		_, _ = rpc.Recv()
	}
}

// cpuTime is what this process has used so far.
func cpuTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkHandle is the picker's own part of the same request, without gRPC and protobuf.
func BenchmarkHandle(b *testing.B) {
	g := newLocal(b, manyEndpoints(10))
	script := []*extprocv3.ProcessingRequest{postIn(fullDuplex, none)}
	chunks := chat32K()
	size := 0
	for i, c := range chunks {
		size += len(c)
		script = append(script, body(c, i == len(chunks)-1))
	}
	script = append(script, responseHeaders(false), responseTrailers())
	st, deaf := g.service.streams.Get().(*stream), &deafStream{}
	b.SetBytes(int64(size))
	b.ReportAllocs()
	for b.Loop() {
		st.play(b, deaf, script)
	}
}

// BenchmarkResponseChunk is the picker's own part of a response chunk, full duplex.
func BenchmarkResponseChunk(b *testing.B) {
	st, _ := picked(b)
	st.in.Request = responseBody(`data: {"choices":[{"index":0,"delta":{"content":" token"}}]}`+"\n\n", false).Request
	b.ReportAllocs()
	for b.Loop() {
		if err := st.handle(); err != nil {
			b.Fatal(err)
		}
	}
}
