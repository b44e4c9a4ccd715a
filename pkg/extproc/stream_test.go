package extproc

import (
	"bytes"
	"strings"
	"sync"
	"testing"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"github.com/go-logr/logr/funcr"

	"github.com/homing-dev/homing/pkg/endpoint"
)

// step is a message from Envoy and the replies it must get.
type step struct {
	send *extprocv3.ProcessingRequest
	want []string
}

func says(m *extprocv3.ProcessingRequest, replies ...string) step { return step{m, replies} }

const (
	chat     = `{"model":"m","messages":[{"role":"user","content":"hello"}]}`
	chatSize = "60 bytes"
)

func TestModes(t *testing.T) {
	raw := strings.Repeat("x", 4096)
	large := strings.Repeat("y", maxChunk+1)
	tests := map[string]struct {
		request, response mode
		policy            func(*endpoint.Policy)
		steps             []step
	}{
		"full duplex, the body in one chunk": {fullDuplex, none, nil, []step{
			says(post("/v1/chat/completions")),
			says(body(chat, true), "request headers: "+named, "request body: "+chatSize+" end"),
			says(responseHeaders(false), "response headers:"),
			says(responseTrailers(), "response trailers:"),
		}},
		"full duplex, the end in an empty chunk": {fullDuplex, none, nil, []step{
			says(post("/v1/chat/completions")),
			says(body(chat[:30], false)),
			says(body(chat[30:], false)),
			says(body("", true), "request headers: "+named, "request body: "+chatSize, `request body: "" end`),
		}},
		"full duplex, the end by trailers": {fullDuplex, none, nil, []step{
			says(post("/v1/chat/completions")),
			says(body(chat, false)),
			says(trailers(), "request headers: "+named, "request body: "+chatSize, "request trailers:"),
		}},
		"full duplex, trailers after the pick": {fullDuplex, none, nil, []step{
			says(post("/invocations")),
			says(body(raw, false), "request headers: "+named, "request body: 4096 bytes"),
			says(body("more", false), `request body: "more"`),
			says(trailers(), "request trailers:"),
		}},
		"full duplex, trailers and no body": {fullDuplex, none, nil, []step{
			says(post("/v1/chat/completions")),
			says(trailers(), "request headers: "+named, "request trailers:"),
		}},
		"full duplex, answered while the body still comes": {fullDuplex, none, nil, []step{
			says(post("/invocations")),
			says(body(raw[:4095], false)),
			says(body("x", false), "request headers: "+named, "request body: 4095 bytes", `request body: "x"`),
			says(responseHeaders(false), "response headers:"), // servers may answer early
			says(body("more", false), `request body: "more"`),
			says(body("", false)),
			says(body("last", true), `request body: "last" end`),
		}},
		"full duplex, large chunks in pieces": {fullDuplex, none, nil, []step{
			says(post("/invocations")),
			says(body(large, false), "request headers: "+named, "request body: 62000 bytes", `request body: "y"`),
			says(body(large, true), "request body: 62000 bytes", `request body: "y" end`),
		}},
		"full duplex, a chunk of exactly one piece ends once": {fullDuplex, none, nil, []step{
			says(post("/invocations")),
			says(body(large[:maxChunk], true), "request headers: "+named, "request body: 62000 bytes end"),
		}},
		"full duplex, a second end (envoy#46237)": {fullDuplex, none, nil, []step{
			says(post("/v1/chat/completions")),
			says(body(chat, true), "request headers: "+named, "request body: "+chatSize+" end"),
			says(body("tail", true)),
			says(body("", true)),
			says(responseHeaders(false), "response headers:"),
		}},
		"full duplex, no body": {fullDuplex, none, nil, []step{
			says(headers(true, ":method", "GET", ":path", "/v1/models"), "request headers: "+named),
			says(responseHeaders(true), "response headers:"),
		}},
		"full duplex both ways": {fullDuplex, fullDuplex, nil, []step{
			says(post("/v1/chat/completions")),
			says(body(chat, true), "request headers: "+named, "request body: "+chatSize+" end"),
			says(responseHeaders(false), "response headers:"),
			says(responseBody("data: 1", false), `response body: "data: 1"`),
			says(responseBody(large, false), "response body: 62000 bytes", `response body: "y"`),
			says(responseBody("", true), `response body: "" end`),
			says(responseBody("", true)),
		}},
		"full duplex, response trailers": {fullDuplex, fullDuplex, nil, []step{
			says(post("/v1/chat/completions")),
			says(body(chat, true), "request headers: "+named, "request body: "+chatSize+" end"),
			says(responseHeaders(false), "response headers:"),
			says(responseBody("data", false), `response body: "data"`),
			says(responseTrailers(), "response trailers:"),
		}},
		"a strategy without keys is answered at the headers": {fullDuplex, none, func(p *endpoint.Policy) { p.Strategy = endpoint.Random }, []step{
			says(post("/v1/chat/completions"), "request headers: "+named),
			says(body("a", false), `request body: "a"`),
			says(body("", true), `request body: "" end`),
		}},
		"buffered": {buffered, streamed, nil, []step{
			says(post("/v1/chat/completions"), "request headers: override BUFFERED/NONE/SEND"),
			says(body(chat, true), "request body: "+named),
			says(responseHeaders(false), "response headers:"),
			says(responseTrailers(), "response trailers:"),
		}},
		"buffered, the override ignored": {buffered, buffered, nil, []step{
			says(post("/v1/chat/completions"), "request headers: override BUFFERED/NONE/SEND"),
			says(body(chat, true), "request body: "+named),
			says(responseHeaders(false), "response headers:"),
			says(responseBody("all of it", true), "response body:"),
		}},
		"buffered, with a response that forbids an override": {buffered, fullDuplex, nil, []step{
			says(post("/v1/chat/completions"), "request headers:"),
			says(body(chat, true), "request body: "+named),
		}},
		"buffered, body then trailers": {buffered, none, nil, []step{
			says(post("/v1/chat/completions"), "request headers: override BUFFERED/NONE/SEND"),
			says(body(chat, false), "request body: "+named),
			says(trailers(), "request trailers:"),
		}},
		"buffered, trailers alone": {buffered, none, nil, []step{
			says(post("/v1/chat/completions"), "request headers: override BUFFERED/NONE/SEND"),
			says(trailers(), "request trailers: lb=10.0.0.1:8000"),
		}},
		"buffered, no body": {buffered, none, nil, []step{
			says(headers(true, ":path", "/v1/models"), "request headers: "+named+" override NONE/NONE/SEND"),
		}},
		"buffered, a strategy without keys": {buffered, none, func(p *endpoint.Policy) { p.Strategy = endpoint.LeastOutstandingRequests }, []step{
			says(post("/v1/chat/completions"), "request headers: "+named+" override NONE/NONE/SEND"),
			says(body(chat, true), "request body:"), // the override was ignored
		}},
		"buffered partial, a part": {partial, none, nil, []step{
			says(post("/v1/chat/completions"), "request headers: override BUFFERED_PARTIAL/NONE/SEND"),
			says(body(chat[:20], false), "request body: "+named),
		}},
		"streamed": {streamed, streamed, nil, []step{
			says(post("/v1/chat/completions"), "request headers: "+named+" override NONE/NONE/SEND"),
			says(body(chat[:20], false), "request body:"),
			says(body(chat[20:], true), "request body:"),
			says(responseHeaders(false), "response headers:"),
			says(responseBody("data", false), "response body:"),
			says(responseBody("", true), "response body:"),
		}},
		"none": {none, none, nil, []step{
			says(post("/v1/chat/completions"), "request headers: "+named+" override NONE/NONE/SEND"),
			says(responseHeaders(false), "response headers:"),
		}},
		"an upgrade does not wait for a body": {fullDuplex, fullDuplex, nil, []step{
			says(headers(false, ":method", "GET", ":path", "/v1/realtime", "upgrade", "websocket"), "request headers: "+named),
			says(responseHeaders(false), "response headers:"),
			says(body("frame", false), `request body: "frame"`),
		}},
		"nor does CONNECT": {fullDuplex, none, nil, []step{
			says(headers(false, ":method", "CONNECT", ":path", "/"), "request headers: "+named),
		}},
		"nor does gRPC, whose calls may be conversations": {fullDuplex, none, nil, []step{
			says(headers(false, ":method", "POST", ":path", "/inference.GRPCInferenceService/ModelStreamInfer",
				"content-type", "application/grpc"), "request headers: "+named),
		}},
		"a local reply first": {fullDuplex, fullDuplex, nil, []step{
			says(responseHeaders(false), "response headers:"),
			says(responseBody("bad request", true), `response body: "bad request" end`),
		}},
		"a local reply while the body is read": {fullDuplex, none, nil, []step{
			says(post("/v1/chat/completions")),
			says(body(chat[:20], false)),
			says(responseHeaders(true), "response headers:"),
			says(body(chat[20:], true)),
		}},
		"a message that wants no answer": {fullDuplex, none, nil, []step{
			says(post("/v1/chat/completions")),
			says(&extprocv3.ProcessingRequest{}),
			says(body(chat, true), "request headers: "+named, "request body: "+chatSize+" end"),
		}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			g := newGateway(t, withPolicy(func(p *endpoint.Policy) {
				if test.policy != nil {
					test.policy(p)
				}
			}))
			c := g.open(test.request, test.response)
			for _, s := range test.steps {
				c.send(s.send)
				c.want(s.want...)
			}
			c.end()
		})
	}
}

