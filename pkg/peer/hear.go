package peer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/homing-dev/homing/pkg/endpoint"
	"github.com/homing-dev/homing/pkg/peer/peerpb"
	"github.com/homing-dev/homing/pkg/picker"
)

const (
	// minPause and maxPause are how long a replica is left alone whose stream ended.
	minPause = 100 * time.Millisecond
	maxPause = 3 * time.Second
	// maxMessage bounds what is read of a message, in bytes. The largest there can be has a third of it.
	maxMessage = 4 << 20
	// recallTimeout bounds how long it takes to be told a memory, before it is done without.
	recallTimeout = 10 * time.Second
)

var (
	errSilent = errors.New("not heard of for 3 s")
	errSelf   = errors.New("it is this replica")
	errTwin   = errors.New("it is a replica that is listened to at another address")
)

// follower listens to another replica.
type follower struct {
	peers   *Peers
	address string
	stopped chan struct{}
	stop    func()        // closes stopped; any number of times
	learn   chan struct{} // holds a token while there are pools to ask for
	lastAt  atomic.Int64  // when something came last, in Unix nanoseconds

	// Guarded by the peers' mu.
	picks, wanted, self bool   // self: it is this replica, or one heard at another address
	instance            uint64 // of the replica, 0 while none is known
	heard               bool   // it tells, and what it remembers is known
}

func newFollower(p *Peers, address string) *follower {
	f := &follower{peers: p, address: address, stopped: make(chan struct{}), learn: make(chan struct{}, 1)}
	f.stop = sync.OnceFunc(func() { close(f.stopped) })
	return f
}

func (f *follower) wakeLearner() {
	select {
	case f.learn <- struct{}{}:
	default:
	}
}

// run listens until it is stopped, or its replica is gone that is not wanted any more.
func (f *follower) run(ctx context.Context) {
	defer f.peers.ended(f)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-f.stopped:
			cancel()
		case <-ctx.Done():
		}
	}()
	log := f.peers.options.Log.WithValues("address", f.address)
	said := false
	for pause := minPause; ; pause = min(2*pause, maxPause) {
		err := f.connect(ctx)
		twin := errors.Is(err, errTwin)
		was, wanted := f.lost(twin || errors.Is(err, errSelf))
		if twin {
			pause = maxPause // until the other address is not one any more
		}
		switch {
		case errors.Is(err, errSelf):
			<-ctx.Done() // there is nothing to hear, and nobody is missed
			return
		case ctx.Err() != nil || !wanted:
			log.V(1).Info("No longer listening to a replica")
			return
		case was:
			said, pause = true, minPause
			log.Info("Lost a replica; listening again as soon as it can be reached", "reason", err.Error())
		case !said:
			said = true
			log.Info("Cannot hear a replica; trying until it can be", "reason", err.Error())
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause/2 + rand.N(pause)): //nolint:gosec // no secret
		}
	}
}

// connect listens on a connection of its own: one that has gone silent is not worth another try.
func (f *follower) connect(ctx context.Context) error {
	conn, err := f.dial()
	if err != nil {
		return err
	}
	defer conn.Close()
	return f.listen(ctx, peerpb.NewPeerServiceClient(conn))
}

func (f *follower) dial() (*grpc.ClientConn, error) {
	creds := insecure.NewCredentials()
	if config := f.peers.options.TLS; config != nil {
		creds = credentials.NewTLS(config)
	}
	return grpc.NewClient("passthrough:///"+f.address, grpc.WithTransportCredentials(creds), grpc.WithNoProxy(),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage), grpc.WaitForReady(true)),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: minPause, Multiplier: 1.6, Jitter: 0.2, MaxDelay: maxPause},
			MinConnectTimeout: silence,
		}))
}

// lost takes note that the stream has ended, and says whether it was heard and is to be listened to again.
func (f *follower) lost(self bool) (was, wanted bool) {
	p := f.peers
	p.mu.Lock()
	defer p.mu.Unlock()
	was = f.heard
	f.heard, f.self, f.instance = false, self, 0
	p.recount()
	return was, f.wanted
}

// meets takes note of who the replica is, and says whether another follower listens to it.
func (f *follower) meets(instance uint64) (twin bool) {
	p := f.peers
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, other := range p.followers {
		if other != f && other.instance == instance {
			return true
		}
	}
	f.instance = instance
	return false
}

// found takes note that the replica is heard.
func (f *follower) found() {
	p := f.peers
	p.mu.Lock()
	was := f.heard
	f.heard = true
	p.recount()
	p.mu.Unlock()
	if !was {
		p.options.Log.Info("Hearing a replica", "address", f.address)
	}
}

