package peer

import (
	"context"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"weak"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/homing-dev/homing/pkg/peer/peerpb"
	"github.com/homing-dev/homing/pkg/picker"
	"github.com/homing-dev/homing/pkg/prefix"
)

func TestReplicasCountEachOthersRequests(t *testing.T) {
	for _, n := range []int{2, 3} {
		list := together(t, n)
		var picks []*picker.Pick
		for i, r := range list {
			for j := range i + 1 { // the first has 1 in flight, the second 2 ...
				picks = append(picks, r.pick(100*i+j, 0))
			}
		}
		all := int64(n * (n + 1) / 2)
		for i, r := range list {
			r.awaitElsewhere(chats, all-int64(i+1))
		}
		for _, p := range picks {
			p.Release()
		}
		for _, r := range list {
			r.awaitElsewhere(chats, 0)
			r.stop()
		}
	}
}

// What one replica has placed, the others find.
func TestReplicasFindEachOthersHomes(t *testing.T) {
	list := together(t, 3)
	homes := map[int]string{}
	for c := range 60 {
		p := list[c%3].pick(c, 0)
		homes[c] = p.Endpoint.Name
		p.Release()
	}
	for turn := 1; turn < 4; turn++ {
		for c := range 60 {
			to := list[(c+turn)%3]
			eventually(t, "the last turn is not known", func() error { return yet(to.remembers(c, turn-1)) })
			p := to.pick(c, turn)
			if p.Endpoint.Name != homes[c] {
				t.Errorf("turn %d of conversation %d went to %s, home is %s", turn, c, p.Endpoint.Name, homes[c])
			}
			p.Release()
		}
	}
}

// remembers says whether the replica knows of a turn of a conversation.
func (r *replica) remembers(conversation, turn int) bool {
	_, rungs := r.pickers[chats].Recall(clock())
	for rung := range rungs {
		if rung.Key == rungKey(conversation, turn) {
			return true
		}
	}
	return false
}

func TestUnheardIsRightFromTheStart(t *testing.T) {
	r := start(t, "", 3, chats)
	r.awaitHeard(0, 2) // by --replicas
	b := start(t, "", 3, chats)
	list := []Other{{b.address, true}, {"127.0.0.1:1", true}, {"127.0.0.1:2", false}, {r.address, true}}
	r.Follow(list)
	r.awaitHeard(1, 1) // b is heard, one that picks is not; another does not pick; and itself is nobody
	r.Follow(list[:1])
	r.awaitHeard(1, 0)
	b.stop()
	r.awaitHeard(0, 1)
	r.Follow(nil)
	r.awaitHeard(0, 0)
	if n := r.logged("Hearing a replica"); n != 1 {
		t.Errorf("said %d times that it hears b", n)
	}
	if n := r.logged("Lost a replica"); n != 1 {
		t.Errorf("said %d times that it lost b", n)
	}
	if n := r.logged(`"Cannot hear a replica`); n > 2 {
		t.Errorf("said %d times that it cannot hear two", n)
	}
}

// A replica that has two addresses counts once, and at the other one when the first is not its any more.
func TestAReplicaAtTwoAddressesCountsOnce(t *testing.T) {
	a, b := start(t, "", 2, chats), start(t, "", 2, chats)
	way := newLink(t, b.address).Addr().String()
	a.Follow([]Other{{b.address, true}, {way, true}})
	a.awaitHeard(1, 0)
	b.pick(1, 0)
	a.awaitElsewhere(chats, 1)
	eventually(t, "nobody says so", func() error { return yet(a.logged("at another address") == 1) })
	b.pick(2, 0)
	a.awaitElsewhere(chats, 2)
	a.awaitHeard(1, 0)
	b.stop()
	a.awaitHeard(0, 2)
	a.awaitElsewhere(chats, 0)
	again := start(t, b.address, 2, chats)
	again.pick(1, 0)
	a.awaitHeard(1, 0)
	a.awaitElsewhere(chats, 1)
}

// What a pool's picker remembers goes with the pool, whether or not anybody listens.
func TestAPoolThatIsGoneIsForgotten(t *testing.T) {
	alone := start(t, "", 1, chats, others)
	for _, r := range append(together(t, 2), alone) {
		if r != alone {
			r.publish(4, chats, others)
			r.serve(others)
		}
		r.Peers.mu.Lock()
		gone := weak.Make(r.pools[others.String()])
		r.Peers.mu.Unlock()
		r.publish(4, chats)
		r.close[others]()
		delete(r.pickers, others)
		eventually(t, "the pool is kept", func() error {
			runtime.GC()
			return yet(gone.Value() == nil)
		})
	}
}

func TestALostReplicaIsForgottenAndFoundAgain(t *testing.T) {
	list := together(t, 2)
	a, b := list[0], list[1]
	for i := range 5 {
		b.pick(i, 0)
	}
	a.awaitElsewhere(chats, 5)
	b.stop()
	a.awaitElsewhere(chats, 0)
	a.awaitHeard(0, 1)

	again := start(t, b.address, 2, chats)
	follow(a, again)
	a.awaitHeard(1, 0)
	again.pick(9, 0)
	a.awaitElsewhere(chats, 1)
}

