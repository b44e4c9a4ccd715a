package peer

import (
	"slices"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/homing-dev/homing/pkg/endpoint"
	"github.com/homing-dev/homing/pkg/peer/peerpb"
	"github.com/homing-dev/homing/pkg/picker"
)

const (
	// maxListeners is how many replicas may listen; more are turned away.
	maxListeners = 128
	// maxQueue and maxQueued are how many messages, of how many bytes in all, wait for a listener that is slow to
	// read; more are dropped.
	maxQueue  = 64
	maxQueued = 4 << 20
	// maxRecalled is how many rungs a part of a memory has: some 12 KB.
	maxRecalled = 256
)

// listener is a replica that listens to this one.
type listener struct {
	frames chan frame
	queued atomic.Int64 // bytes
}

// offer puts a message into the queue, if there is room.
func (l *listener) offer(f frame) bool {
	n := int64(len(f))
	if l.queued.Add(n) > maxQueued {
		l.queued.Add(-n)
		return false
	}
	select {
	case l.frames <- f:
		return true
	default:
		l.queued.Add(-n)
		return false
	}
}

// teller is what telling remembers from one time to the next.
type teller struct {
	open   bool // pickers keep their picks for listeners
	toldAt time.Time
}

// tell gives the listeners what is new, and once a second all there is.
func (p *Peers) tell(t *teller, now time.Time) {
	pools, listeners, newcomers := p.audience()
	snapshot := p.options.Store.Snapshot()
	for _, served := range pools {
		if snapshot.Pool(served.name) == nil {
			p.drop(served)
		}
	}
	if len(listeners) == 0 {
		t.open = false
		return
	}
	for _, served := range pools {
		view := snapshot.Pool(served.name)
		if view == nil {
			continue
		}
		served.picker.Report(view, &served.report)
		if !t.open { // what was picked when nobody listened is told by Recall
			served.report.Picks = served.report.Picks[:0]
		}
		due := newcomers || now.Sub(served.toldAt) >= heartbeat
		if !due && len(served.report.Picks) == 0 && slices.Equal(served.report.Counts, served.told) {
			continue
		}
		served.told = append(served.told[:0], served.report.Counts...)
		served.toldAt, t.toldAt = now, now
		p.send(listeners, p.encode(served.name, &served.report))
	}
	t.open = true
	if newcomers || now.Sub(t.toldAt) >= heartbeat { // without a pool it is a sign of life
		t.toldAt = now
		p.send(listeners, p.encode(endpoint.PoolName{}, &picker.Report{}))
	}
}

// audience is what to tell of, and to whom; newcomers says whether some were told nothing yet.
func (p *Peers) audience() (pools []*pool, listeners []*listener, newcomers bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, served := range p.pools {
		pools = append(pools, served)
	}
	for l, isNew := range p.listeners {
		listeners = append(listeners, l)
		newcomers = newcomers || isNew
		p.listeners[l] = false
	}
	return pools, listeners, newcomers
}

// drop forgets a pool that is not in the snapshot, once its port has closed: one that is back has been served anew.
func (p *Peers) drop(served *pool) {
	select {
	case <-served.closed:
	default:
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if name := served.name.String(); p.pools[name] == served {
		delete(p.pools, name)
		for _, f := range p.followers {
			f.wakeLearner() // so that it forgets the pool too
		}
	}
}

func (p *Peers) send(listeners []*listener, f frame) {
	for _, l := range listeners {
		if !l.offer(f) {
			p.metrics.dropped.slow.Inc()
		}
	}
}

// encode is a report as a message, encoded once for all who listen.
func (p *Peers) encode(name endpoint.PoolName, r *picker.Report) frame {
	m := &peerpb.ListenResponse{Instance: p.instance}
	if name != (endpoint.PoolName{}) {
		m.Pool = name.String()
	}
	put(m, r)
	encoded, err := proto.Marshal(m)
	if err != nil {
		panic(err) // only a string that is not UTF-8 can do that, and a pool's name is
	}
	return encoded
}

// Register has a server made with [ServerOptions] let others listen.
func (p *Peers) Register(r grpc.ServiceRegistrar) { peerpb.RegisterPeerServiceServer(r, p) }

// Listen implements [peerpb.PeerServiceServer].
func (p *Peers) Listen(_ *peerpb.ListenRequest, stream grpc.ServerStreamingServer[peerpb.ListenResponse]) error {
	l := &listener{frames: make(chan frame, maxQueue)}
	if !p.join(l) {
		return status.Errorf(codes.ResourceExhausted, "%d replicas listen already", maxListeners)
	}
	defer p.leave(l)
	for {
		select {
		case <-stream.Context().Done():
			return status.FromContextError(stream.Context().Err()).Err()
		case f := <-l.frames:
			err := stream.SendMsg(f)
			l.queued.Add(-int64(len(f)))
			if err != nil {
				return err
			}
			p.metrics.sent.Inc()
		}
	}
}

func (p *Peers) join(l *listener) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.listeners) >= maxListeners {
		return false
	}
	p.listeners[l] = true
	p.metrics.listening.Set(float64(len(p.listeners)))
	return true
}

func (p *Peers) leave(l *listener) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.listeners, l)
	p.metrics.listening.Set(float64(len(p.listeners)))
}

// Recall implements [peerpb.PeerServiceServer].
func (p *Peers) Recall(req *peerpb.RecallRequest, stream grpc.ServerStreamingServer[peerpb.RecallResponse]) error {
	served, view := p.pool(req.GetPool())
	if served == nil || view.Policy.Strategy != endpoint.AdaptivePrefix {
		return nil
	}
	traffic, rungs := served.picker.Recall(served.clock())
	part := make([]picker.Remembered, 0, maxRecalled)
	for r := range rungs {
		if part = append(part, r); len(part) == maxRecalled {
			if err := stream.Send(recalled(traffic, part)); err != nil {
				return err
			}
			part = part[:0]
		}
	}
	return stream.Send(recalled(traffic, part))
}
