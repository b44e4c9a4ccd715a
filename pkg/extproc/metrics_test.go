package extproc

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/homing-dev/homing/pkg/endpoint"
)

// poolsWithSeries is the names of the pools that have series.
func (g *gateway) poolsWithSeries() map[string]bool {
	families, err := g.reg.Gather()
	if err != nil {
		g.tb.Fatal(err)
	}
	names := map[string]bool{}
	for _, f := range families {
		for _, m := range f.Metric {
			for _, l := range m.Label {
				if l.GetName() == "pool_name" {
					names[l.GetValue()] = true
				}
			}
		}
	}
	return names
}

func TestSeriesOfRemovedPoolsAndEndpointsVanish(t *testing.T) {
	g := newGateway(t, withEndpoints("10.0.0.1:8000", "10.0.0.2:8000"))
	run := func() {
		c := g.open(fullDuplex, none)
		c.send(headers(true, ":path", "/v1/models"))
		if _, err := c.rpc.Recv(); err != nil {
			t.Fatal(err)
		}
		c.end()
	}
	pool := endpoint.PoolSpec{Name: llama, Policy: endpoint.DefaultPolicy(), Endpoints: specs("10.0.0.1:8000")}
	run()
	g.wantMetric(0, "homing_in_flight_requests", "vllm-0", "8000")
	if n := g.seriesOf("homing_in_flight_requests"); n != 2 {
		t.Errorf("%d in-flight series, want 2", n)
	}
	g.publish(pool)
	if n := g.seriesOf("homing_in_flight_requests"); n != 1 {
		t.Errorf("%d in-flight series when one of two endpoints is gone, want 1", n)
	}

	other := endpoint.PoolSpec{Name: endpoint.PoolName{Namespace: "inference", Name: "mistral"}, Policy: endpoint.DefaultPolicy()}
	g.service.Metrics.resolve(other.Name, g.store.Publish([]endpoint.PoolSpec{pool, other}).Pool(other.Name))
	if diff := cmp.Diff(map[string]bool{"llama": true, "mistral": true}, g.poolsWithSeries()); diff != "" {
		t.Errorf("pools with series (-want +got):\n%s", diff)
	}
	g.publish(other)
	if diff := cmp.Diff(map[string]bool{"mistral": true}, g.poolsWithSeries()); diff != "" {
		t.Errorf("pools with series (-want +got):\n%s", diff)
	}

	g.publish(pool) // a pool that comes back counts from zero, and is exposed
	run()
	g.wantMetric(1, "homing_picks_total", "llama")
	g.wantMetric(1, "homing_releases_total", "llama")
}

func (g *gateway) seriesOf(name string) int {
	families, err := g.reg.Gather()
	if err != nil {
		g.tb.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == name {
			return len(f.Metric)
		}
	}
	return 0
}

func TestAStrategyChangeAppliesToTheNextRequest(t *testing.T) {
	g := newGateway(t)
	for _, strategy := range []endpoint.Strategy{endpoint.PrefixAware, endpoint.Random} {
		policy := endpoint.DefaultPolicy()
		policy.Strategy = strategy
		g.publish(endpoint.PoolSpec{Name: llama, Policy: policy, Endpoints: specs("10.0.0.1:8000")})
		c := g.open(fullDuplex, none)
		c.send(headers(true, ":path", "/v1/models"))
		c.want("request headers: " + named)
		c.end()
		g.wantMetric(1, "homing_picks_total", strategy.String())
	}
}

func TestTwoPodsOfOneNameAreOneSeries(t *testing.T) {
	store := endpoint.NewStore()
	reg := prometheus.NewRegistry()
	NewMetrics(reg, store)
	twins := specs("10.0.0.1:8000", "10.0.0.2:8000")
	twins[1].Name = twins[0].Name
	pool := store.Publish([]endpoint.PoolSpec{{Name: llama, Endpoints: twins}}).Pool(llama)
	for _, e := range pool.Endpoints {
		e.Load.Add()
	}
	g := &gateway{tb: t, reg: reg}
	g.wantMetric(2, "homing_in_flight_requests", "vllm-0")
}

func TestBodiesAreCountedByDialect(t *testing.T) {
	g := newGateway(t)
	for path, content := range map[string]string{"/v1/chat/completions": chat, "/invocations": "anything"} {
		c := g.open(fullDuplex, none)
		c.send(post(path), body(content, true))
		if _, err := c.rpc.Recv(); err != nil {
			t.Fatal(err)
		}
		c.reset()
	}
	g.wantMetric(2, "homing_bodies_total")
	g.wantMetric(1, "homing_bodies_total", "chat")
	g.wantMetric(1, "homing_bodies_total", "raw")
}
