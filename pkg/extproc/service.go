// Package extproc speaks Envoy's external processing protocol for the pools: one [Service] per pool,
// one stream per HTTP request. It is the only package that knows go-control-plane.
//
// Invariants: every stream that picked an endpoint releases it exactly once, whatever ends the stream;
// every byte of a request's body goes back to Envoy once, unchanged and in order; a stream is touched
// by its own goroutine alone, but for [Service.Drain], which ends those that only wait; and nothing that
// a client sends ends a stream with an error.
//
// The words are Envoy's. The protocol is described at
// https://www.envoyproxy.io/docs/envoy/latest/api-v3/service/ext_proc/v3/external_processor.proto and
// in the Gateway API Inference Extension's proposal 004, the Endpoint Picker Protocol.
package extproc

import (
	"fmt"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"github.com/go-logr/logr"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/homing-dev/homing/pkg/endpoint"
	"github.com/homing-dev/homing/pkg/picker"
)

// Options are what a [Service] is made of. Pool, Store, Picker and Metrics are required.
type Options struct {
	// Pool is the pool whose port this service is served on.
	Pool  endpoint.PoolName
	Store *endpoint.Store
	// Picker is the pool's own.
	Picker  *picker.Picker
	Metrics *Metrics
	// MaxInspectBytes bounds how far a JSON body is read for members that come after its text;
	// 0 means prompt.DefaultMaxInspectBytes.
	MaxInspectBytes int
	Log             logr.Logger
	// Now is the clock; nil means time.Now.
	Now func() time.Time
	// Began is when the time began that pickers are told, the same for all services of a Store, whose endpoints
	// outlive them. Zero means when New is called.
	Began time.Time
}

// end is how a stream ended.
type end uint8

const (
	endEOF      end = iota // the gateway was through
	endCanceled            // the gateway reset the stream, or its connection was lost
	endRefused             // with an immediate response
	endDrained             // by Service.Drain: the gateway goes on by itself
	endFailed              // with an error
	endPanic
)

// Service answers Envoy for one pool. It is safe for concurrent use.
type Service struct {
	Options

	streams sync.Pool                   // of *stream
	metrics atomic.Pointer[poolMetrics] // of the pool as it was last seen
	gateway gatewayHealth
	idle    idle
}

// New returns the service of one pool. Call Register to have a gRPC server serve it.
func New(o Options) *Service {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Began.IsZero() {
		o.Began = o.Now()
	}
	s := &Service{Options: o, idle: idle{streams: map[*stream]struct{}{}}}
	s.Log = o.Log.WithValues("pool", o.Pool.String())
	s.streams.New = func() any { return &stream{service: s, replies: newReplies()} }
	return s
}

// Register makes r serve this pool.
func (s *Service) Register(r grpc.ServiceRegistrar) {
	extprocv3.RegisterExternalProcessorServer(r, s)
}

// Clock is the time that the picker is told.
func (s *Service) Clock() endpoint.Moment { return endpoint.MomentOf(s.Now().Sub(s.Began)) }

// Process serves one HTTP request. It returns when the gateway ends the stream; an error makes the
// gateway follow its failure mode.
func (s *Service) Process(rpc extprocv3.ExternalProcessor_ProcessServer) (err error) {
	st := s.streams.Get().(*stream)
	st.rpc = rpc
	defer func() {
		if p := recover(); p != nil {
			// A panicked stream is not put back: what it left behind is not worth trusting.
			s.Log.Error(fmt.Errorf("panic: %v", p), "A stream panicked; its request follows the gateway's failure mode",
				"stack", string(debug.Stack()))
			st.finish(endPanic)
			err = status.Error(codes.Internal, "internal error in the endpoint picker")
		}
	}()
	err = st.run()
	e := st.endOf(err)
	st.finish(e)
	st.reset()
	s.streams.Put(st)
	if e == endFailed {
		s.noteFailed(err)
		return err
	}
	return nil
}

// metricsOf is the pool's metrics; pool is nil when the snapshot does not have it.
func (s *Service) metricsOf(pool *endpoint.Pool) *poolMetrics {
	if m := s.metrics.Load(); m != nil && m.pool == pool {
		return m
	}
	m := s.Metrics.resolve(s.Pool, pool)
	s.metrics.Store(m)
	return m
}
