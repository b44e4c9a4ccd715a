package peer

import "github.com/prometheus/client_golang/prometheus"

// metrics are what is exposed of the replicas; docs/metrics.md describes them.
type metrics struct {
	heard, unheard, listening prometheus.Gauge
	sent, received            prometheus.Counter
	dropped                   struct{ slow, unknown, invalid prometheus.Counter }
}

func newMetrics(reg prometheus.Registerer, oldest func() (float64, bool)) *metrics {
	gauge := func(name, help string) prometheus.Gauge {
		g := prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: help})
		reg.MustRegister(g)
		return g
	}
	counter := func(name, help, label string) *prometheus.CounterVec {
		c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, []string{label})
		reg.MustRegister(c)
		return c
	}
	m := &metrics{
		heard:     gauge("homing_peers_heard", "Other replicas that tell this one their load and placements."),
		unheard:   gauge("homing_peers_unheard", "Other replicas that pick, as far as is known, and are not heard of."),
		listening: gauge("homing_peers_listening", "Other replicas that listen to this one."),
	}
	messages := counter("homing_peer_messages_total", "Messages between replicas.", "direction")
	m.sent, m.received = messages.WithLabelValues("sent"), messages.WithLabelValues("received")
	dropped := counter("homing_peer_dropped_total", "Messages between replicas, or parts of them, that were dropped.", "reason")
	m.dropped.slow = dropped.WithLabelValues("slow_listener")
	m.dropped.unknown = dropped.WithLabelValues("unknown_pool")
	m.dropped.invalid = dropped.WithLabelValues("invalid")
	reg.MustRegister(age{oldest, prometheus.NewDesc("homing_peer_message_age_seconds",
		"How long ago the replica was heard of that is the longest silent; absent if none is heard.", nil, nil)})
	return m
}

// age is a gauge that is absent where there is nothing to tell.
type age struct {
	oldest func() (seconds float64, heard bool)
	desc   *prometheus.Desc
}

// Describe implements [prometheus.Collector].
func (a age) Describe(to chan<- *prometheus.Desc) { to <- a.desc }

// Collect implements [prometheus.Collector].
func (a age) Collect(to chan<- prometheus.Metric) {
	if seconds, heard := a.oldest(); heard {
		to <- prometheus.MustNewConstMetric(a.desc, prometheus.GaugeValue, seconds)
	}
}
