package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"sync"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"k8s.io/klog/v2"
	runtimelog "sigs.k8s.io/controller-runtime/pkg/log"
	runtimemetrics "sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/homing-dev/homing/pkg/endpoint"
	"github.com/homing-dev/homing/pkg/extproc"
	"github.com/homing-dev/homing/pkg/peer"
	"github.com/homing-dev/homing/pkg/picker"
	"github.com/homing-dev/homing/pkg/server"
	"github.com/homing-dev/homing/pkg/standalone"
)

func newServeCommand() *cobra.Command {
	var f flags
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Pick endpoints for gateways",
		Long: `Pick endpoints for gateways: one ext_proc port for each InferencePool, the one its endpointPickerRef
names. Ports open and close as pools come and go, and a changed policy applies to the next request.

On SIGTERM or Ctrl-C, health says NOT_SERVING, and it stops as soon as gateways can do without it: when
requests are uploaded, and responses that pass through it have ended. A second signal stops it at once.`,
		Example: `  # In a pod: the InferencePools of its namespace that name the Service homing as their endpoint picker.
  homing serve

  # The same from outside of the cluster.
  homing serve --kubeconfig ~/.kube/config --namespace inference --leader-elect=false

  # Pools from files, for a gateway on this machine that speaks plaintext.
  homing serve --standalone config/samples/standalone --secure-serving=false --bind-address 127.0.0.1

  # TLS with a certificate that is renewed in place.
  homing serve --standalone /etc/homing/pools --cert-path /etc/homing/tls

  # Is it ready? (also by gRPC health on port 9003)
  curl -s localhost:9090/readyz`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := f.check(); err != nil {
				return err
			}
			return serve(cmd.Context(), &f, newLog(cmd.ErrOrStderr(), f.verbosity))
		},
	}
	f.register(cmd.Flags())
	return cmd
}

func newLog(to io.Writer, verbosity int) logr.Logger {
	log := logr.FromSlogHandler(slog.NewJSONHandler(to, &slog.HandlerOptions{Level: slog.Level(-verbosity)}))
	runtimelog.SetLogger(log)
	klog.SetLogger(log)
	return log
}

// source publishes snapshots to the store until its context ends.
type source interface{ Start(context.Context) error }

// waiter is a source whose first snapshot may be long in coming.
type waiter interface{ Waiting() error }

// serve wires a source of pools to a server of them.
func serve(ctx context.Context, f *flags, log logr.Logger) error {
	registry := newRegistry()
	store := endpoint.NewStore()
	peers := newPeers(f, store, registry, log)
	pools, err := newSource(f, store, registry, peers, log)
	if err != nil {
		return err
	}
	var waiting func() error
	if w, may := pools.(waiter); may {
		waiting = w.Waiting
	}
	srv, err := server.New(server.Options{
		Store: store, Register: services(store, registry, peers, f, log),
		BindAddress: f.address, HealthPort: f.healthPort, MetricsPort: f.metricsPort,
		TLS:        server.TLSOptions{Plaintext: !f.secure, CertPath: f.certPath},
		Drain:      f.drain,
		Peers:      peerOptions(f, peers),
		Registerer: registry,
		// controller-runtime's metrics, and Go's, are in a registry of its own.
		Gatherer:  prometheus.Gatherers{registry, runtimemetrics.Registry},
		Waiting:   waiting,
		Profiling: f.pprof,
		Log:       log,
	})
	if errors.Is(err, syscall.EADDRINUSE) {
		return fmt.Errorf("%w; free the port, or choose others with --grpc-health-port, --metrics-port and --peer-port", err)
	}
	if err != nil {
		return err
	}
	return runAll(ctx, srv, pools, peers)
}

// runAll runs the source, and the peers if there are any, for as long as the server: a draining server still hears
// of pools, and tells what it has under way.
func runAll(ctx context.Context, srv *server.Server, pools source, peers *peer.Peers) error {
	serving, stopServing := context.WithCancel(ctx)
	following, stopFollowing := context.WithCancel(context.WithoutCancel(ctx))
	ended := make(chan error, 1)
	go func() {
		ended <- pools.Start(following)
		stopServing()
	}()
	var sharing sync.WaitGroup
	if peers != nil {
		sharing.Go(func() { peers.Start(following) })
	}
	err := srv.Start(serving)
	stopFollowing()
	sharing.Wait()
	return errors.Join(err, <-ended)
}

// newSource is where the pools come from.
func newSource(f *flags, store *endpoint.Store, registry prometheus.Registerer, peers *peer.Peers, log logr.Logger) (source, error) {
	if f.standalone == "" {
		return newController(f, store, registry, peers, log)
	}
	return standalone.New(standalone.Options{
		Dir: f.standalone, Store: store, Registerer: registry, Log: log,
		Defaults: standalone.Defaults{Policy: f.defaults, RefusePort: f.refusePort},
	})
}

// services makes the ext_proc service of a pool, each with a picker of its own. They share one set of metrics.
func services(store *endpoint.Store, registry prometheus.Registerer, peers *peer.Peers, f *flags, log logr.Logger) func(context.Context, endpoint.PoolName, grpc.ServiceRegistrar) {
	metrics := extproc.NewMetrics(registry, store)
	tuning := picker.DefaultTuning()
	tuning.Others = f.replicas - 1
	began := time.Now()
	return func(ctx context.Context, pool endpoint.PoolName, r grpc.ServiceRegistrar) {
		choose := picker.NewTuned(rand.Uint64, tuning)
		service := extproc.New(extproc.Options{
			Pool: pool, Store: store, Picker: choose, Metrics: metrics,
			MaxInspectBytes: f.maxInspectBytes, Log: log, Began: began,
		})
		if peers != nil {
			peers.Serve(ctx, pool, choose, service.Clock)
		}
		service.Register(r)
		context.AfterFunc(ctx, service.Drain)
	}
}

// newRegistry is the registry of Homing's own metrics. Go's and the process's go where
// controller-runtime puts them too.
func newRegistry() *prometheus.Registry {
	for _, c := range []prometheus.Collector{collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{})} {
		_ = runtimemetrics.Registry.Register(c) // already there is as good
	}
	registry := prometheus.NewRegistry()
	thisBuild().register(registry)
	return registry
}
