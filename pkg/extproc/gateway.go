package extproc

import (
	"sync/atomic"
	"time"

	procmodev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
)

// gatewayHealth notices gateways that are configured so that the picker works badly, and says so once
// per pool; the metrics say how often.
type gatewayHealth struct {
	early         atomic.Int32 // streams closed early since the last that was not
	saidEarly     atomic.Bool
	saidElsewhere atomic.Bool
}

const (
	// earlyWithin is how soon after our last answer a gateway that closes streams early does it: at
	// once. A lost connection or our own shutdown finds most streams idle for longer.
	earlyWithin = time.Second
	// earlyInARow is how many streams must be closed early before it is called a habit.
	earlyInARow = 3
)

// noteEnd looks at how a stream with a pick ended. A gateway that has nothing more to send resets
// the stream at once; if that is before the response's end, requests are counted in flight for too
// short a time. Seen with Envoy 1.40.0: with no response body sent, streams end as EOF when
// response_trailer_mode is SEND, and as Canceled before the response's end when it is SKIP.
func (st *stream) noteEnd(e end) {
	g := &st.service.gateway
	noBody := st.modes.response == procmodev3.ProcessingMode_NONE && !st.bodySeen
	early := e == endCanceled && st.phase != phaseDone && noBody && st.service.Now().Sub(st.answered) < earlyWithin
	if !early {
		g.early.Store(0)
		return
	}
	at := "request"
	counter := st.metrics.earlyAtRequest
	if st.phase == phaseResponse {
		at = "response_headers"
		counter = st.metrics.earlyAtResponse
	}
	counter.Inc()
	if g.early.Add(1) >= earlyInARow && g.saidEarly.CompareAndSwap(false, true) {
		st.service.Log.Info("the gateway closes ext_proc streams before the response ends, so in-flight counts are too low: "+
			"set response_trailer_mode: SEND in its ext_proc filter", "closedAt", at)
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
			st.pick.Move(e)
			break
		}
	}
	st.metrics.servedElsewhere.Inc()
	if st.service.gateway.saidElsewhere.CompareAndSwap(false, true) {
		st.service.Log.Info("the gateway served a request at another endpoint than the picked one: a retry, "+
			"or it does not know the endpoint, or it does not read the picker's answer",
			"picked", picked.Address, "served", addr.String())
	}
}
