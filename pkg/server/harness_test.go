package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/homing-dev/homing/pkg/endpoint"
)

// patience is how long a test waits for what must come. Nothing is measured by it.
const patience = 30 * time.Second

// echo is a service in the place of ext_proc: it answers each message with its pool's name, until the
// client closes.
func echo(_ context.Context, pool endpoint.PoolName, r grpc.ServiceRegistrar) {
	r.RegisterService(&grpc.ServiceDesc{
		ServiceName: "test.Echo", HandlerType: (*any)(nil),
		Streams: []grpc.StreamDesc{{
			StreamName: "Echo", ServerStreams: true, ClientStreams: true,
			Handler: func(_ any, stream grpc.ServerStream) error {
				for {
					if err := stream.RecvMsg(&wrapperspb.StringValue{}); err != nil {
						return nil
					}
					if err := stream.SendMsg(wrapperspb.String(pool.Name)); err != nil {
						return err
					}
				}
			},
		}},
	}, nil)
}

// harness is a server at work on loopback.
type harness struct {
	*Server
	t     *testing.T
	store *endpoint.Store
	stop  context.CancelFunc
	ended chan error

	mu      sync.Mutex
	logs    []string              // guarded by mu
	opened  map[string]int        // guarded by mu; how often each address was asked for
	sockets map[string]*breakable // guarded by mu; by address
}

// breakable is a socket whose next Accept fails, once it is told to.
type breakable struct {
	net.Listener
	broken atomic.Bool
}

func (b *breakable) Accept() (net.Conn, error) {
	conn, err := b.Listener.Accept()
	if err == nil && b.broken.Load() {
		_ = conn.Close()
		return nil, errors.New("broken by the test")
	}
	return conn, err
}

func (h *harness) listen(network, address string) (net.Listener, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.opened[address]++
	l, err := net.Listen(network, address)
	if err != nil {
		return nil, err
	}
	h.sockets[address] = &breakable{Listener: l}
	return h.sockets[address], nil
}

// asked is how often a port was asked for.
func (h *harness) asked(port uint16) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.opened[local(port)]
}

// breakSocket makes the socket on a port fail.
func (h *harness) breakSocket(port uint16) {
	h.t.Helper()
	h.mu.Lock()
	socket := h.sockets[local(port)]
	h.mu.Unlock()
	socket.broken.Store(true)
	if c, err := net.Dial("tcp", local(port)); err == nil {
		_ = c.Close()
	}
}

func (h *harness) logged(text string) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	n := 0
	for _, line := range h.logs {
		n += strings.Count(line, text)
	}
	return n
}

// start starts a server in plaintext, unless change says otherwise.
func start(t *testing.T, change func(*Options)) *harness {
	t.Helper()
	h := &harness{
		t: t, store: endpoint.NewStore(), ended: make(chan error, 1),
		opened: map[string]int{}, sockets: map[string]*breakable{},
	}
	registry := prometheus.NewRegistry()
	o := Options{
		Store: h.store, Register: echo, BindAddress: "127.0.0.1",
		TLS: TLSOptions{Plaintext: true}, Drain: DrainOptions{Timeout: patience},
		Registerer: registry, Gatherer: registry,
		Log: funcr.New(func(_, args string) {
			h.mu.Lock()
			defer h.mu.Unlock()
			h.logs = append(h.logs, args)
		}, funcr.Options{}),
		listen: h.listen,
	}
	if change != nil {
		change(&o)
	}
	var err error
	if h.Server, err = New(o); err != nil {
		t.Fatal(err)
	}
	var ctx context.Context
	ctx, h.stop = context.WithCancel(context.Background())
	go func() { h.ended <- h.Start(ctx) }()
	t.Cleanup(func() { h.stop(); _ = h.wait() })
	return h
}

// wait waits for the server's end and returns its error. It may be called again.
func (h *harness) wait() error {
	h.t.Helper()
	select {
	case err := <-h.ended:
		h.ended <- err
		return err
	case <-time.After(patience):
		h.t.Fatal("the server does not stop")
		return nil
	}
}

