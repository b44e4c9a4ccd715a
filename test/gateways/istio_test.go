package gateways

import (
	"testing"

	"github.com/homing-dev/homing/test/env"
)

func TestIstio(t *testing.T) {
	d := startCluster(t)
	istio := StartIstio(t, d.Cluster)
	d.ApplyFiles(t, File("istio/gateway.yaml"))
	g := istio.StartEnvoy(t, "demo", "gw")
	t.Run("plaintext", func(t *testing.T) {
		startHoming(t, env.For(t), d.models)
		followsPicks(t, g, d.models)
	})
	t.Run("TLS", func(t *testing.T) {
		startHoming(t, env.For(t), d.models, "--secure-serving=true")
		d.ApplyFiles(t, File("istio/homing-tls.yaml"))
		followsPicks(t, g, d.models)
	})
}
