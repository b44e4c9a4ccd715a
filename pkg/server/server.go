// Package server serves a store of pools to gateways: one ext_proc listener per pool, health, and metrics.
//
// Invariants: a listener is open exactly while its pool is in the snapshot and its port can be had; a
// stream that was accepted is served until its service ends it, or until the drain timeout, whatever
// becomes of its pool or of the process; and health says NOT_SERVING before anything stops.
package server

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/homing-dev/homing/pkg/endpoint"
)

// Options are what a [Server] is made of.
type Options struct {
	// Store is what is served. Nothing may have been published to it before [New]: the first publication
	// is what makes the server ready.
	Store *endpoint.Store
	// Register puts the service of one pool on the gRPC server of its port. The context ends when the port
	// has closed for good: the service is then to end the streams that it need not serve to their end.
	Register func(context.Context, endpoint.PoolName, grpc.ServiceRegistrar)
	// BindAddress is the IP address of every listener; empty means all addresses.
	BindAddress string
	// HealthPort and MetricsPort, 0..65535; 0 takes any free port.
	HealthPort, MetricsPort int
	TLS                     TLSOptions
	Drain                   DrainOptions
	Peers                   PeerOptions
	// Registerer takes the server's own metrics, Gatherer is what /metrics shows.
	Registerer prometheus.Registerer
	Gatherer   prometheus.Gatherer
	// Waiting says why nothing has been published yet, for /readyz; nil if something has. It may be unset.
	Waiting func() error
	// Profiling serves /debug/pprof/ beside the metrics.
	Profiling bool
	Log       logr.Logger

	listen func(network, address string) (net.Listener, error) // net.Listen, except in tests
}

func (o *Options) open(port int) (net.Listener, error) {
	return o.listen("tcp", net.JoinHostPort(o.BindAddress, strconv.Itoa(port)))
}

// DrainOptions say how a server, or a pool that was removed, comes to its end.
type DrainOptions struct {
	// Delay is how long everything is served on after health says NOT_SERVING, so that gateways and
	// load balancers take note.
	Delay time.Duration
	// Timeout is how long streams may then go on before they are cut, if the service cannot end them itself.
	Timeout time.Duration
}

// PeerOptions say how other replicas listen to this one: on a port of their own, secured as ext_proc is, until the
// last stream of ext_proc has ended.
type PeerOptions struct {
	// Port, 1..65535; 0 opens none.
	Port int
	// Register puts the service on the gRPC server of that port, which is made with Options.
	Register func(grpc.ServiceRegistrar)
	Options  []grpc.ServerOption
}

// Server serves until its context ends.
type Server struct {
	options   Options
	published <-chan struct{}
	pools     *listeners
	health    *health
	certs     *certificates
	healthAt  net.Listener
	httpAt    net.Listener
	peersAt   net.Listener // nil without peers
}

// New opens the health and metrics ports, and that for peers, and reads the certificate, so that what is wrong with them is
// known before anything runs.
func New(o Options) (*Server, error) {
	if o.listen == nil {
		o.listen = net.Listen
	}
	s := &Server{options: o, published: o.Store.Changed(), health: newHealth()}
	var err error
	if s.healthAt, err = o.open(o.HealthPort); err != nil {
		return nil, fmt.Errorf("health: %w", err)
	}
	if s.httpAt, err = o.open(o.MetricsPort); err != nil {
		return nil, errors.Join(fmt.Errorf("metrics: %w", err), s.healthAt.Close())
	}
	if s.certs, err = o.TLS.load(); err != nil {
		return nil, errors.Join(err, s.healthAt.Close(), s.httpAt.Close())
	}
	if o.Peers.Port != 0 {
		if s.peersAt, err = o.open(o.Peers.Port); err != nil {
			return nil, errors.Join(fmt.Errorf("peers: %w", err), s.healthAt.Close(), s.httpAt.Close())
		}
	}
	s.pools = newListeners(o, s.certs.config, s.health)
	return s, nil
}

// HealthAddr is where New opened the health port.
func (s *Server) HealthAddr() net.Addr { return s.healthAt.Addr() }

// MetricsAddr is where New opened the metrics port.
func (s *Server) MetricsAddr() net.Addr { return s.httpAt.Addr() }

// Start serves until ctx ends, then drains. It returns an error only if a port of its own fails.
func (s *Server) Start(ctx context.Context) error {
	log, drain := s.options.Log, s.options.Drain
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	background, stopBackground := context.WithCancel(context.WithoutCancel(ctx))
	defer stopBackground()
	failures := make(chan error, 4) // one for each run
	var wg sync.WaitGroup
	run := func(what string, f func() error) {
		wg.Go(func() {
			if err := f(); err != nil {
				failures <- fmt.Errorf("%s: %w", what, err)
				cancel()
			}
		})
	}

	healthServer := grpc.NewServer(limits()...)
	healthv1.RegisterHealthServer(healthServer, s.health.service(background))
	httpServer := s.httpServer()
	run("health", func() error { return healthServer.Serve(s.healthAt) })
	run("metrics", func() error {
		if err := httpServer.Serve(s.httpAt); !errors.Is(err, http.ErrServerClosed) {
			return err
		}
		return nil
	})
	run("certificate", func() error { return s.certs.watch(background) })
	peerServer := s.peerServer()
	if s.peersAt != nil {
		run("peers", func() error { return peerServer.Serve(s.secured(s.peersAt)) })
	}
	log.Info("Serving health and metrics", "health", s.HealthAddr().String(), "metrics", s.MetricsAddr().String())

	s.pools.follow(ctx, s.published)

	s.health.drain()
	var failure error
	select {
	case failure = <-failures:
		log.Info("Draining, because of a failure", "timeout", drain.Timeout.String())
	default:
		log.Info("Draining", "delay", drain.Delay.String(), "timeout", drain.Timeout.String())
		time.Sleep(drain.Delay)
	}
	s.pools.stop()
	stopBackground()
	healthServer.Stop()
	peerServer.Stop()      // not before the last request has ended
	_ = httpServer.Close() // its listener is all that could fail to close, and the process is ending
	wg.Wait()
	log.Info("Stopped")
	return failure
}

// peerServer is what other replicas listen to.
func (s *Server) peerServer() *grpc.Server {
	server := grpc.NewServer(append(limits(), s.options.Peers.Options...)...)
	if s.peersAt != nil {
		s.options.Peers.Register(server)
	}
	return server
}

// secured is a socket that speaks TLS, if the server does.
func (s *Server) secured(socket net.Listener) net.Listener {
	if s.certs.config == nil {
		return socket
	}
	return tls.NewListener(socket, s.certs.config)
}
