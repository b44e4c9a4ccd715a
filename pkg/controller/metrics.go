package controller

import "github.com/prometheus/client_golang/prometheus"

// metrics are the controller's, described in docs/metrics.md.
type metrics struct {
	publication prometheus.Histogram
	sources     *prometheus.GaugeVec
	leader      prometheus.Gauge
}

func newMetrics(reg prometheus.Registerer) *metrics {
	m := &metrics{
		publication: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "homing_publication_seconds",
			Help:    "From a change's arrival to the publication of the snapshot that has it; of several changes, from the first.",
			Buckets: prometheus.ExponentialBuckets(100e-6, 2.5, 10),
		}),
		sources: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "homing_watch_up",
			Help: "Whether a resource of the API server is being followed: 1, or 0 while it cannot be.",
		}, []string{"resource"}),
		leader: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "homing_leader",
			Help: "Whether this replica writes the policies' status: 1 or 0. Every replica serves.",
		}),
	}
	reg.MustRegister(m.publication, m.sources, m.leader)
	return m
}

func (m *metrics) watching(resource string, up bool) {
	m.sources.WithLabelValues(resource).Set(number(up))
}

func (m *metrics) leading(leads bool) { m.leader.Set(number(leads)) }

func number(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
