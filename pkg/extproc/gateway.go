package extproc

import (
	"sync/atomic"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	procmodev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
)

// gatewayHealth notices gateways that are configured so that the picker works badly, and says so once
// per pool; the metrics say how often.
type gatewayHealth struct {
	early         atomic.Int32 // streams closed early since the last that was not
	saidEarly     atomic.Bool
	saidElsewhere atomic.Bool
	saidFailed    atomic.Bool
}

const (
	// earlyWithin is how soon after our last answer a gateway that closes streams early does it: at
	// once. A lost connection or our own shutdown finds most streams idle for longer.
	earlyWithin = time.Second
	// earlyInARow is how many streams must be closed early before it is called a habit.
	earlyInARow = 3
)

// noteEnd looks at how a stream with a pick ended. Envoy resets a stream once it has nothing more to
// send; if that is before the response's end, requests are counted in flight for too short a time. Seen
// with Envoy 1.40.0 when no response body is sent:
//
//	response_trailer_mode SEND: EOF at the response's end, but Canceled if the whole response was there
//	                            before we answered its headers
//	response_trailer_mode SKIP: Canceled after our answer to the response's headers, or without
//	                            response headers when the request is through
//
// So a Canceled tells something only of a response that takes its time, which one without a length
// does: engines send the headers of all others when the whole response is there.
func (st *stream) noteEnd(e end) {
	g := &st.service.gateway
	if e == endEOF {
		g.early.Store(0)
	}
	noBody := st.modes.response == procmodev3.ProcessingMode_NONE && !st.bodySeen
	if e != endCanceled || !noBody || st.phase == phaseDone || st.service.Now().Sub(st.answered) >= earlyWithin {
		return
	}
	at, counter := "request", st.metrics.earlyAtRequest
	if st.phase == phaseResponse {
		if !st.openEnded {
			return
		}
		at, counter = "response_headers", st.metrics.earlyAtResponse
	}
	counter.Inc()
	if g.early.Add(1) >= earlyInARow && g.saidEarly.CompareAndSwap(false, true) {
		st.service.Log.Info("The gateway closes ext_proc streams before responses end, so in-flight counts are too low: "+
			"set response_trailer_mode: SEND in its ext_proc filter", "closedAt", at)
	}
}

// noteFailed says why a stream failed. The gateway that made it fail may tell nobody.
func (s *Service) noteFailed(err error) {
	if s.gateway.saidFailed.CompareAndSwap(false, true) {
		s.Log.Error(err, "A stream failed; its request follows the gateway's failure mode, as those do that fail after it")
	}
}

// readResponse says of a response whether it does not say how long it is, and whether it is no success.
func readResponse(headers *corev3.HeaderMap) (openEnded, failed bool) {
	openEnded = true
	for _, h := range headers.GetHeaders() {
		switch h.Key {
		case "content-length":
			openEnded = false
		case ":status":
			failed = valueOf(h) < "200" || valueOf(h) >= "300"
		}
	}
	return openEnded, failed
}

// noteServed moves the request to the endpoint that really serves it, if the message tells.
func (st *stream) noteServed() {
	if st.servedKnown || st.pick.Endpoint == nil {
		return
	}
	served := servedOf(&st.in)
	if served == "" {
		return
	}
	st.servedKnown = true
	if served != st.pick.Endpoint.Address {
		st.servedElsewhere(served)
	}
}

// servedElsewhere counts a request that another endpoint than the picked one serves, and moves it
// there. An address that is no endpoint of the pool (a proxy's, say) leaves it where it is.
func (st *stream) servedElsewhere(served string) {
	addr, ok := parseAddress(served)
	if !ok || addr == st.pick.Endpoint.Addr {
		return
	}
	picked := st.pick.Endpoint
	for _, e := range st.pool.Endpoints {
		if e.Addr == addr {
			st.service.Picker.Moved(&st.asked, &st.pick, e)
			break
		}
	}
	st.metrics.servedElsewhere.Inc()
	if st.service.gateway.saidElsewhere.CompareAndSwap(false, true) {
		st.service.Log.Info("The gateway served a request at another endpoint than the picked one: a retry, "+
			"or it does not know the endpoint, or it does not read the picker's answer",
			"picked", picked.Address, "served", addr.String())
	}
}
