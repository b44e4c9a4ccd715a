package extproc

import (
	"errors"
	"io"
	"time"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/homing-dev/homing/pkg/endpoint"
	"github.com/homing-dev/homing/pkg/picker"
	"github.com/homing-dev/homing/pkg/prefix"
	"github.com/homing-dev/homing/pkg/prompt"
)

// phase is how far a stream has come. It only moves forward.
type phase uint8

const (
	phaseStart      phase = iota // nothing came yet
	phaseRequest                 // the request's body is read for its key
	phasePicked                  // an endpoint was picked and named; the body passes through
	phaseResponse                // the response has begun
	phaseDone                    // the response's end was seen; not every mode shows it
	phaseLocalReply              // Envoy answers by itself: there is nothing to pick for
)

// errRefused ends a stream after its immediate response.
var errRefused = errors.New("refused")

// stream is one HTTP request. Streams are pooled; what belongs to the request is its exchange.
type stream struct {
	service *Service
	replies *replies
	reader  prompt.Reader
	in      extprocv3.ProcessingRequest // the message being handled
	rpc     extprocv3.ExternalProcessor_ProcessServer
	held    [][]byte // the body's chunks until the key is known
	exchange
}

type exchange struct {
	modes   modes
	request request
	pool    *endpoint.Pool // as the headers found it, then as the pick did
	metrics *poolMetrics
	pick    picker.Pick
	phase   phase

	requestEnded bool // by a flag, an empty chunk or trailers
	openEnded    bool // the response did not say how long it is
	bodySeen     bool // of the response
	servedKnown  bool // the gateway said which endpoint served

	started  time.Time // when the first message came
	received time.Time // when the message came that completed the key
	answered time.Time // when headers were last answered
}

// reset drops everything that belongs to the last request.
func (st *stream) reset() {
	clear(st.held)
	st.held = st.held[:0]
	st.in.Reset()
	st.replies.reset()
	st.rpc = nil
	st.exchange = exchange{}
}

// run handles messages until the stream ends, and returns why: io.EOF when the gateway was through.
func (st *stream) run() error {
	for {
		if err := st.rpc.RecvMsg(&st.in); err != nil {
			return err
		}
		if err := st.handle(); err != nil {
			return err
		}
	}
}

func (st *stream) handle() error {
	if st.phase == phaseStart {
		if err := st.begin(); err != nil {
			return err
		}
	}
	switch m := st.in.Request.(type) {
	case *extprocv3.ProcessingRequest_RequestHeaders:
		return st.requestHeaders(m.RequestHeaders)
	case *extprocv3.ProcessingRequest_RequestBody:
		return st.requestBody(m.RequestBody)
	case *extprocv3.ProcessingRequest_RequestTrailers:
		return st.requestTrailers()
	case *extprocv3.ProcessingRequest_ResponseHeaders:
		return st.responseHeaders(m.ResponseHeaders)
	case *extprocv3.ProcessingRequest_ResponseBody:
		return st.responseBody(m.ResponseBody)
	case *extprocv3.ProcessingRequest_ResponseTrailers:
		return st.responseTrailers()
	default: // a flow control update, say: nothing that wants an answer
		return nil
	}
}

// begin reads what only the first message of a stream says.
func (st *stream) begin() error {
	st.started = st.service.Now()
	st.received = st.started
	st.modes = modesOf(st.in.ProtocolConfig)
	st.pool = st.service.Store.Snapshot().Pool(st.service.Pool)
	st.metrics = st.service.metricsOf(st.pool)
	switch {
	case st.in.ObservabilityMode:
		return status.Error(codes.Unimplemented, "observability_mode: an endpoint picker must be waited for")
	case st.modes.grpc():
		return status.Error(codes.Unimplemented, "body mode GRPC: use FULL_DUPLEX_STREAMED, or NONE for the response")
	}
	return nil
}

