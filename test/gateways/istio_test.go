package gateways

import "testing"

func TestIstio(t *testing.T) {
	d := startCluster(t)
	startHoming(t, d.env, d.models)
	istio := StartIstio(t, d.Cluster)
	d.ApplyFiles(t, File("istio/gateway.yaml"))
	g := istio.StartEnvoy(t, "demo", "gw")
	followsPicks(t, g, d.models)
}
