package extproc

import (
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	procmodev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/homing-dev/homing/pkg/picker"
)

// maxChunk is how many bytes a StreamedBodyResponse may carry. Envoy's limit is 64 KiB for the whole
// message; the Endpoint Picker Protocol says 62,000.
const maxChunk = 62_000

// Replies that change nothing. They are never written to, so all streams send the same ones.
var (
	continueRequestBody = &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_RequestBody{
		RequestBody: &extprocv3.BodyResponse{},
	}}
	continueRequestTrailers = &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_RequestTrailers{
		RequestTrailers: &extprocv3.TrailersResponse{},
	}}
	continueResponseHeaders = &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_ResponseHeaders{
		ResponseHeaders: &extprocv3.HeadersResponse{},
	}}
	continueResponseBody = &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_ResponseBody{
		ResponseBody: &extprocv3.BodyResponse{},
	}}
	continueResponseTrailers = &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_ResponseTrailers{
		ResponseTrailers: &extprocv3.TrailersResponse{},
	}}
)

// replies are the messages that a stream fills in again and again. That is allowed because gRPC
// encodes a message before Send returns, and nothing in this server (stats handlers, binary logs)
// looks at messages later.
type replies struct {
	// endpoint names the pick; its Response is one of the three below, its parts the fields after them.
	endpoint   extprocv3.ProcessingResponse
	inHeaders  extprocv3.ProcessingResponse_RequestHeaders
	inBody     extprocv3.ProcessingResponse_RequestBody
	inTrailers extprocv3.ProcessingResponse_RequestTrailers
	header     corev3.HeaderValue
	metadata   structpb.Value_StringValue
	override   procmodev3.ProcessingMode

	chunk         extprocv3.StreamedBodyResponse
	requestChunk  extprocv3.ProcessingResponse
	responseChunk extprocv3.ProcessingResponse
}

func newReplies() *replies {
	r := &replies{}
	r.header.Key = endpointKey
	naming := &extprocv3.CommonResponse{HeaderMutation: &extprocv3.HeaderMutation{
		SetHeaders: []*corev3.HeaderValueOption{overwrite(&r.header)},
	}}
	r.inHeaders.RequestHeaders = &extprocv3.HeadersResponse{Response: naming}
	r.inBody.RequestBody = &extprocv3.BodyResponse{Response: naming}
	r.inTrailers.RequestTrailers = &extprocv3.TrailersResponse{}
	r.endpoint.DynamicMetadata = &structpb.Struct{Fields: map[string]*structpb.Value{
		endpointNamespace: structpb.NewStructValue(&structpb.Struct{Fields: map[string]*structpb.Value{
			endpointKey: {Kind: &r.metadata},
		}}),
	}}

	streamed := &extprocv3.BodyResponse{Response: &extprocv3.CommonResponse{BodyMutation: &extprocv3.BodyMutation{
		Mutation: &extprocv3.BodyMutation_StreamedResponse{StreamedResponse: &r.chunk},
	}}}
	r.requestChunk.Response = &extprocv3.ProcessingResponse_RequestBody{RequestBody: streamed}
	r.responseChunk.Response = &extprocv3.ProcessingResponse_ResponseBody{ResponseBody: streamed}
	return r
}

// reset lets go of the last request's bytes.
func (r *replies) reset() {
	r.chunk.Body = nil
	r.header.RawValue = r.header.RawValue[:0]
	r.metadata.StringValue = ""
}

// name fills in the endpoint reply. The metadata always carries the fallbacks; the header does so only
// when the policy says that the gateway reads lists there, because some answer a list with 503.
func (r *replies) name(p *picker.Pick, fallbackHeader bool) {
	list := append(r.header.RawValue[:0], p.Endpoint.Address...)
	for _, f := range p.Fallbacks {
		if f != nil {
			list = append(append(list, ','), f.Address...)
		}
	}
	r.metadata.StringValue = string(list)
	if !fallbackHeader {
		list = list[:len(p.Endpoint.Address)]
	}
	r.header.RawValue = list
}

// modeOverride asks for what costs least and lasts longest: no response body, but the response's end.
// requestBody stays as it is while the body is wanted. The default of a header mode means no change.
func (r *replies) modeOverride(m modes, wantBody bool) *procmodev3.ProcessingMode {
	if !m.override {
		return nil
	}
	r.override.RequestBodyMode = procmodev3.ProcessingMode_NONE
	if wantBody {
		r.override.RequestBodyMode = m.request
	}
	r.override.ResponseBodyMode = procmodev3.ProcessingMode_NONE
	r.override.ResponseTrailerMode = procmodev3.ProcessingMode_SEND
	return &r.override
}

// overwrite makes a header replace what a client sent under its name.
func overwrite(h *corev3.HeaderValue) *corev3.HeaderValueOption {
	return &corev3.HeaderValueOption{Header: h, AppendAction: corev3.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD}
}

