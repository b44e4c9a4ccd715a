package extproc

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"
)

// TestDrain drains streams at every stage. Those that are through end at once; the others go on and end
// when they are.
func TestDrain(t *testing.T) {
	answered := says(body(chat, true), "request headers: "+named, "request body: "+chatSize+" end")
	respond := says(responseHeaders(false), "response headers:")
	tests := map[string]struct {
		request, response mode
		before, after     []step
		phase             string
	}{
		"before any message": {fullDuplex, none, nil, []step{says(post("/v1/chat/completions")), answered}, "picked"},
		"in the body": {fullDuplex, none,
			[]step{says(post("/v1/chat/completions")), says(body(chat[:30], false))},
			[]step{says(body(chat[30:], true), "request headers: "+named, "request body: 30 bytes", "request body: 30 bytes end")}, "picked"},
		"in a body that passes through": {fullDuplex, none,
			[]step{says(post("/invocations")), says(body(strings.Repeat("x", 4096), false), "request headers: "+named, "request body: 4096 bytes")},
			[]step{says(body("more", false), `request body: "more"`), says(body("", true), `request body: "" end`)}, "picked"},
		"in a body that ends by trailers": {fullDuplex, none,
			[]step{says(post("/v1/chat/completions")), says(body(chat, false))},
			[]step{says(trailers(), "request headers: "+named, "request body: "+chatSize, "request trailers:")}, "picked"},
		"in a body that is still sent during the response": {fullDuplex, none,
			[]step{says(headers(false, ":path", "/v1/realtime", "upgrade", "websocket"), "request headers: "+named), respond},
			[]step{says(body("frame", false), `request body: "frame"`), says(body("", true), `request body: "" end`)}, "response"},
		"in a streamed body": {streamed, none,
			[]step{says(post("/v1/chat/completions"), "request headers: "+named+" override NONE/NONE/SEND"), says(body(chat[:20], false), "request body:")},
			[]step{says(body(chat[20:], true), "request body:")}, "picked"},
		"in a buffered body": {buffered, streamed,
			[]step{says(post("/v1/chat/completions"), "request headers: override BUFFERED/NONE/SEND")},
			[]step{says(body(chat, true), "request body: "+named)}, "picked"},

		"before the response":        {fullDuplex, none, []step{says(post("/v1/chat/completions")), answered}, nil, "picked"},
		"in the response":            {fullDuplex, none, []step{says(post("/v1/chat/completions")), answered, respond}, nil, "response"},
		"in the response, streamed":  {fullDuplex, streamed, []step{says(post("/v1/chat/completions")), answered, respond, says(responseBody("data", false), "response body:")}, nil, "response"},
		"after the response":         {fullDuplex, none, []step{says(post("/v1/chat/completions")), answered, respond, says(responseTrailers(), "response trailers:")}, nil, "done"},
		"in a body that is not seen": {none, none, []step{says(post("/v1/chat/completions"), "request headers: "+named+" override NONE/NONE/SEND")}, nil, "picked"},
		"without a body":             {fullDuplex, none, []step{says(headers(true, ":path", "/v1/models"), "request headers: "+named)}, nil, "picked"},
		"after a local reply":        {fullDuplex, none, []step{says(responseHeaders(false), "response headers:")}, nil, "local_reply"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			g := newGateway(t)
			c := g.open(test.request, test.response)
			c.play(test.before)
			g.waitFor("the stream to wait", func() bool {
				return g.begun.Load() == 1 && g.received.Load() == int64(len(test.before)) && g.idle() == (test.after == nil)
			})
			g.service.Drain()
			c.play(test.after)
			c.wantEnd()
			g.wantMetric(1, "homing_streams_total", "drained", test.phase)
			g.wantMetric(1, "homing_streams_total")
		})
	}
}

// TestDrainWaitsForFullDuplexResponses: their bytes are nowhere but on the way, so the stream goes on until
// the gateway ends it.
func TestDrainWaitsForFullDuplexResponses(t *testing.T) {
	g := newGateway(t)
	g.service.Drain()
	c := g.open(fullDuplex, fullDuplex)
	c.play([]step{
		says(post("/v1/chat/completions")),
		says(body(chat, true), "request headers: "+named, "request body: "+chatSize+" end"),
		says(responseHeaders(false), "response headers:"),
		says(responseBody("data", false), `response body: "data"`),
		says(responseBody("", true), `response body: "" end`),
	})
	c.end()
	g.wantMetric(1, "homing_streams_total", "eof", "done")
}

