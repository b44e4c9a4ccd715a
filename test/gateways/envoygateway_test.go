package gateways

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/homing-dev/homing/test/env"
)

func TestEnvoyGatewayFiles(t *testing.T) {
	g, resources := StartEnvoyGatewayFiles(t, File("envoygateway/standalone.yaml"))
	var models []string
	for _, ip := range []string{"127.0.0.2", "127.0.0.3", "127.0.0.4"} {
		models = append(models, serveModel(t, ip+":8000"))
	}
	startHoming(t, env.For(t), models)
	followsPicks(t, g, models)
	t.Run("patched", func(t *testing.T) {
		patch, err := os.ReadFile(File("envoygateway/patch.yaml"))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(resources, "patch.yaml"), patch, 0o600); err != nil {
			t.Fatal(err)
		}
		isPatched(t, g)
		followsPicks(t, g, models)
	})
}

func TestEnvoyGateway(t *testing.T) {
	d := startCluster(t)
	startHoming(t, env.For(t), d.models)
	eg := StartEnvoyGateway(t, d.Cluster)
	d.ApplyFiles(t, File("envoygateway/kubernetes.yaml"))
	g := eg.StartEnvoy(t, "demo", "gw")
	followsPicks(t, g, d.models)
	t.Run("patched", func(t *testing.T) {
		d.ApplyFiles(t, File("envoygateway/patch.yaml"))
		isPatched(t, g)
		followsPicks(t, g, d.models)
	})
}

// isPatched waits until Envoy's configuration is what envoygateway/patch.yaml says.
func isPatched(t *testing.T, g *Gateway) {
	t.Helper()
	env.Eventually(t, func(ctx context.Context) error {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, g.Admin+"/config_dump", nil)
		if err != nil {
			return err
		}
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			return err
		}
		defer res.Body.Close()
		dump, err := io.ReadAll(res.Body)
		if err != nil {
			return err
		}
		text := strings.Join(strings.Fields(string(dump)), " ")
		for _, want := range []string{`"response_trailer_mode": "SEND"`, `"selected_host_key": {`,
			`"override_host_sources": [ { "metadata": {`} {
			if !strings.Contains(text, want) {
				return fmt.Errorf("Envoy's configuration has no %s", want)
			}
		}
		return nil
	})
}
