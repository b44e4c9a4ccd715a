package extproc

import (
	"context"
	"strings"
	"testing"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"
)

// deafStream is a stream whose replies go nowhere, without gRPC's own cost.
type deafStream struct {
	grpc.ServerStream
	replies int
}

func (d *deafStream) SendMsg(any) error                           { d.replies++; return nil }
func (d *deafStream) Send(*extprocv3.ProcessingResponse) error    { return d.SendMsg(nil) }
func (d *deafStream) Recv() (*extprocv3.ProcessingRequest, error) { return nil, nil }
func (d *deafStream) Context() context.Context                    { return context.Background() }

// picked is a stream whose answer is out, full duplex both ways.
func picked(tb testing.TB) (*stream, *deafStream) {
	tb.Helper()
	g := newGateway(tb)
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
	tb.Cleanup(func() { st.finish(endEOF) })
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

// BenchmarkStream is a whole request over in-memory gRPC: both ends, so the picker's part is less.
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
	first := post("/v1/chat/completions")
	first.ProtocolConfig = &extprocv3.ProtocolConfiguration{RequestBodyMode: fullDuplex, ResponseBodyMode: response}
	script := []*extprocv3.ProcessingRequest{first}
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

// BenchmarkHandle is the picker's own part of the same request, without gRPC and protobuf.
func BenchmarkHandle(b *testing.B) {
	g := newGateway(b, manyEndpoints(10))
	script := []*extprocv3.ProcessingRequest{post("/v1/chat/completions")}
	chunks := chat32K()
	size := 0
	for i, c := range chunks {
		size += len(c)
		script = append(script, body(c, i == len(chunks)-1))
	}
	script = append(script, responseHeaders(false), responseTrailers())
	b.SetBytes(int64(size))
	b.ReportAllocs()
	for b.Loop() {
		st := g.service.streams.Get().(*stream)
		st.rpc = &deafStream{}
		for _, m := range script {
			st.in.Request = m.Request
			if err := st.handle(); err != nil {
				b.Fatal(err)
			}
		}
		st.finish(endEOF)
		st.reset()
		g.service.streams.Put(st)
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
