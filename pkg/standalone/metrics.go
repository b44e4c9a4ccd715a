package standalone

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics tell whether the files that lie there are the configuration that is served.
type metrics struct {
	errors      prometheus.Gauge
	lastSuccess prometheus.Gauge
	reloads     *prometheus.CounterVec
}

func newMetrics(reg prometheus.Registerer) *metrics {
	m := &metrics{
		errors: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "homing_config_errors",
			Help: "Errors in the configuration files as last read; above 0, an older configuration is served.",
		}),
		lastSuccess: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "homing_config_last_reload_success_timestamp_seconds",
			Help: "When the configuration that is served was read, in seconds since 1970.",
		}),
		reloads: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "homing_config_reloads_total",
			Help: "Times that changed configuration files were read, by result.",
		}, []string{"result"}),
	}
	reg.MustRegister(m.errors, m.lastSuccess, m.reloads)
	return m
}

func (m *metrics) succeeded() {
	m.errors.Set(0)
	m.lastSuccess.SetToCurrentTime()
	m.reloads.WithLabelValues("success").Inc()
}

func (m *metrics) failed(err error) {
	n := 1
	if list := Errors(nil); errors.As(err, &list) {
		n = len(list)
	}
	m.errors.Set(float64(n))
	m.reloads.WithLabelValues("failure").Inc()
}