// A replica that goes is wanted no more, and still has requests under way.
func TestAReplicaThatGoesCountsUntilItsEnd(t *testing.T) {
	list := together(t, 2)
	a, b := list[0], list[1]
	p := b.pick(1, 0)
	b.pick(2, 0)
	a.awaitElsewhere(chats, 2)
	a.Follow(nil)
	b.close[chats]() // its port has closed, as in a drain
	p.Release()
	a.awaitElsewhere(chats, 1)
	a.awaitHeard(1, 0)
	b.stop()
	a.awaitElsewhere(chats, 0)
	a.awaitHeard(0, 0)
	eventually(t, "still listening", func() error {
		a.Peers.mu.Lock()
		defer a.Peers.mu.Unlock()
		return yet(len(a.followers) == 0)
	})
}

// link passes connections on, until it is told to swallow what comes. Connections made until it is told to pass again
// stay dead.
type link struct {
	net.Listener
	to        string
	swallow   atomic.Bool
	mended    atomic.Int64
	running   sync.WaitGroup
	mu        sync.Mutex
	connected []net.Conn // guarded by mu
}

func newLink(t *testing.T, to string) *link {
	socket, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := &link{Listener: socket, to: to}
	l.running.Go(l.run)
	t.Cleanup(func() {
		_ = l.Close()
		l.mu.Lock()
		for _, c := range l.connected {
			_ = c.Close()
		}
		l.mu.Unlock()
		l.running.Wait()
	})
	return l
}

func (l *link) run() {
	for {
		in, err := l.Accept()
		if err != nil {
			return
		}
		out, err := net.Dial("tcp", l.to)
		if err != nil {
			_ = in.Close()
			continue
		}
		l.mu.Lock()
		l.connected = append(l.connected, in, out)
		l.mu.Unlock()
		mended := l.mended.Load()
		l.running.Go(func() { l.pass(in, out, mended) })
		l.running.Go(func() { l.pass(out, in, mended) })
	}
}

func (l *link) mend() {
	l.mended.Add(1)
	l.swallow.Store(false)
}

func (l *link) pass(from, to net.Conn, mended int64) {
	defer to.Close()
	buffer := make([]byte, 1<<15)
	for {
		n, err := from.Read(buffer)
		if err != nil {
			return
		}
		if l.swallow.Load() || l.mended.Load() != mended {
			continue
		}
		if _, err := to.Write(buffer[:n]); err != nil {
			return
		}
	}
}

// A connection that is dead without a word is no better than none.
func TestASilentReplicaIsForgotten(t *testing.T) {
	a, b := start(t, "", 2, chats), start(t, "", 2, chats)
	l := newLink(t, b.address)
	a.Follow([]Other{{l.Addr().String(), true}})
	a.awaitHeard(1, 0)
	b.pick(1, 0)
	a.awaitElsewhere(chats, 1)
	l.swallow.Store(true)
	a.awaitElsewhere(chats, 0)
	a.awaitHeard(0, 1)
	if n := a.logged(errSilent.Error()); n != 1 {
		t.Errorf("the silence is told %d times", n)
	}
	l.mend()
	a.awaitHeard(1, 0)
	a.awaitElsewhere(chats, 1)
}

