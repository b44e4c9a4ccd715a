package extproc

import (
	"context"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"

	"github.com/homing-dev/homing/pkg/endpoint"
)

// TestPicksEqualReleases ends requests in every way at once, while endpoints and policies come and go.
// What was acquired must be released: nothing in flight at any endpoint that ever was, and as many
// releases as picks. The pool stays, so that its series do.
func TestPicksEqualReleases(t *testing.T) {
	const workers, each = 16, 60
	addresses := []string{"10.0.0.1:8000", "10.0.0.2:8000", "10.0.0.3:8000", "10.0.0.4:8000"}
	g := newGateway(t, withEndpoints(addresses...))

	stop := make(chan struct{})
	var publisher, callers sync.WaitGroup
	seen := map[*endpoint.Load]bool{}
	publisher.Go(func() {
		random := rand.New(rand.NewPCG(1, 2))
		for {
			for _, e := range g.store.Snapshot().Pool(llama).Endpoints {
				seen[e.Load] = true
			}
			select {
			case <-stop:
				return
			case <-time.After(time.Millisecond):
			}
			policy := endpoint.DefaultPolicy()
			policy.Strategy = endpoint.Strategy(random.IntN(4))
			policy.ConcurrencyThreshold = 1 + random.IntN(8)
			policy.Reject = random.IntN(2) == 0
			g.publish(endpoint.PoolSpec{Name: llama, Policy: policy, Endpoints: specs(addresses...)[random.IntN(len(addresses)):]})
		}
	})
	for w := range workers {
		callers.Go(func() {
			random := rand.New(rand.NewPCG(uint64(w), 3))
			for range each {
				g.randomCall(random, addresses)
			}
		})
	}
	callers.Wait()
	close(stop)
	publisher.Wait()
	g.server.GracefulStop() // waits for all streams

	for load := range seen {
		if n := load.InFlight(); n != 0 {
			t.Errorf("%d in flight at an endpoint when all streams have ended", n)
		}
		if n := load.Pending(); n != 0 {
			t.Errorf("%d bytes to compute at an endpoint when all streams have ended", n)
		}
	}
	if got := g.metric("homing_streams_total"); got > workers*each || got == 0 {
		t.Errorf("%v streams counted, want at most %d", got, workers*each)
	}
	if g.metric("homing_picks_total") == 0 {
		t.Error("nothing was picked: this test tests nothing")
	}
}

// randomCall plays a request up to a random message and ends it in a random way. It does not look at
// the replies, which depend on what else goes on.
func (g *gateway) randomCall(random *rand.Rand, served []string) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	rpc, err := g.client.Process(ctx)
	if err != nil {
		g.tb.Error(err)
		return
	}
	modes := []mode{none, streamed, buffered, partial, fullDuplex, fullDuplex, fullDuplex}
	first := post([]string{"/v1/chat/completions", "/invocations"}[random.IntN(2)])
	first.ProtocolConfig = &extprocv3.ProtocolConfiguration{
		RequestBodyMode: modes[random.IntN(len(modes))], ResponseBodyMode: modes[random.IntN(len(modes))],
	}
	script := []*extprocv3.ProcessingRequest{
		first, body(chat[:20], false), body(chat[20:], true), body("", true),
		servedBy(served[random.IntN(len(served))]), responseBody("a", false), responseBody("b", true), responseTrailers(),
	}
	for _, m := range script[:random.IntN(len(script)+1)] {
		if rpc.Send(m) != nil {
			break // refused, and so closed
		}
	}
	if random.IntN(2) == 0 { // often before the server has seen what was sent
		return
	}
	_ = rpc.CloseSend()
	for {
		if _, err := rpc.Recv(); err != nil {
			return
		}
	}
}
