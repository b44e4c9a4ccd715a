package server

import (
	"errors"
	"net"
	"strings"
	"syscall"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/homing-dev/homing/pkg/endpoint"
)

// Other replicas are served, as securely as gateways, for as long as a request is under way, and hold up nothing.
func TestPeersAreServedToTheLastRequest(t *testing.T) {
	at := freePort(t)
	h := start(t, func(o *Options) {
		o.TLS = TLSOptions{}
		o.Peers = PeerOptions{
			Port:     int(at),
			Register: func(r grpc.ServiceRegistrar) { echo(t.Context(), endpoint.PoolName{Name: "peers"}, r) },
			Options:  []grpc.ServerOption{grpc.MaxConcurrentStreams(10)},
		}
	})
	port := freePort(t)
	h.serve(map[string]uint16{"a": port})
	secured := func() grpc.DialOption {
		return grpc.WithTransportCredentials(credentials.NewTLS(anyCertificate("any.name")))
	}
	request := openStream(t, dial(t, local(port), secured()))
	mustAnswer(t, request, "a")
	listening := openStream(t, dial(t, local(at), secured()))
	mustAnswer(t, listening, "peers")

	h.stop()
	h.eventually("the pool's port stays open", func() bool {
		c, err := net.Dial("tcp", local(port))
		if err == nil {
			_ = c.Close()
		}
		return err != nil
	})
	mustAnswer(t, listening, "peers")
	mustAnswer(t, openStream(t, dial(t, local(at), secured())), "peers")
	mustAnswer(t, request, "a")
	if err := request.CloseSend(); err != nil {
		t.Error(err)
	}
	if err := h.wait(); err != nil {
		t.Error(err)
	}
}

func TestThePeersPortIsTaken(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	h := start(t, nil)
	o := h.options
	o.HealthPort, o.MetricsPort, o.Peers.Port = 0, 0, taken.Addr().(*net.TCPAddr).Port
	if _, err := New(o); !errors.Is(err, syscall.EADDRINUSE) || !strings.HasPrefix(err.Error(), "peers: ") {
		t.Errorf("got %v", err)
	}
}