// A listener that does not read costs itself what it does not read, and nobody anything else.
func TestAStuckListenerHoldsUpNobody(t *testing.T) {
	list := together(t, 2)
	a, b := list[0], list[1]
	conn, err := grpc.NewClient(a.address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	if _, err := peerpb.NewPeerServiceClient(conn).Listen(ctx, &peerpb.ListenRequest{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "not listening", func() error { return yet(value(a.metrics.listening) == 2) })
	conversation := 0
	eventually(t, "nothing is dropped", func() error {
		for range 500 { // some 0.5 MB a message
			conversation++
			a.pick(conversation, prefix.MaxRungs-1).Release()
		}
		return yet(value(a.metrics.dropped.slow) > 0)
	})
	a.Peers.mu.Lock()
	for l := range a.listeners {
		if queued := l.queued.Load(); queued > maxQueued {
			t.Errorf("%d bytes wait for a listener", queued)
		}
	}
	a.Peers.mu.Unlock()
	a.pick(1, 0)
	b.awaitElsewhere(chats, 1) // the other is told all the same
	cancel()
	eventually(t, "it listens for ever", func() error { return yet(value(a.metrics.listening) == 1) })
}

// A replica that has just begun, or has just got a pool, is told what the others remember.
func TestARestartedReplicaFindsTheHomes(t *testing.T) {
	a, b := start(t, "", 2, chats), start(t, "", 2, chats)
	follow(a, b)
	homes := map[int]string{}
	for c := range 3000 { // several parts of a memory
		p := a.pick(c, 0)
		homes[c] = p.Endpoint.Name
		p.Release()
	}
	b.stop()
	for name, again := range map[string]*replica{
		"restarted":      start(t, b.address, 2, chats),
		"without a pool": start(t, "", 2),
	} {
		t.Run(name, func(t *testing.T) {
			again.Follow([]Other{{a.address, true}})
			again.awaitHeard(1, 0)
			if again.pickers[chats] == nil {
				again.publish(4, chats)
				again.serve(chats)
			}
			// The last of them to come is known when all are.
			_, rungs := a.pickers[chats].Recall(clock())
			var last prefix.Key
			for r := range rungs {
				last = r.Key
			}
			eventually(t, "the memory does not come", func() error {
				_, rungs := again.pickers[chats].Recall(clock())
				for r := range rungs {
					if r.Key == last {
						return nil
					}
				}
				return errNotYet
			})
			elsewhere := 0
			for c := range 3000 {
				p := again.pick(c, 1)
				if p.Endpoint.Name != homes[c] {
					elsewhere++
				}
				p.Release()
			}
			if elsewhere > 0 {
				t.Errorf("%d of 3000 conversations went elsewhere", elsewhere)
			}
		})
	}
}

func TestPoolsThatOnlyOneKnowsAreSkipped(t *testing.T) {
	a, b := start(t, "", 2, chats, others), start(t, "", 2, chats)
	follow(a, b)
	a.awaitHeard(1, 0)
	b.awaitHeard(1, 0)
	for _, e := range a.store.Snapshot().Pool(others).Endpoints {
		e.Load.Add()
	}
	a.pick(1, 0)
	b.awaitElsewhere(chats, 1)
	eventually(t, "nothing is skipped", func() error { return yet(value(b.metrics.dropped.unknown) > 0) })
	b.publish(4, chats, others)
	b.serve(others)
	b.awaitElsewhere(others, 4)
	a.publish(4, chats) // gone there, it is not told any more
	b.awaitElsewhere(others, 0)
	b.awaitElsewhere(chats, 1)
}

// An endpoint that is not known here yet is counted with the first report after it came.
func TestAnEndpointThatComesLaterIsCounted(t *testing.T) {
	list := together(t, 2)
	a, b := list[0], list[1]
	a.publish(6, chats)
	for _, e := range a.store.Snapshot().Pool(chats).Endpoints {
		e.Load.Add()
	}
	b.awaitElsewhere(chats, 4)
	b.publish(6, chats)
	b.awaitElsewhere(chats, 6)
	b.publish(2, chats)
	b.awaitElsewhere(chats, 2)
}

// absurd tells what cannot be.
type absurd struct {
	peerpb.UnimplementedPeerServiceServer
	messages chan *peerpb.ListenResponse
}

func (s *absurd) Listen(_ *peerpb.ListenRequest, stream grpc.ServerStreamingServer[peerpb.ListenResponse]) error {
	for {
		select {
		case m := <-s.messages:
			if err := stream.Send(m); err != nil {
				return err
			}
		case <-stream.Context().Done():
			return nil
		}
	}
}

func (s *absurd) Recall(_ *peerpb.RecallRequest, stream grpc.ServerStreamingServer[peerpb.RecallResponse]) error {
	return stream.Send(absurdMemory())
}

func TestAbsurdReportsDoNoHarm(t *testing.T) {
	socket, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	liar := &absurd{messages: make(chan *peerpb.ListenResponse)}
	server := grpc.NewServer(grpc.WaitForHandlers(true))
	peerpb.RegisterPeerServiceServer(server, liar)
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(socket) })
	defer serving.Wait()
	defer server.Stop()

	a := start(t, "", 2, chats)
	a.Follow([]Other{{socket.Addr().String(), true}})
	tag := uint32(picker.TagOf(a.store.Snapshot().Pool(chats).Endpoints[0]))
	for _, m := range absurdMessages(tag) {
		liar.messages <- m
	}
	a.awaitHeard(1, 0)
	a.awaitElsewhere(chats, maxInFlight)
	if value(a.metrics.dropped.invalid) == 0 {
		t.Error("nothing was found to be invalid")
	}
	if p := a.pick(1, 0); p.Endpoint.ID.UID == "pod-0" {
		t.Error("the endpoint that is said to have a million requests in flight is picked")
	}
	server.Stop()
	a.awaitElsewhere(chats, 0)
	for _, e := range a.store.Snapshot().Pool(chats).Endpoints {
		if _, pending := e.Load.Elsewhere(); pending != 0 {
			t.Errorf("%d bytes stay pending", pending)
		}
	}
}

// Listeners beyond what there may be are turned away.
func TestListenersAreBounded(t *testing.T) {
	a := start(t, "", 1, chats)
	for range maxListeners {
		l := &listener{frames: make(chan frame, 1)}
		if !a.join(l) {
			t.Fatal("turned away too soon")
		}
		defer a.leave(l)
	}
	if a.join(&listener{}) {
		t.Error("one too many")
	}
}
