package peer

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"go.uber.org/goleak"
	"google.golang.org/grpc"

	"github.com/homing-dev/homing/pkg/endpoint"
	"github.com/homing-dev/homing/pkg/picker"
	"github.com/homing-dev/homing/pkg/prefix"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience is how long a test waits for what must come. Nothing is measured by it.
const patience = 60 * time.Second

var (
	chats  = endpoint.PoolName{Namespace: "ns", Name: "chats"}
	others = endpoint.PoolName{Namespace: "ns", Name: "others"}
)

// replica is one of several in this process, each with a store, pickers and a port of its own.
type replica struct {
	*Peers
	t       *testing.T
	address string
	store   *endpoint.Store
	pickers map[endpoint.PoolName]*picker.Picker
	close   map[endpoint.PoolName]context.CancelFunc
	server  *grpc.Server
	stop    func()

	mu  sync.Mutex
	log []string // guarded by mu
}

func clock() endpoint.Moment { return endpoint.MomentOf(time.Since(began)) }

var began = time.Now()

// start runs a replica at an address, "" for any, that serves the pools.
func start(t *testing.T, address string, replicas int, pools ...endpoint.PoolName) *replica {
	t.Helper()
	if address == "" {
		address = "127.0.0.1:0"
	}
	var socket net.Listener
	eventually(t, "the address is not free", func() (err error) { socket, err = net.Listen("tcp", address); return err })
	r := &replica{
		t: t, address: socket.Addr().String(), store: endpoint.NewStore(),
		pickers: map[endpoint.PoolName]*picker.Picker{}, close: map[endpoint.PoolName]context.CancelFunc{},
	}
	r.Peers = New(Options{
		Store: r.store, Replicas: replicas, Registerer: prometheus.NewRegistry(),
		Log: funcr.New(func(_, args string) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.log = append(r.log, args)
		}, funcr.Options{}),
	})
	r.publish(4, pools...)
	for _, name := range pools {
		r.serve(name)
	}
	r.server = grpc.NewServer(append(ServerOptions(), grpc.WaitForHandlers(true))...)
	r.Register(r.server)
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = r.server.Serve(socket) })
	running.Go(func() { r.Start(ctx) })
	r.stop = sync.OnceFunc(func() {
		cancel()
		r.server.Stop()
		running.Wait()
	})
	t.Cleanup(r.stop)
	return r
}

// publish has the pools have so many endpoints.
func (r *replica) publish(endpoints int, pools ...endpoint.PoolName) {
	var specs []endpoint.PoolSpec
	for i, name := range pools {
		policy := endpoint.DefaultPolicy()
		policy.Strategy = endpoint.AdaptivePrefix
		spec := endpoint.PoolSpec{Name: name, Port: uint16(9100 + i), Policy: policy}
		for j := range endpoints {
			uid := fmt.Sprint("pod-", j)
			spec.Endpoints = append(spec.Endpoints, endpoint.Spec{
				ID: endpoint.ID{UID: uid, Port: 8000}, Name: uid, Addr: netip.AddrPortFrom(netip.MustParseAddr("10.0.0.1"), uint16(8000+j)),
			})
		}
		specs = append(specs, spec)
	}
	r.store.Publish(specs)
}

func (r *replica) serve(name endpoint.PoolName) {
	ctx, cancel := context.WithCancel(context.Background())
	r.close[name] = cancel
	r.t.Cleanup(cancel)
	r.pickers[name] = picker.New(rand.Uint64)
	r.Serve(ctx, name, r.pickers[name], clock)
}

// follow has replicas listen to each other.
func follow(replicas ...*replica) {
	for _, r := range replicas {
		var list []Other
		for _, o := range replicas {
			if o != r {
				list = append(list, Other{Address: o.address, Picks: true})
			}
		}
		r.Follow(list)
	}
}

// together starts replicas and waits until all hear each other.
func together(t *testing.T, n int) []*replica {
	t.Helper()
	var list []*replica
	for range n {
		list = append(list, start(t, "", n, chats))
	}
	follow(list...)
	for _, r := range list {
		r.awaitHeard(float64(n-1), 0)
	}
	return list
}

// awaitHeard waits until so many replicas are heard, and not.
func (r *replica) awaitHeard(heard, unheard float64) {
	r.t.Helper()
	eventually(r.t, "heard", func() error {
		if h, u := value(r.metrics.heard), value(r.metrics.unheard); h != heard || u != unheard {
			return fmt.Errorf("%v are heard and %v are not, want %v and %v", h, u, heard, unheard)
		}
		return nil
	})
}

// elsewhere is what others have in flight in a pool, as far as this replica has heard.
func (r *replica) elsewhere(name endpoint.PoolName) (inFlight int64) {
	for _, e := range r.store.Snapshot().Pool(name).Endpoints {
		n, _ := e.Load.Elsewhere()
		inFlight += n
	}
	return inFlight
}

func (r *replica) awaitElsewhere(name endpoint.PoolName, want int64) {
	r.t.Helper()
	eventually(r.t, "in flight elsewhere", func() error {
		if got := r.elsewhere(name); got != want {
			return fmt.Errorf("%d, want %d", got, want)
		}
		return nil
	})
}

// pick picks for the given turn of a conversation.
func (r *replica) pick(conversation, turn int) *picker.Pick {
	r.t.Helper()
	req := picker.Request{Bytes: int64(1000 * (turn + 1)), Now: clock()}
	for i := range turn + 1 {
		req.Rungs = append(req.Rungs, prefix.Rung{Key: rungKey(conversation, i), Bytes: int32(1000 * (i + 1))})
	}
	p := &picker.Pick{}
	if err := r.pickers[chats].Pick(r.store.Snapshot().Pool(chats), &req, p); err != nil {
		r.t.Fatal(err)
	}
	return p
}

// logged is how often a line of the log has the words.
func (r *replica) logged(words string) (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, line := range r.log {
		if strings.Contains(line, words) {
			n++
		}
	}
	return n
}

func eventually(t *testing.T, what string, check func() error) {
	t.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: %v", what, err)
		}
	}
}

var errNotYet = errors.New("not yet")

func yet(is bool) error {
	if is {
		return nil
	}
	return errNotYet
}

func value(m prometheus.Metric) float64 {
	var d dto.Metric
	if err := m.Write(&d); err != nil {
		panic(err)
	}
	return d.GetGauge().GetValue() + d.GetCounter().GetValue()
}

// rungKey is the key of a turn of a conversation.
func rungKey(conversation, turn int) prefix.Key {
	return prefix.Key((conversation+1)*1000003 + turn*7919) //nolint:gosec // positive
}