// serve publishes pools, each on its port, and waits until all of them are open.
func (h *harness) serve(pools map[string]uint16) {
	h.t.Helper()
	h.publish(pools)
	for name, port := range pools {
		h.eventually(fmt.Sprintf("pool %s is not up on port %d", name, port), func() bool { return h.up(name, port) == 1 })
	}
}

func (h *harness) publish(pools map[string]uint16) {
	var specs []endpoint.PoolSpec
	for name, port := range pools {
		specs = append(specs, endpoint.PoolSpec{Name: endpoint.PoolName{Namespace: "ns", Name: name}, Port: port, Policy: endpoint.DefaultPolicy()})
	}
	h.store.Publish(specs)
}

// up is the pool's metric, -1 if there is none.
func (h *harness) up(pool string, port uint16) float64 {
	h.t.Helper()
	families, err := h.options.Gatherer.Gather()
	if err != nil {
		h.t.Fatal(err)
	}
	want := map[string]string{"pool_namespace": "ns", "pool_name": pool, "port": strconv.Itoa(int(port))}
	for _, family := range families {
		if family.GetName() != "homing_listener_up" {
			continue
		}
		for _, m := range family.GetMetric() {
			labels := map[string]string{}
			for _, l := range m.GetLabel() {
				labels[l.GetName()] = l.GetValue()
			}
			if maps.Equal(labels, want) {
				return m.GetGauge().GetValue()
			}
		}
	}
	return -1
}

func (h *harness) eventually(complaint string, condition func() bool) {
	h.t.Helper()
	for deadline := time.Now().Add(patience); !condition(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			h.t.Fatal(complaint)
		}
	}
}

// freePort is a port of loopback that nobody had a moment ago.
func freePort(t *testing.T) uint16 {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return uint16(l.Addr().(*net.TCPAddr).Port)
}

func dial(t *testing.T, address string, options ...grpc.DialOption) *grpc.ClientConn {
	t.Helper()
	if options == nil {
		options = []grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials())}
	}
	conn, err := grpc.NewClient(address, options...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func local(port uint16) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(int(port))) }

// openStream opens an echo stream on a connection; the context ends it.
func openStream(t *testing.T, conn *grpc.ClientConn) grpc.ClientStream {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, "/test.Echo/Echo")
	if err != nil {
		t.Fatal(err)
	}
	return stream
}

// ask sends a message on a stream and returns the pool that answers.
func ask(stream grpc.ClientStream) (string, error) {
	if err := stream.SendMsg(wrapperspb.String("?")); err != nil {
		return "", err
	}
	var answer wrapperspb.StringValue
	err := stream.RecvMsg(&answer)
	return answer.GetValue(), err
}

func mustAnswer(t *testing.T, stream grpc.ClientStream, want string) {
	t.Helper()
	if got, err := ask(stream); err != nil || got != want {
		t.Fatalf("got %q, %v; want %q", got, err, want)
	}
}

// status is what the health service at an address says of a service.
func status(t *testing.T, conn *grpc.ClientConn, service string) healthv1.HealthCheckResponse_ServingStatus {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	r, err := healthv1.NewHealthClient(conn).Check(ctx, &healthv1.HealthCheckRequest{Service: service}, grpc.WaitForReady(true))
	if err != nil {
		t.Fatalf("%q: %v", service, err)
	}
	return r.GetStatus()
}

// get fetches a path of the metrics port.
func (h *harness) get(path string) (int, string) {
	h.t.Helper()
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: patience}
	r, err := client.Get("http://" + h.MetricsAddr().String() + path)
	if err != nil {
		h.t.Fatal(err)
	}
	defer r.Body.Close()
	body, err := io.ReadAll(r.Body)
	if err != nil {
		h.t.Fatal(err)
	}
	return r.StatusCode, string(body)
}
