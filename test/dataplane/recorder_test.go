package dataplane

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/homing-dev/homing/pkg/endpoint"
	"github.com/homing-dev/homing/pkg/extproc"
	"github.com/homing-dev/homing/pkg/picker"
	"github.com/homing-dev/homing/test/env"
)

// observed is Homing's service in this process, behind an Envoy, with a record of every stream.
type observed struct {
	url     string
	client  *http.Client
	pool    *endpoint.Pool
	backend *backend
	endAt   string // the message at which Homing ends a stream well, without an answer

	mu      sync.Mutex
	streams map[string]*record // by request path
}

// record is what came on one stream, in order, and how it ended.
type record struct {
	mu     sync.Mutex
	events []string
	ended  chan struct{}
}

func (r *record) note(event string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, event)
}

// steps are the events without repetitions of the same one.
func (r *record) steps() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Compact(slices.Clone(r.events))
}

// count is how often an event came.
func (r *record) count(event string) (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range r.events {
		if e == event {
			n++
		}
	}
	return n
}

// observe runs one backend, Homing's service and an Envoy with one worker, whose ext_proc filter has
// these processing modes.
func observe(t testing.TB, serve http.HandlerFunc, edit func(env.EnvoyConfig)) *observed {
	t.Helper()
	o := &observed{client: httpClient(t, false), backend: startBackend(t, 0, serve), streams: map[string]*record{}}
	name := endpoint.PoolName{Namespace: "test", Name: "pool"}
	store := endpoint.NewStore()
	store.Publish([]endpoint.PoolSpec{{
		Name: name, Port: 1, Policy: endpoint.DefaultPolicy(),
		Endpoints: []endpoint.Spec{{
			ID: endpoint.ID{UID: "backend", Port: 1}, Name: "backend", Addr: netip.MustParseAddrPort(o.backend.addr),
		}},
	}})
	o.pool = store.Snapshot().Pool(name)
	service := extproc.New(extproc.Options{
		Pool: name, Store: store, Picker: picker.New(rand.Uint64),
		Metrics: extproc.NewMetrics(prometheus.NewRegistry(), store),
		Log:     logr.Discard(),
	})
	server := grpc.NewServer(grpc.StreamInterceptor(o.intercept))
	service.Register(server)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = server.Serve(listener) }() // until Stop
	t.Cleanup(server.Stop)

	envoy, err := env.For(t).Envoy(t.Context(), env.EnvoyOptions{
		Picker: listener.Addr().String(), Endpoints: []string{o.backend.addr}, Concurrency: 1, Edit: edit,
	})
	env.Check(t, err)
	o.url = envoy.URL
	return o
}

// inFlight is what is counted at the only endpoint.
func (o *observed) inFlight() int64 { return o.pool.Endpoints[0].Load.InFlight() }

// stream is the record of a request, by its path; it waits for the stream to begin.
func (o *observed) stream(t testing.TB, path string) (r *record) {
	t.Helper()
	eventually(t, "the stream of "+path, func() error {
		o.mu.Lock()
		defer o.mu.Unlock()
		if r = o.streams[path]; r == nil {
			return errors.New("has not begun")
		}
		return nil
	})
	return r
}

// intercept records a stream from its first message on.
func (o *observed) intercept(srv any, ss grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	r := &record{ended: make(chan struct{})}
	defer close(r.ended)
	return handler(srv, &recordedStream{ServerStream: ss, observed: o, record: r})
}

type recordedStream struct {
	grpc.ServerStream
	observed *observed
	record   *record
}

// RecvMsg records what came before the service sees it.
func (s *recordedStream) RecvMsg(m any) error {
	err := s.ServerStream.RecvMsg(m)
	switch {
	case errors.Is(err, io.EOF):
		s.record.note("EOF")
	case status.Code(err) == codes.Canceled:
		s.record.note("canceled")
	case err != nil:
		s.record.note(err.Error())
	default:
		if s.message(m.(*extprocv3.ProcessingRequest)) == s.observed.endAt {
			return io.EOF
		}
	}
	return err
}

// message records a message, and says which it is.
func (s *recordedStream) message(m *extprocv3.ProcessingRequest) string {
	if h := m.GetRequestHeaders(); h != nil {
		for _, header := range h.GetHeaders().GetHeaders() {
			if header.Key == ":path" {
				s.observed.mu.Lock()
				s.observed.streams[string(header.RawValue)] = s.record
				s.observed.mu.Unlock()
			}
		}
	}
	// "*ext_procv3.ProcessingRequest_ResponseBody" is "ResponseBody".
	_, event, _ := strings.Cut(fmt.Sprintf("%T", m.Request), "ProcessingRequest_")
	s.record.note(event)
	return event
}