func TestHeldBytesAreBounded(t *testing.T) {
	const inspect = 1024
	g := newGateway(t, withOptions(func(o *Options) { o.MaxInspectBytes = inspect }))
	c := g.open(fullDuplex, none)
	c.send(post("/v1/chat/completions"), body(`{"model":"m",`, false))
	spaces := strings.Repeat(" ", inspect) // a body that never comes to its text
	for range 8 {
		c.send(body(spaces, false))
	}
	want := []string{"request headers: " + named, "request body: " + `"{\"model\":\"m\","`}
	for range 8 {
		want = append(want, "request body: 1024 bytes")
	}
	c.want(want...)
	c.end()
}

// A slice weighs more than a byte.
func TestSmallChunksAreHeldTogether(t *testing.T) {
	var st stream
	var want []byte
	for i := range 100_000 {
		chunk := []byte{byte(i)}
		if i%1000 == 0 {
			chunk = bytes.Repeat(chunk, 2000) // long ones are not copied
		}
		st.hold(chunk)
		want = append(want, chunk...)
	}
	if n := len(st.held); n > 300 {
		t.Errorf("%d bytes are held in %d pieces", len(want), n)
	}
	if !bytes.Equal(bytes.Join(st.held, nil), want) {
		t.Error("what is held is not what came")
	}
}

