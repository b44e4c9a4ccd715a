package extproc

import (
	"bytes"
	"context"
	"errors"
	"testing"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"
)

// tape is a stream that notes what it is sent.
type tape struct {
	grpc.ServerStream
	t       *testing.T
	kinds   []byte // h, b or t for each reply to the request's headers, body and trailers
	body    []byte // what came back of a full duplex request body
	ended   bool
	answers int // replies that name an endpoint, and immediate responses
}

func (r *tape) Context() context.Context                    { return context.Background() }
func (r *tape) Send(m *extprocv3.ProcessingResponse) error  { return r.SendMsg(m) }
func (r *tape) Recv() (*extprocv3.ProcessingRequest, error) { return nil, errors.New("not scripted") }

func (r *tape) SendMsg(m any) error {
	reply := m.(*extprocv3.ProcessingResponse)
	if reply.DynamicMetadata != nil || reply.GetImmediateResponse() != nil {
		r.answers++
	}
	switch reply.Response.(type) {
	case *extprocv3.ProcessingResponse_RequestHeaders:
		r.kinds = append(r.kinds, 'h')
	case *extprocv3.ProcessingResponse_RequestBody:
		r.kinds = append(r.kinds, 'b')
	case *extprocv3.ProcessingResponse_RequestTrailers:
		r.kinds = append(r.kinds, 't')
	}
	if chunk := reply.GetRequestBody().GetResponse().GetBodyMutation().GetStreamedResponse(); chunk != nil {
		if r.ended {
			r.t.Error("a body chunk after the end")
		}
		if len(chunk.Body) > maxChunk {
			r.t.Errorf("a chunk of %d bytes", len(chunk.Body))
		}
		r.body = append(r.body, chunk.Body...)
		r.ended = chunk.EndOfStream
	}
	return nil
}

// FuzzMessages sends messages in any order, as two bytes each: what, and how much. No order may
// panic, lose or repeat a byte, answer twice, or leave a request in flight.
func FuzzMessages(f *testing.F) {
	f.Add(uint8(fullDuplex), uint8(fullDuplex), []byte{0, 1, 1, 20, 2, 9, 4, 0, 6, 200, 7, 1})
	f.Add(uint8(fullDuplex), uint8(none), []byte{0, 0, 1, 250, 1, 250, 2, 0, 2, 0, 4, 0})
	f.Add(uint8(buffered), uint8(streamed), []byte{0, 1, 2, 40, 3, 0, 4, 0, 6, 1, 7, 1, 8, 0})
	f.Add(uint8(streamed), uint8(none), []byte{4, 0, 0, 0, 1, 1})
	f.Add(uint8(fullDuplex), uint8(none), []byte{0, 1, 1, 1, 3, 0, 5, 0})
	f.Fuzz(func(t *testing.T, request, response uint8, script []byte) {
		g := newLocal(t)
		st := g.service.streams.Get().(*stream)
		r := &tape{t: t}
		st.rpc = r
		st.in.ProtocolConfig = &extprocv3.ProtocolConfiguration{RequestBodyMode: mode(request % 7), ResponseBodyMode: mode(response % 7)}
		var sent []byte
		open := true // the request's body has not ended, nor has Envoy answered by itself
		for ; len(script) > 1; script = script[2:] {
			what, n := script[0]%10, int(script[1])
			m := fuzzMessage(what, n)
			st.in.Request = m.Request
			if open {
				sent = append(sent, m.GetRequestBody().GetBody()...)
			}
			open = open && what != 2 && what != 3 && (what != 4 && what != 5 || st.phase >= phasePicked)
			if err := st.handle(); err != nil {
				break
			}
		}
		if !bytes.HasPrefix(sent, r.body) {
			t.Errorf("%d bytes came back that are not the %d sent", len(r.body), len(sent))
		}
		if st.phase >= phasePicked && st.modes.duplexRequest() && len(r.body) != len(sent) {
			t.Errorf("%d of %d bytes came back after the pick", len(r.body), len(sent))
		}
		if st.modes.duplexRequest() && !ordered(r.kinds) {
			t.Errorf("replies in the order %s, want headers, body, trailers", r.kinds)
		}
		if r.answers > 1 {
			t.Errorf("answered %d times", r.answers)
		}
		st.finish(endEOF)
		st.reset()
		g.checkBalance()
	})
}

func ordered(kinds []byte) bool {
	rest := bytes.TrimPrefix(kinds, []byte("h"))
	return len(bytes.Trim(rest, "b")) == 0 || string(bytes.TrimLeft(rest, "b")) == "t"
}

func fuzzMessage(what byte, n int) *extprocv3.ProcessingRequest {
	content := string(bytes.Repeat([]byte{'a' + byte(n%26)}, n*300))
	switch what {
	case 0:
		return post([]string{"/v1/chat/completions", "/invocations"}[n%2])
	case 1, 2:
		return body(content, what == 2)
	case 3:
		return trailers()
	case 4, 5:
		return responseHeaders(what == 5)
	case 6, 7:
		return responseBody(content, what == 7)
	case 8:
		return responseTrailers()
	default:
		return &extprocv3.ProcessingRequest{}
	}
}