// TestGRPCCanEndStreams holds gRPC to what endWell takes for granted. If an upgrade fails it, read
// docs/decisions/drain.md: a drain then waits for whatever a response sends next.
func TestGRPCCanEndStreams(t *testing.T) {
	streams, received := make(chan context.Context, 1), make(chan error, 1)
	g := newGateway(t)
	g.handler = func(ss grpc.ServerStream) error {
		streams <- ss.Context()
		received <- ss.RecvMsg(&extprocv3.ProcessingRequest{})
		return nil
	}
	c := g.open(fullDuplex, none)
	if !endWell(<-streams) {
		t.Fatal("gRPC's transport streams have no WriteStatus any more")
	}
	c.wantEnd()
	if err := <-received; err == nil {
		t.Error("RecvMsg goes on after the stream was ended")
	}
}

// TestDrainWithoutWriteStatus has a stream that cannot be ended from outside: it ends after its next message.
func TestDrainWithoutWriteStatus(t *testing.T) {
	g := newLocal(t)
	st := g.service.streams.Get().(*stream)
	deaf := &deafStream{script: []*extprocv3.ProcessingRequest{postIn(none, none), responseHeaders(false), responseTrailers()}}
	deaf.receiving = func() {
		if st.phase == phasePicked {
			g.service.Drain()
		}
	}
	st.rpc = deaf
	if err := st.run(); !errors.Is(err, errDrained) || st.phase != phaseResponse || deaf.replies != 2 {
		t.Errorf("in phase %d, after %d replies: %v", st.phase, deaf.replies, err)
	}
	st.finish(endDrained)
	if g.idle() {
		t.Error("the stream was left behind")
	}
	g.checkBalance()
}

// TestDrainAtAnyMoment drains under many streams. None may end before its request was passed on, and no
// reply may be lost: every message that was sent before the end is answered, or needed no answer.
func TestDrainAtAnyMoment(t *testing.T) {
	for range 20 {
		g := newGateway(t)
		var calls sync.WaitGroup
		for i := range 32 {
			calls.Go(func() { g.drainedCall(rand.New(rand.NewPCG(uint64(i), 4))) })
		}
		time.Sleep(time.Duration(rand.IntN(5)) * time.Millisecond)
		g.service.Drain()
		calls.Wait()
		g.server.GracefulStop() // waits for all streams
		g.wantMetric(32, "homing_picks_total")
		g.wantMetric(32, "homing_streams_total", "drained")
	}
}

// drainedCall plays a request whose stream may be ended as soon as the request has been passed on.
func (g *gateway) drainedCall(random *rand.Rand) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	rpc, err := g.client.Process(ctx)
	if err != nil {
		g.tb.Error(err)
		return
	}
	next := func(m *extprocv3.ProcessingRequest, replies int) error {
		time.Sleep(time.Duration(random.IntN(2000)) * time.Microsecond)
		_ = rpc.Send(m) // fails at the end, which Recv then says
		for range replies {
			if _, err := rpc.Recv(); err != nil {
				return err
			}
		}
		return nil
	}
	request := []error{next(postIn(fullDuplex, none), 0), next(body(chat[:20], false), 0), next(body(chat[20:], true), 3)}
	if err := errors.Join(request...); err != nil {
		g.tb.Errorf("the request was not passed on: %v", err)
	}
	for _, m := range []*extprocv3.ProcessingRequest{responseHeaders(false), responseTrailers()} {
		if err = next(m, 1); err != nil {
			break
		}
	}
	if err == nil {
		_, err = rpc.Recv() // nobody else ends it
	}
	if !errors.Is(err, io.EOF) {
		g.tb.Errorf("the stream ended with %v", err)
	}
}

// idle says whether a stream waits that can be ended.
func (g *gateway) idle() bool {
	g.service.idle.mu.Lock()
	defer g.service.idle.mu.Unlock()
	return len(g.service.idle.streams) > 0
}

// play sends messages, each of which must get its replies.
func (c *call) play(steps []step) {
	c.gateway.tb.Helper()
	for _, s := range steps {
		c.send(clone(s.send))
		c.want(s.want...)
	}
}

// wantEnd waits until the picker ends the stream well, and has counted it.
func (c *call) wantEnd() {
	c.gateway.tb.Helper()
	if reply, err := c.rpc.Recv(); !errors.Is(err, io.EOF) {
		c.gateway.tb.Fatalf("reply %v, error %v, want the stream ended well", reply, err)
	}
	c.gateway.waitFor("its handler to return", func() bool { return c.gateway.ended.Load() == c.gateway.begun.Load() })
}
