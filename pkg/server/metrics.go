package server

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics are the listeners' metrics. The series of a pool that is gone are deleted.
type metrics struct{ listenerUp *prometheus.GaugeVec }

func newMetrics(reg prometheus.Registerer) *metrics {
	m := &metrics{listenerUp: prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "homing_listener_up",
		Help: "Whether the ext_proc port of a pool is open: 1, or 0 while it cannot be had.",
	}, []string{"pool_namespace", "pool_name", "port"})}
	reg.MustRegister(m.listenerUp)
	return m
}

func (m *metrics) up(key listenerKey, up bool) {
	value := 0.0
	if up {
		value = 1
	}
	m.listenerUp.WithLabelValues(key.pool.Namespace, key.pool.Name, strconv.Itoa(int(key.port))).Set(value)
}

func (m *metrics) forget(key listenerKey) {
	m.listenerUp.DeleteLabelValues(key.pool.Namespace, key.pool.Name, strconv.Itoa(int(key.port)))
}
