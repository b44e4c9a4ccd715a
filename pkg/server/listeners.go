package server

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"net"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"

	"github.com/homing-dev/homing/pkg/endpoint"
)

const (
	// retryInterval is how long a port that could not be had is left alone.
	retryInterval = time.Second
	// cutTimeout bounds the wait for handlers whose streams were cut.
	cutTimeout = 5 * time.Second
)

// limits are the options of every gRPC server.
func limits() []grpc.ServerOption {
	const maxMessage = 64 << 20
	return []grpc.ServerOption{
		grpc.MaxRecvMsgSize(maxMessage),
		grpc.MaxSendMsgSize(maxMessage),
		// A gateway puts all its requests on few connections: one with a large body must not stall
		// behind the default windows of 64 KiB.
		grpc.InitialWindowSize(1 << 20),
		grpc.InitialConnWindowSize(16 << 20),
		// The gateway's pings are its own business.
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 100 * time.Millisecond, PermitWithoutStream: true}),
		// A gateway that vanished without a word must not leave its requests counted in flight.
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: 30 * time.Second, Timeout: 10 * time.Second}),
		// Stopping waits for handshakes, so they must not take long.
		grpc.ConnectionTimeout(5 * time.Second),
		grpc.WaitForHandlers(true),
	}
}

// listenerKey is a pool on a port. A pool that changes its port gets another listener.
type listenerKey struct {
	pool endpoint.PoolName
	port uint16
}

// listener is the open port of a pool.
type listener struct {
	key    listenerKey
	socket net.Listener
	server *grpc.Server
	// leave has streams ended that nobody loses anything by: those its service chooses, and the health
	// service's watches, which would go on for ever.
	leave context.CancelFunc
}

// listeners keeps one listener open for each pool. Its fields belong to follow and stop, which run one
// after the other.
type listeners struct {
	options Options
	tls     *tls.Config // nil for plaintext
	health  *health
	metrics *metrics

	open    map[listenerKey]*listener
	refused map[listenerKey]error // ports that could not be had, and why
	failed  chan *listener        // whose accept loop ended by itself
	stopped chan struct{}         // closed when nobody reads failed any more
	serving sync.WaitGroup        // accept loops, and drains of removed pools
}

func newListeners(o Options, config *tls.Config, h *health) *listeners {
	return &listeners{
		options: o, tls: config, health: h, metrics: newMetrics(o.Registerer),
		open: map[listenerKey]*listener{}, refused: map[listenerKey]error{},
		failed: make(chan *listener), stopped: make(chan struct{}),
	}
}

// follow opens and closes listeners as pools come and go, until ctx ends. The server is ready as soon as
// a first snapshot has come and all its ports are open; a port of a later pool that cannot be had does
// not take that back, because the other pools are served.
func (l *listeners) follow(ctx context.Context, published <-chan struct{}) {
	defer close(l.stopped)
	select {
	case <-published:
	case <-ctx.Done():
		return
	}
	for {
		changed := l.options.Store.Changed()
		l.reconcile(l.options.Store.Snapshot())
		l.health.update(l.refused)
		var retry <-chan time.Time
		if len(l.refused) > 0 {
			retry = time.After(retryInterval)
		}
		select {
		case <-ctx.Done():
			return
		case <-changed:
		case <-retry:
		case failed := <-l.failed:
			if l.open[failed.key] == failed {
				l.close(failed)
			}
		}
	}
}

// reconcile makes the open listeners those of the snapshot. What goes is closed before what comes is
// opened: a port may pass from one pool to another.
func (l *listeners) reconcile(snapshot *endpoint.Snapshot) {
	var wanted []listenerKey
	for pool := range snapshot.Pools {
		wanted = append(wanted, listenerKey{pool.Name, pool.Port})
	}
	slices.SortFunc(wanted, func(a, b listenerKey) int {
		return cmp.Or(cmp.Compare(a.port, b.port), cmp.Compare(a.pool.String(), b.pool.String()))
	})
	for key, open := range l.open {
		if !slices.Contains(wanted, key) {
			l.options.Log.Info("Closing a pool's port", "pool", key.pool.String(), "port", key.port)
			l.close(open)
			l.metrics.forget(key)
		}
	}
	for key := range l.refused {
		if !slices.Contains(wanted, key) {
			delete(l.refused, key)
			l.metrics.forget(key)
		}
	}
	for _, key := range wanted {
		if l.open[key] == nil {
			l.tryOpen(key)
		}
	}
}

func (l *listeners) tryOpen(key listenerKey) {
	socket, err := l.options.open(int(key.port))
	if err != nil {
		if l.refused[key] == nil {
			l.options.Log.Error(err, "A pool's port cannot be opened; trying again until it can",
				"pool", key.pool.String(), "port", key.port)
		}
		l.refused[key] = err
		l.metrics.up(key, false)
		return
	}
	delete(l.refused, key)
	if l.tls != nil {
		// Not as gRPC credentials: those turn away clients that send no ALPN, as gateways may.
		socket = tls.NewListener(socket, l.tls)
	}
	ctx, leave := context.WithCancel(context.Background())
	open := &listener{key: key, socket: socket, server: grpc.NewServer(limits()...), leave: leave}
	l.options.Register(ctx, key.pool, open.server)
	healthv1.RegisterHealthServer(open.server, l.health.service(ctx))
	l.open[key] = open
	l.metrics.up(key, true)
	l.options.Log.Info("Serving a pool", "pool", key.pool.String(), "address", socket.Addr().String(), "tls", l.tls != nil)
	l.serving.Go(func() { l.serve(open) })
}

// serve accepts connections until the listener is closed, and reports it when nobody closed it.
func (l *listeners) serve(open *listener) {
	err := open.server.Serve(open.socket)
	if err == nil || errors.Is(err, net.ErrClosed) || errors.Is(err, grpc.ErrServerStopped) {
		return
	}
	l.options.Log.Error(err, "A pool's port failed", "pool", open.key.pool.String(), "port", open.key.port)
	select {
	case l.failed <- open:
	case <-l.stopped:
	}
}

// close closes a listener at once and lets its streams drain in the background.
func (l *listeners) close(open *listener) {
	delete(l.open, open.key)
	_ = open.socket.Close() // nothing is lost: it only accepts
	l.serving.Go(func() { l.drain(open) })
}

// drain serves the streams of a closed listener to their end, or cuts them when that takes too long.
func (l *listeners) drain(open *listener) {
	open.leave()
	done := make(chan struct{})
	l.serving.Go(func() { open.server.GracefulStop(); close(done) })
	select {
	case <-done:
		return
	case <-time.After(l.options.Drain.Timeout):
	}
	l.options.Log.Info("Cutting the streams that did not end in time", "pool", open.key.pool.String(), "timeout", l.options.Drain.Timeout.String())
	l.serving.Go(open.server.Stop)
	select {
	case <-done:
	case <-time.After(cutTimeout):
	}
}

// stop drains every listener, and waits for those of pools that were removed before.
func (l *listeners) stop() {
	for _, open := range l.open {
		l.close(open)
	}
	done := make(chan struct{})
	go func() { l.serving.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(l.options.Drain.Timeout + cutTimeout + time.Second):
		l.options.Log.Info("Leaving handlers behind that do not return")
	}
}
