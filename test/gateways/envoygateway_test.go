package gateways

import (
	"testing"

	"github.com/homing-dev/homing/test/env"
)

func TestEnvoyGatewayFiles(t *testing.T) {
	skipShort(t)
	var models []string
	for _, ip := range []string{"127.0.0.2", "127.0.0.3", "127.0.0.4"} {
		models = append(models, serveModel(t, ip+":8000"))
	}
	startHoming(t, env.For(t), models)
	g, _ := StartEnvoyGatewayFiles(t, File("envoygateway/standalone.yaml"))
	followsPicks(t, g, models)
}

func TestEnvoyGateway(t *testing.T) {
	d := startCluster(t)
	startHoming(t, env.For(t), d.models)
	eg := StartEnvoyGateway(t, d.Cluster)
	d.ApplyFiles(t, File("envoygateway/kubernetes.yaml"))
	g := eg.StartEnvoy(t, "demo", "gw")
	followsPicks(t, g, d.models)
}