// listen takes in what the replica tells until it is lost. Then all that it told of requests is taken back.
func (f *follower) listen(ctx context.Context, client peerpb.PeerServiceClient) error {
	ctx, cancel := context.WithCancelCause(ctx)
	watchdog := time.AfterFunc(silence, func() { cancel(errSilent) })
	defer watchdog.Stop()
	heard := heardPools{}
	defer heard.forget(func(*heardPool) bool { return true })
	var learning sync.WaitGroup
	defer learning.Wait()
	defer cancel(nil)
	why := func(err error) error {
		if errors.Is(context.Cause(ctx), errSilent) {
			return fmt.Errorf("%w: %w", errSilent, err)
		}
		return err
	}

	stream, err := client.Listen(ctx, &peerpb.ListenRequest{})
	if err != nil {
		return why(err)
	}
	for first := true; ; first = false {
		m, err := stream.Recv()
		if err != nil {
			return why(err)
		}
		if m.GetInstance() == f.peers.instance {
			return errSelf
		}
		if first && f.meets(m.GetInstance()) {
			return errTwin
		}
		now := time.Now()
		watchdog.Reset(silence)
		f.lastAt.Store(now.UnixNano())
		f.peers.metrics.received.Inc()
		f.take(m, heard, now)
		if first {
			learning.Go(func() { f.learnPools(ctx, client) })
		}
	}
}

// heardPool is what a replica tells of a pool.
type heardPool struct {
	peer picker.Peer
	at   time.Time
	taker
}

type heardPools map[string]*heardPool

// forget takes back what was told of some pools.
func (h heardPools) forget(which func(*heardPool) bool) {
	for name, told := range h {
		if which(told) {
			told.peer.Forget()
			delete(h, name)
		}
	}
}

// take takes in a message.
func (f *follower) take(m *peerpb.ListenResponse, heard heardPools, now time.Time) {
	heard.forget(func(h *heardPool) bool { return now.Sub(h.at) > silence })
	if m.GetPool() == "" {
		return
	}
	served, view := f.peers.pool(m.GetPool())
	if served == nil {
		f.peers.metrics.dropped.unknown.Inc()
		return
	}
	h := heard[m.GetPool()]
	if h == nil {
		h = &heardPool{}
		heard[m.GetPool()] = h
	}
	h.at = now
	report, invalid := h.take(m)
	f.peers.metrics.dropped.invalid.Add(float64(invalid))
	served.picker.Hear(view, &h.peer, report, served.clock())
}

// learnPools has the replica tell what it remembers: of all pools that are served now, and of each that comes, until
// ctx ends. After the first time the replica is heard.
func (f *follower) learnPools(ctx context.Context, client peerpb.PeerServiceClient) {
	asked := map[*pool]bool{}
	for {
		before := asked
		asked = map[*pool]bool{} // those that are gone are forgotten
		for _, served := range f.peers.servedPools() {
			asked[served] = before[served]
			if _, view := f.peers.pool(served.name.String()); view == nil || asked[served] || view.Policy.Strategy != endpoint.AdaptivePrefix {
				continue
			}
			asked[served] = true
			if err := learn(ctx, client, served); err != nil && ctx.Err() == nil {
				f.peers.options.Log.V(1).Info("A replica does not tell what it remembers", "address", f.address,
					"pool", served.name.String(), "reason", err.Error())
			}
		}
		if ctx.Err() != nil {
			return
		}
		f.found()
		select {
		case <-ctx.Done():
			return
		case <-f.learn:
		}
	}
}

// learn has a replica tell what it remembers of a pool.
func learn(ctx context.Context, client peerpb.PeerServiceClient, served *pool) error {
	ctx, cancel := context.WithTimeout(ctx, recallTimeout)
	defer cancel()
	stream, err := client.Recall(ctx, &peerpb.RecallRequest{Pool: served.name.String()})
	for err == nil {
		var m *peerpb.RecallResponse
		if m, err = stream.Recv(); err == nil {
			traffic, rungs := remembered(m)
			served.picker.Learn(traffic, rungs, served.clock())
		}
	}
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

func (p *Peers) servedPools() []*pool {
	p.mu.Lock()
	defer p.mu.Unlock()
	pools := make([]*pool, 0, len(p.pools))
	for _, served := range p.pools {
		pools = append(pools, served)
	}
	return pools
}

// oldest is how many seconds ago the replica was heard of that is the longest silent, and false if none is heard.
func (p *Peers) oldest() (seconds float64, heard bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, f := range p.followers {
		if f.heard {
			heard = true
			seconds = max(seconds, time.Since(time.Unix(0, f.lastAt.Load())).Seconds())
		}
	}
	return seconds, heard
}
