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
	phaseLocalReply              // Envoy answers by itself before a pick: there is nothing left to pick for
	phasePicked                  // an endpoint was picked and named; the body passes through
	phaseResponse                // the response has begun
	phaseDone                    // the response's end was seen; not every mode shows it
)

// maxPrompt bounds how long a prompt is taken to be for what its content-length says, in bytes: longer than any
// model reads, and short enough that nobody empties an endpoint by a claim.
const maxPrompt = 16 << 20

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
	ladder  prefix.Ladder
	exchange
}

type exchange struct {
	modes   modes
	request request
	pool    *endpoint.Pool // as the headers found it, then as the pick did
	metrics *poolMetrics
	asked   picker.Request
	pick    picker.Pick
	phase   phase

	bodyBytes int64 // of the request, as far as it was read

	requestEnded  bool // by a flag, an empty chunk or trailers
	responseEnded bool // likewise
	openEnded     bool // the response did not say how long it is
	failed        bool // the response's status is not 2xx
	bodySeen      bool // of the response
	servedKnown   bool // the gateway said which endpoint served
	timed         bool // the answer comes once the prompt is computed; what other paths do is not known

	started  time.Time // when the first message came
	received time.Time // when the message came that completed the key
	answered time.Time // when headers were last answered
}

// reset drops everything that belongs to the last request.
func (st *stream) reset() {
	st.dropHeld()
	st.in.Reset()
	st.replies.reset()
	st.rpc = nil
	st.exchange = exchange{}
}

// run handles messages until the stream ends, and returns why: io.EOF when the gateway was through.
func (st *stream) run() error {
	for {
		if err := st.receive(); err != nil {
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

	if st.requestEnded || !st.pool.Policy.Strategy.UsesKey() {
		return st.answerHeaders(st.request.keyOfHeaders())
	}
	if st.modes.hidesBody() || st.request.conversational {
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
	return st.answerNotYet()
}

func (st *stream) requestBody(b *extprocv3.HttpBody) error {
	switch {
	case st.phase == phaseStart:
		return status.Error(codes.InvalidArgument, "request body without headers: request_header_mode must be SEND")
	case st.modes.duplexRequest():
		return st.requestChunk(b.GetBody(), b.GetEndOfStream())
	case st.phase == phaseRequest: // buffered: this is all that will come
		st.received = st.service.Now()
		st.bodyBytes += int64(len(b.GetBody()))
		st.reader.Write(b.GetBody())
		return st.answerBody(st.key())
	default:
		st.requestEnded = b.GetEndOfStream()
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
	st.bodyBytes += int64(len(body))
	if !st.reader.Write(body) && !last {
		st.hold(body)
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

func (st *stream) requestTrailers() error {
	reading := st.phase == phaseRequest
	if reading {
		st.received = st.service.Now()
	}
	switch {
	case st.phase == phaseStart:
		return status.Error(codes.InvalidArgument, "request trailers without headers: request_header_mode must be SEND")
	case reading && !st.modes.duplexRequest(): // buffered, and there was nothing to buffer
		return st.answerTrailers(st.key())
	case reading:
		if err := st.answerHeaders(st.key()); err != nil {
			return err
		}
		if err := st.passOnHeld(); err != nil {
			return err
		}
	case st.requestEnded && st.modes.duplexRequest(): // twice, or too late to matter
		return nil
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
	if st.pool.Policy.Strategy == endpoint.AdaptivePrefix {
		if p.Counted {
			return picker.Request{Subset: st.request.subset} // no cache helps, and none is filled
		}
		st.timed = p.RawReason != prompt.RawPath
		return st.climb(scope, &p)
	}
	return picker.Request{Key: prefix.Of(scope, p.Text), HasKey: true, Subset: st.request.subset}
}

// climb is the request with its ladder. A policy that changes before the pick finds a key too.
func (st *stream) climb(scope prefix.Scope, p *prompt.Prompt) picker.Request {
	nextMessage := prompt.NextMessage
	if p.RawReason != prompt.NotRaw {
		nextMessage = nil
	}
	st.ladder.Build(scope, p.Text, nextMessage)
	rungs := st.ladder.Rungs()
	req := picker.Request{
		Rungs: rungs, Key: rungs[len(rungs)-1].Key, HasKey: true, Subset: st.request.subset,
		Bytes: int64(len(p.Text)), Now: st.service.Clock(),
	}
	if p.Cut {
		req.Bytes = max(req.Bytes, min(st.request.contentLength, maxPrompt), st.bodyBytes)
	}
	return req
}

// choose picks an endpoint and counts the request there. A request that cannot have one is refused.
func (st *stream) choose(req picker.Request) error {
	st.pool = st.service.Store.Snapshot().Pool(st.service.Pool)
	st.metrics = st.service.metricsOf(st.pool)
	if st.pool == nil {
		return st.refuse(errNoPool)
	}
	st.asked = req
	if err := st.service.Picker.Pick(st.pool, &st.asked, &st.pick); err != nil {
		return st.refuse(err)
	}
	st.phase = phasePicked
	st.metrics.picks[st.pick.Outcome].Inc()
	if log := st.service.Log.V(1); log.Enabled() {
		log.Info("Picked", "endpoint", st.pick.Endpoint.Name, "address", st.pick.Endpoint.Address,
			"outcome", st.pick.Outcome.String(), "subset", req.Subset != nil)
	}
	return nil
}

func (st *stream) responseHeaders(h *extprocv3.HttpHeaders) error {
	switch {
	case st.phase >= phasePicked:
		st.phase = max(st.phase, phaseResponse)
	default: // Envoy answers by itself, before or while the body is read
		st.phase = phaseLocalReply
		st.requestEnded = true
		st.dropHeld()
	}
	st.noteServed()
	st.openEnded, st.failed = readResponse(h.GetHeaders())
	if h.GetEndOfStream() {
		st.responseEnds()
	}
	st.answered = st.service.Now()
	return st.rpc.SendMsg(continueResponseHeaders)
}

func (st *stream) responseBody(b *extprocv3.HttpBody) error {
	again := st.responseEnded
	st.bodySeen = true
	if st.timed && st.openEnded && !st.failed && len(b.GetBody()) > 0 {
		st.pick.Started(st.service.Clock()) // the first chunk of a stream is its first token
	}
	if b.GetEndOfStream() {
		st.responseEnds()
	}
	switch {
	case !st.modes.duplexResponse():
		return st.rpc.SendMsg(continueResponseBody)
	case again: // a second end, as for requests
		return nil
	default:
		return st.passOn(&st.replies.responseChunk, b.GetBody(), b.GetEndOfStream())
	}
}

func (st *stream) responseTrailers() error {
	st.noteServed()
	st.responseEnds()
	return st.rpc.SendMsg(continueResponseTrailers)
}

func (st *stream) responseEnds() {
	st.responseEnded = true
	if st.phase >= phasePicked {
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
	case errors.Is(err, errDrained):
		return endDrained
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
	if st.timed && st.phase >= phaseResponse && !st.failed && (e == endEOF || st.responseEnded) {
		st.pick.Ended(st.service.Clock())
	}
	if st.pick.Release() {
		st.metrics.releases.Inc()
	}
	st.metrics.streams[e][st.phase].Inc()
	if st.phase >= phasePicked {
		st.noteEnd(e)
	}
}