// refusalReplies are the replies to the rows of the refusals table; all streams send the same ones.
var refusalReplies = func() []*extprocv3.ProcessingResponse {
	replies := make([]*extprocv3.ProcessingResponse, len(refusals))
	for i := range refusals {
		replies[i] = immediate(&refusals[i])
	}
	return replies
}()

// immediate is the reply to a request that is refused.
func immediate(r *refusal) *extprocv3.ProcessingResponse {
	headers := []*corev3.HeaderValueOption{overwrite(&corev3.HeaderValue{Key: "content-type", RawValue: []byte("application/json")})}
	if r.retryAfter != "" {
		headers = append(headers, overwrite(&corev3.HeaderValue{Key: "retry-after", RawValue: []byte(r.retryAfter)}))
	}
	return &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_ImmediateResponse{
		ImmediateResponse: &extprocv3.ImmediateResponse{
			Status:  &typev3.HttpStatus{Code: r.status},
			Headers: &extprocv3.HeaderMutation{SetHeaders: headers},
			Body:    r.body(),
			Details: "homing_" + r.reason,
		},
	}}
}

// answerNotYet answers the headers of a request whose body is wanted before an endpoint is named.
func (st *stream) answerNotYet() error {
	return st.rpc.SendMsg(&extprocv3.ProcessingResponse{
		Response:     &extprocv3.ProcessingResponse_RequestHeaders{RequestHeaders: &extprocv3.HeadersResponse{}},
		ModeOverride: st.replies.modeOverride(st.modes, true),
	})
}

// answerHeaders picks, and names the endpoint in the answer to the headers.
func (st *stream) answerHeaders(req picker.Request) error {
	st.replies.endpoint.Response = &st.replies.inHeaders
	st.replies.endpoint.ModeOverride = st.replies.modeOverride(st.modes, false)
	return st.answer(req)
}

// answerBody does so in the answer to a buffered body: Envoy still holds the headers then.
func (st *stream) answerBody(req picker.Request) error {
	st.replies.endpoint.Response = &st.replies.inBody
	st.replies.endpoint.ModeOverride = nil
	return st.answer(req)
}

// answerTrailers does so in the answer to trailers, where only the metadata can name it.
func (st *stream) answerTrailers(req picker.Request) error {
	st.replies.endpoint.Response = &st.replies.inTrailers
	st.replies.endpoint.ModeOverride = nil
	return st.answer(req)
}

func (st *stream) answer(req picker.Request) error {
	if err := st.choose(req); err != nil {
		return err
	}
	st.replies.name(&st.pick, st.pool.Policy.FallbackHeader)
	if err := st.rpc.SendMsg(&st.replies.endpoint); err != nil {
		return err
	}
	st.answered = st.service.Now()
	st.metrics.sinceFirst.Observe(st.answered.Sub(st.started).Seconds())
	st.metrics.sinceKey.Observe(st.answered.Sub(st.received).Seconds())
	return nil
}

// refuse answers with an immediate response, after which Envoy wants nothing more of the stream.
func (st *stream) refuse(cause error) error {
	i := refusalOf(cause)
	st.metrics.refusals[i].Inc()
	if err := st.rpc.SendMsg(refusalReplies[i]); err != nil {
		return err
	}
	return errRefused
}

// passOnHeld hands back the chunks that were held. None of them is the last.
func (st *stream) passOnHeld() error {
	for i, body := range st.held {
		if err := st.passOn(&st.replies.requestChunk, body, false); err != nil {
			return err
		}
		st.held[i] = nil // sent, so not to be kept for as long as the rest takes
	}
	st.dropHeld()
	return nil
}

const (
	// smallChunk is up to where a chunk is put to the one before it when they are held, in bytes.
	smallChunk = 512
	// fullChunk is how long that makes one at most.
	fullChunk = 8 << 10
)

// hold keeps a chunk for later. Small ones are put together: their slices would weigh more than they do.
func (st *stream) hold(body []byte) {
	if n := len(st.held); n > 0 && len(body) <= smallChunk && len(st.held[n-1])+len(body) <= fullChunk {
		st.held[n-1] = append(st.held[n-1], body...)
		return
	}
	st.held = append(st.held, body)
}

func (st *stream) dropHeld() {
	clear(st.held)
	st.held = st.held[:0]
}

// passOn hands bytes back unchanged, in pieces that Envoy takes; reply is one of the chunk replies.
func (st *stream) passOn(reply *extprocv3.ProcessingResponse, body []byte, last bool) error {
	if len(body) == 0 && !last {
		return nil
	}
	chunk := &st.replies.chunk
	for {
		n := min(len(body), maxChunk)
		chunk.Body, body = body[:n], body[n:]
		chunk.EndOfStream = last && len(body) == 0
		if err := st.rpc.SendMsg(reply); err != nil {
			return err
		}
		if len(body) == 0 {
			return nil
		}
	}
}
