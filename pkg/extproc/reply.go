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

// waitForBody is the answer to headers that says that the body is wanted before an endpoint is named.
func (r *replies) waitForBody(m modes) *extprocv3.ProcessingResponse {
	return &extprocv3.ProcessingResponse{
		Response:     &extprocv3.ProcessingResponse_RequestHeaders{RequestHeaders: &extprocv3.HeadersResponse{}},
		ModeOverride: r.modeOverride(m, true),
	}
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
	list := p.Endpoint.Address
	for _, f := range p.Fallbacks {
		if f != nil {
			list += "," + f.Address
		}
	}
	r.metadata.StringValue = list
	if !fallbackHeader {
		list = p.Endpoint.Address
	}
	r.header.RawValue = append(r.header.RawValue[:0], list...)
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