func (st *stream) requestHeaders(h *extprocv3.HttpHeaders) error {
	if st.phase != phaseStart {
		return status.Error(codes.InvalidArgument, "request headers twice on one stream")
	}
	st.phase = phaseRequest
	if st.pool == nil {
		return st.refuse(errNoPool)
	}
	st.request.read(h.GetHeaders(), st.in.MetadataContext)
	st.requestEnded = h.GetEndOfStream()

	keyed := st.pool.Policy.Strategy.UsesKey()
	switch {
	case st.requestEnded || !keyed:
		return st.answerHeaders(st.request.keyOfHeaders())
	case st.modes.hidesBody():
		st.metrics.withoutBody.Inc()
		return st.answerHeaders(st.request.keyOfHeaders())
	}
	st.reader.Reset(st.request.path, st.request.contentEncoding, prompt.Options{
		PrefixLength:    st.pool.Policy.PrefixLength,
		MaxInspectBytes: st.service.MaxInspectBytes,
	})
	if st.modes.duplexRequest() {
		return nil // the answer waits for the key, and so does Envoy
	}
	return st.rpc.SendMsg(st.replies.waitForBody(st.modes))
}

func (st *stream) requestBody(b *extprocv3.HttpBody) error {
	switch {
	case st.phase == phaseStart:
		return status.Error(codes.InvalidArgument, "request body without headers: request_header_mode must be SEND")
	case st.modes.duplexRequest():
		return st.requestChunk(b.GetBody(), b.GetEndOfStream())
	case st.phase == phaseRequest: // buffered: this is all that will come
		st.received = st.service.Now()
		st.reader.Write(b.GetBody())
		return st.answerBody(st.key())
	default:
		return st.rpc.SendMsg(continueRequestBody)
	}
}

// requestChunk takes a chunk of a full duplex body: holds it while the key is not known, and passes it
// on from then on.
func (st *stream) requestChunk(body []byte, last bool) error {
	if st.requestEnded { // Envoy may send the last chunk twice: envoyproxy/envoy#46237
		return nil
	}
	st.requestEnded = last
	if st.phase != phaseRequest {
		return st.passOn(&st.replies.requestChunk, body, last)
	}
	st.received = st.service.Now()
	if !st.reader.Write(body) && !last {
		st.held = append(st.held, body)
		return nil
	}
	if err := st.answerHeaders(st.key()); err != nil {
		return err
	}
	if err := st.passOnHeld(); err != nil {
		return err
	}
	return st.passOn(&st.replies.requestChunk, body, last)
}

