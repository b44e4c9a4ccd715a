package kubelet

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/homing-dev/homing/test/env"
)

// probe asks the readiness probe of a pod's first container, by gRPC or HTTP. Without one it is ready.
func probe(ctx context.Context, p *corev1.Pod) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	address := func(port int32) string { return net.JoinHostPort(p.Status.PodIP, strconv.Itoa(int(port))) }
	switch probe := p.Spec.Containers[0].ReadinessProbe; {
	case probe == nil:
		return nil
	case probe.GRPC != nil:
		service := ""
		if probe.GRPC.Service != nil {
			service = *probe.GRPC.Service
		}
		return serving(ctx, address(probe.GRPC.Port), service)
	case probe.HTTPGet != nil:
		return env.Answers200(http.DefaultClient, "http://"+address(probe.HTTPGet.Port.IntVal)+probe.HTTPGet.Path)(ctx)
	default:
		return fmt.Errorf("no probe of this kind is played: %v", probe)
	}
}

// serving says nil if a gRPC health service says SERVING.
func serving(ctx context.Context, address, service string) error {
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer conn.Close()
	answer, err := healthpb.NewHealthClient(conn).Check(ctx, &healthpb.HealthCheckRequest{Service: service})
	if err != nil {
		return err
	}
	if answer.Status != healthpb.HealthCheckResponse_SERVING {
		return fmt.Errorf("%s says %s", address, answer.Status)
	}
	return nil
}
