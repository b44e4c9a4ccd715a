package server

import (
	"context"
	"fmt"
	"sync"

	grpchealth "google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
)

// liveness is the one service that stays SERVING while the process drains: restarting it would cut the
// streams that the drain is for.
const liveness = "liveness"

// readinessServices are the names by which gateways and kubelets ask whether to send requests. They are
// those of the reference picker, and of Envoy's service itself.
func readinessServices() []string {
	return []string{"", "readiness", "inference-extension", "envoy.service.ext_proc.v3.ExternalProcessor"}
}

// health is what the process says of itself. It is ready from the first time that all is well until it
// drains.
type health struct {
	server *grpchealth.Server

	mu       sync.Mutex
	ready    bool   // guarded by mu
	draining bool   // guarded by mu
	why      string // guarded by mu; why it is not ready
}

func newHealth() *health {
	h := &health{server: grpchealth.NewServer(), why: "waiting for the first snapshot of pools"}
	h.server.SetServingStatus(liveness, healthv1.HealthCheckResponse_SERVING)
	h.set(healthv1.HealthCheckResponse_NOT_SERVING)
	return h
}

func (h *health) set(status healthv1.HealthCheckResponse_ServingStatus) {
	for _, name := range readinessServices() {
		h.server.SetServingStatus(name, status)
	}
}

// update takes note of the ports that cannot be had.
func (h *health) update(refused map[listenerKey]error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.ready || h.draining {
		return
	}
	for key, err := range refused {
		h.why = fmt.Sprintf("pool %s: %v", key.pool, err)
		return
	}
	h.ready, h.why = true, ""
	h.set(healthv1.HealthCheckResponse_SERVING)
}

// drain says NOT_SERVING from now on.
func (h *health) drain() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ready, h.draining, h.why = false, true, "draining"
	h.set(healthv1.HealthCheckResponse_NOT_SERVING)
}

// notReady says why requests should not be sent here, "" when they may.
func (h *health) notReady() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.why
}

// service answers for one gRPC server. Its watches end with ctx: they would hold a graceful stop for as
// long as the client likes.
func (h *health) service(ctx context.Context) healthv1.HealthServer {
	return &healthService{h.server, ctx}
}

type healthService struct {
	*grpchealth.Server
	ctx context.Context //nolint:containedctx // it is the life of the server, not of a call
}

func (s *healthService) Watch(req *healthv1.HealthCheckRequest, stream healthv1.Health_WatchServer) error {
	ctx, cancel := context.WithCancel(stream.Context())
	defer cancel()
	defer context.AfterFunc(s.ctx, cancel)()
	return s.Server.Watch(req, &watchStream{stream, ctx})
}

type watchStream struct {
	healthv1.Health_WatchServer
	ctx context.Context //nolint:containedctx // a stream carries its context
}

func (s *watchStream) Context() context.Context { return s.ctx }
