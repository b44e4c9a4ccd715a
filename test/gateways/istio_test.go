package gateways

import (
	"path/filepath"
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/homing-dev/homing/test/env"
)

func TestIstio(t *testing.T) {
	in := newInstall(t, "--set", "tls.mode=Plaintext")
	istio := StartIstio(t, in.Cluster)
	in.ApplyFiles(t, Config("istio/gateway.yaml"), Config("istio/limits.yaml"))
	g := istio.StartEnvoy(t, namespace, "inference-gateway")
	in.meet(t, g)
	g.has(t, map[string]int{`"max_outbound_control_frames":100000`: 2}) // a cluster for each pool's port
	t.Run("picks", in.followsPicks)
	t.Run("streams", in.countsStreams)
	t.Run("many", in.holdsMany)
	t.Run("aborts", in.releasesAborted)
	t.Run("second choice", func(t *testing.T) {
		in.fallbackHeader(t, true) // which Istio does not read; but the model servers tell
		in.takesSecondChoice(t, true)
		in.fallbackHeader(t, false)
	})
	t.Run("request trailers", in.doublesBody)
	t.Run("rollout of Homing", func(t *testing.T) { in.survives(t, true, in.restart) })
	t.Run("crash of Homing", func(t *testing.T) { in.survives(t, false, in.crash) })
	t.Run("without Homing", func(t *testing.T) { in.away(t, true) })
	t.Run("TLS", func(t *testing.T) {
		in.runHelm(t, "upgrade", "homing", filepath.Join(env.Root(), "charts/homing"), "--reuse-values", "--set", "tls.mode=SelfSigned")
		in.ApplyFiles(t, Config("istio/homing-tls.yaml"))
		in.replicas(t, 2)
		in.answers(t)
		in.followsPicks(t)
		in.countsStreams(t)
		in.releasesAborted(t)
	})
	// Of gateways that are not run here, the objects are at least such that an API server takes them.
	t.Run("other gateways' objects", func(t *testing.T) {
		dry := *in.Cluster
		dry.Client = client.NewDryRunClient(in.Client)
		dry.ApplyFiles(t, Config("agentgateway/gateway.yaml"), Config("envoy-ai-gateway/gateway.yaml"))
	})
}