func TestAPoolThatVanishesWhileABodyIsRead(t *testing.T) {
	g := newGateway(t)
	c := g.open(fullDuplex, none)
	c.send(post("/v1/chat/completions"), body(chat[:9], false))
	g.waitFor("the messages to arrive", func() bool { return g.received.Load() == 2 })
	g.publish()
	c.send(body(chat[9:], true))
	c.want("immediate: 503 content-type=application/json")
	c.end()
}

func TestLogsHaveNoPrompts(t *testing.T) {
	var mu sync.Mutex
	var lines []string
	g := newGateway(t, withOptions(func(o *Options) {
		o.Log = funcr.New(func(_, line string) {
			mu.Lock()
			defer mu.Unlock()
			lines = append(lines, line)
		}, funcr.Options{Verbosity: 1})
	}))
	c := g.open(fullDuplex, none)
	c.send(headers(false, ":path", "/v1/chat/completions", isolationHeader, "hello"), body(chat, true))
	c.want("request headers: "+named, "request body: "+chatSize+" end")
	c.end()
	log := strings.Join(lines, "\n")
	if !strings.Contains(log, `"endpoint"="vllm-0"`) || strings.Contains(log, "hello") {
		t.Errorf("log %q, want the endpoint and nothing of the request", log)
	}
}
