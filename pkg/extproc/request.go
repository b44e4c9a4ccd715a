package extproc

import (
	"net/netip"
	"strconv"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	procmodev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/homing-dev/homing/pkg/picker"
	"github.com/homing-dev/homing/pkg/prefix"
)

// The names of the Endpoint Picker Protocol, proposal 004 of the Gateway API Inference Extension.
const (
	endpointKey       = "x-gateway-destination-endpoint"
	servedKey         = "x-gateway-destination-endpoint-served"
	endpointNamespace = "envoy.lb"
	subsetKey         = "x-gateway-destination-endpoint-subset"
	subsetNamespace   = "envoy.lb.subset_hint"
)

const (
	// isolationHeader is SageMaker's PrefixAwareId, lower-cased as Envoy sends it.
	isolationHeader = "x-amzn-sagemaker-prefix-aware-id"
	// attributesKey is where Envoy puts response_attributes.
	attributesKey = "envoy.filters.http.ext_proc"
)

// modes is what the first message of a stream says about the bodies that will follow.
type modes struct {
	request, response procmodev3.ProcessingMode_BodySendMode
	override          bool // the gateway may heed a mode_override
}

// modesOf reads a protocol_config. Who sends none (only Envoy does) speaks the Endpoint Picker
// Protocol, which is full duplex.
func modesOf(c *extprocv3.ProtocolConfiguration) modes {
	if c == nil {
		return modes{request: procmodev3.ProcessingMode_FULL_DUPLEX_STREAMED, response: procmodev3.ProcessingMode_FULL_DUPLEX_STREAMED}
	}
	m := modes{request: c.RequestBodyMode, response: c.ResponseBodyMode}
	m.override = !m.duplexRequest() && !m.duplexResponse() && !c.SendBodyWithoutWaitingForHeaderResponse
	return m
}

func (m modes) duplexRequest() bool {
	return m.request == procmodev3.ProcessingMode_FULL_DUPLEX_STREAMED
}

func (m modes) duplexResponse() bool {
	return m.response == procmodev3.ProcessingMode_FULL_DUPLEX_STREAMED
}

// chunkedRequest holds when the request's body comes in chunks that Envoy waits to get back.
func (m modes) chunkedRequest() bool {
	return m.duplexRequest() || m.request == procmodev3.ProcessingMode_STREAMED
}

// grpc holds for a mode that frames gRPC messages, which must not be cut into pieces.
func (m modes) grpc() bool {
	return m.request == procmodev3.ProcessingMode_GRPC || m.response == procmodev3.ProcessingMode_GRPC
}

// hidesBody holds when the header answer is due before the body can be seen.
func (m modes) hidesBody() bool {
	return m.request == procmodev3.ProcessingMode_NONE || m.request == procmodev3.ProcessingMode_STREAMED
}

// request is what a request's headers and attributes say.
type request struct {
	path, contentEncoding string
	contentLength         int64  // 0 if it is not known
	isolation             uint64 // digest of the isolation header, 0 without
	// conversational requests may keep their body open until the response comes, so that waiting for it
	// could be waiting for ever: upgrades (WebSocket), CONNECT and gRPC.
	conversational bool
	subset         []netip.AddrPort
}

func (r *request) read(headers *corev3.HeaderMap, metadata *corev3.Metadata) {
	*r = request{}
	for _, h := range headers.GetHeaders() {
		switch h.Key {
		case ":path":
			r.path = valueOf(h)
		case "content-encoding":
			r.contentEncoding = valueOf(h)
		case "content-length":
			if n, err := strconv.ParseInt(valueOf(h), 10, 64); err == nil {
				r.contentLength = n
			}
		case isolationHeader:
			r.isolation = prefix.Digest(valueOf(h))
		case ":method":
			r.conversational = r.conversational || valueOf(h) == "CONNECT"
		case "upgrade":
			r.conversational = true
		case "content-type":
			r.conversational = r.conversational || strings.HasPrefix(valueOf(h), "application/grpc")
		}
	}
	if hint, ok := metadata.GetFilterMetadata()[subsetNamespace].GetFields()[subsetKey]; ok {
		r.subset = parseSubset(hint)
	}
}

// keyOfHeaders is the key of a request whose body is not read.
func (r *request) keyOfHeaders() picker.Request { return r.keyOf(0) }

// keyOf is the key of a request without text: its isolation id alone, the header's before the body's,
// whose digest cacheKey is. Without either there is none.
func (r *request) keyOf(cacheKey uint64) picker.Request {
	id := r.isolation
	if id == 0 {
		id = cacheKey
	}
	return picker.Request{Key: prefix.Of(prefix.Scope{Isolation: id}, nil), HasKey: id != 0, Subset: r.subset}
}

// valueOf is a header's value: Envoy writes raw_value, others may write value.
func valueOf(h *corev3.HeaderValue) string {
	if len(h.RawValue) > 0 {
		return string(h.RawValue)
	}
	return h.Value
}

// parseSubset reads a subset hint: a list, or a string with commas, of ip:port or ip. What is neither
// names no endpoint of ours; a hint without any address leaves nothing to pick from, so it is not nil.
func parseSubset(hint *structpb.Value) []netip.AddrPort {
	subset := []netip.AddrPort{}
	add := func(list string) {
		for part := range strings.SplitSeq(list, ",") {
			if a, ok := parseAddress(strings.TrimSpace(part)); ok {
				subset = append(subset, a)
			}
		}
	}
	if list := hint.GetListValue(); list != nil {
		for _, v := range list.GetValues() {
			add(v.GetStringValue())
		}
	} else {
		add(hint.GetStringValue())
	}
	picker.SortSubset(subset)
	return subset
}

// parseAddress reads ip:port or ip, IPv6 with or without brackets; without a port it is 0.
func parseAddress(s string) (netip.AddrPort, bool) {
	if a, err := netip.ParseAddrPort(s); err == nil {
		return netip.AddrPortFrom(a.Addr().Unmap(), a.Port()), true
	}
	if len(s) > 2 && s[0] == '[' && s[len(s)-1] == ']' {
		s = s[1 : len(s)-1]
	}
	a, err := netip.ParseAddr(s)
	return netip.AddrPortFrom(a.Unmap(), 0), err == nil
}

// servedOf is the address that a response message says served the request, "" when it does not say.
func servedOf(in *extprocv3.ProcessingRequest) string {
	lb := in.GetMetadataContext().GetFilterMetadata()[endpointNamespace]
	if served := lb.GetFields()[servedKey].GetStringValue(); served != "" {
		return served
	}
	return in.GetAttributes()[attributesKey].GetFields()["upstream.address"].GetStringValue()
}