// passOnHeld hands back the chunks that were held. None of them is the last.
func (st *stream) passOnHeld() error {
	for i, body := range st.held {
		if err := st.passOn(&st.replies.requestChunk, body, false); err != nil {
			return err
		}
		st.held[i] = nil
	}
	st.held = st.held[:0]
	return nil
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

func (st *stream) requestTrailers() error {
	switch {
	case st.phase == phaseStart:
		return status.Error(codes.InvalidArgument, "request trailers without headers: request_header_mode must be SEND")
	case st.phase == phaseRequest && st.modes.duplexRequest():
		st.received = st.service.Now()
		if err := st.answerHeaders(st.key()); err != nil {
			return err
		}
		if err := st.passOnHeld(); err != nil {
			return err
		}
	case st.phase == phaseRequest: // buffered, and there was nothing to buffer
		st.received = st.service.Now()
		st.requestEnded = true
		return st.answerTrailers(st.key())
	}
	st.requestEnded = true
	return st.rpc.SendMsg(continueRequestTrailers)
}

// key is the key of the body read so far.
func (st *stream) key() picker.Request {
	st.reader.Close()
	p := st.reader.Prompt()
	st.metrics.body(&p)
	if !p.HasText {
		return st.request.keyOf(p.CacheKey)
	}
	scope := prefix.Scope{Model: p.Model, CacheSalt: p.CacheSalt, Tools: p.Tools, Isolation: st.request.isolation}
	if scope.Isolation == 0 {
		scope.Isolation = p.CacheKey
	}
	return picker.Request{Key: prefix.Of(scope, p.Text), HasKey: true, Subset: st.request.subset}
}

// choose picks and counts an endpoint and fills in the reply that names it.
func (st *stream) choose(req picker.Request) error {
	st.pool = st.service.Store.Snapshot().Pool(st.service.Pool)
	st.metrics = st.service.metricsOf(st.pool)
	if st.pool == nil {
		return st.refuse(errNoPool)
	}
	if err := st.service.Picker.Pick(st.pool, &req, &st.pick); err != nil {
		return st.refuse(err)
	}
	st.phase = phasePicked
	st.metrics.picks[st.pick.Outcome].Inc()
	st.replies.name(&st.pick, st.pool.Policy.FallbackHeader)
	if log := st.service.Log.V(1); log.Enabled() {
		log.Info("picked", "endpoint", st.pick.Endpoint.Name, "address", st.pick.Endpoint.Address,
			"outcome", st.pick.Outcome.String(), "subset", req.Subset != nil)
	}
	return nil
}

// answerHeaders picks and names the endpoint in the answer to the headers.
func (st *stream) answerHeaders(req picker.Request) error {
	if err := st.choose(req); err != nil {
		return err
	}
	st.replies.endpoint.Response = &st.replies.inHeaders
	st.replies.endpoint.ModeOverride = st.replies.modeOverride(st.modes, false)
	return st.answer()
}

// answerBody does the same in the answer to a buffered body: Envoy still holds the headers then.
func (st *stream) answerBody(req picker.Request) error {
	if err := st.choose(req); err != nil {
		return err
	}
	st.replies.endpoint.Response = &st.replies.inBody
	st.replies.endpoint.ModeOverride = nil
	return st.answer()
}

// answerTrailers can name the endpoint in the metadata only.
func (st *stream) answerTrailers(req picker.Request) error {
	if err := st.choose(req); err != nil {
		return err
	}
	st.replies.endpoint.Response = &st.replies.inTrailers
	st.replies.endpoint.ModeOverride = nil
	return st.answer()
}

func (st *stream) answer() error {
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
	if err := st.rpc.SendMsg(immediate(&refusals[i])); err != nil {
		return err
	}
	return errRefused
}

func (st *stream) responseHeaders(h *extprocv3.HttpHeaders) error {
	if st.phase < phasePicked { // Envoy answered by itself, before or while we read
		st.phase = phaseLocalReply
		st.requestEnded = true
		clear(st.held)
		st.held = st.held[:0]
	} else if st.phase < phaseResponse {
		st.phase = phaseResponse
	}
	st.noteServed()
	st.openEnded = openEnded(h.GetHeaders())
	if h.GetEndOfStream() {
		st.responseEnds()
	}
	if err := st.rpc.SendMsg(continueResponseHeaders); err != nil {
		return err
	}
	st.answered = st.service.Now()
	return nil
}

func (st *stream) responseBody(b *extprocv3.HttpBody) error {
	st.bodySeen = true
	last := b.GetEndOfStream()
	if !st.modes.duplexResponse() {
		if last {
			st.responseEnds()
		}
		return st.rpc.SendMsg(continueResponseBody)
	}
	if st.phase == phaseDone { // a second end, as for requests
		return nil
	}
	if last {
		st.responseEnds()
	}
	return st.passOn(&st.replies.responseChunk, b.GetBody(), last)
}

func (st *stream) responseTrailers() error {
	st.noteServed()
	st.responseEnds()
	return st.rpc.SendMsg(continueResponseTrailers)
}

func (st *stream) responseEnds() {
	if st.phase >= phasePicked && st.phase < phaseDone {
		st.phase = phaseDone
	}
}

// endOf is how a stream ended, by the error that ended it.
func (st *stream) endOf(err error) end {
	switch {
	case errors.Is(err, io.EOF):
		return endEOF
	case errors.Is(err, errRefused):
		return endRefused
	case status.Code(err) == codes.Canceled || st.rpc.Context().Err() != nil:
		return endCanceled
	default:
		return endFailed
	}
}

// finish releases the pick, if there is one, and counts the stream.
func (st *stream) finish(e end) {
	if st.metrics == nil { // a stream without a message
		st.metrics = st.service.metricsOf(st.service.Store.Snapshot().Pool(st.service.Pool))
	}
	if st.pick.Release() {
		st.metrics.releases.Inc()
	}
	st.metrics.streams[e][st.phase].Inc()
	if st.phase >= phasePicked && st.phase < phaseLocalReply {
		st.noteEnd(e)
	}
}
