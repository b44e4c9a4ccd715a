package extproc

import (
	"fmt"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/homing-dev/homing/pkg/endpoint"
	"github.com/homing-dev/homing/pkg/picker"
	"github.com/homing-dev/homing/pkg/prompt"
)

// Metrics are the metrics of all pools, described in docs/metrics.md. Series of endpoints and pools
// that the store's snapshot does not have are not exposed.
type Metrics struct {
	store *endpoint.Store

	picks, releases, streams, bodies, refusals *prometheus.CounterVec
	servedElsewhere, closedEarly, withoutBody  *prometheus.CounterVec
	sinceFirst, sinceKey                       *prometheus.HistogramVec
	inFlight                                   *prometheus.Desc
	vecs                                       []vec

	mu    sync.Mutex                     // makes resolving and deleting series exclude each other
	pools map[endpoint.PoolName]struct{} // guarded by mu; those with series
}

// vec is what counters and histograms have in common.
type vec interface {
	prometheus.Collector
	DeletePartialMatch(labels prometheus.Labels) int
}

// poolLabels name a pool. They have a prefix because scrapes put a "namespace" of their own on series.
var poolLabels = []string{"pool_namespace", "pool_name"}

// NewMetrics registers the metrics of all pools.
func NewMetrics(reg prometheus.Registerer, store *endpoint.Store) *Metrics {
	m := &Metrics{store: store, pools: map[endpoint.PoolName]struct{}{}}
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		v := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, append(poolLabels[:2:2], labels...))
		m.vecs = append(m.vecs, v)
		return v
	}
	histogram := func(name, help string, buckets []float64) *prometheus.HistogramVec {
		v := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}, poolLabels)
		m.vecs = append(m.vecs, v)
		return v
	}
	m.picks = counter("homing_picks_total", "Requests that got an endpoint, by the strategy that picked it and why it was that one.", "strategy", "outcome")
	m.releases = counter("homing_releases_total", "Picked requests that have ended. Equals the picks when nothing is in flight.")
	m.streams = counter("homing_streams_total", "ext_proc streams that have ended, by how and by how far the request had come.", "end", "phase")
	m.bodies = counter("homing_bodies_total", "Request bodies read for a prefix key, by dialect and, if raw, why.", "dialect", "raw_reason")
	m.refusals = counter("homing_immediate_responses_total", "Requests answered with an error instead of an endpoint.", "reason")
	m.servedElsewhere = counter("homing_served_elsewhere_total", "Requests that another endpoint than the picked one served, as the gateway tells.")
	m.closedEarly = counter("homing_streams_closed_early_total", "Streams that the gateway closed before the response ended.", "at")
	m.withoutBody = counter("homing_picks_without_body_total", "Requests picked without the body that their key would come from.")
	m.sinceFirst = histogram("homing_decision_seconds", "From a stream's first message to the answer that names the endpoint; waits for the client's body.",
		prometheus.ExponentialBuckets(50e-6, 4, 10))
	m.sinceKey = histogram("homing_pick_seconds", "From the message that completed the key to the answer that names the endpoint.",
		prometheus.ExponentialBuckets(5e-6, 2, 14))
	m.inFlight = prometheus.NewDesc("homing_in_flight_requests", "Requests picked for an endpoint and not yet ended.",
		append(poolLabels[:2:2], "endpoint", "port"), nil)
	reg.MustRegister(m)
	return m
}

// Describe implements prometheus.Collector.
func (m *Metrics) Describe(ch chan<- *prometheus.Desc) {
	for _, v := range m.vecs {
		v.Describe(ch)
	}
	ch <- m.inFlight
}

// Collect implements prometheus.Collector.
func (m *Metrics) Collect(ch chan<- prometheus.Metric) {
	m.deleteRemoved()
	for _, v := range m.vecs {
		v.Collect(ch)
	}
	for pool := range m.store.Snapshot().Pools {
		m.collectInFlight(ch, pool)
	}
}

func (m *Metrics) collectInFlight(ch chan<- prometheus.Metric, pool *endpoint.Pool) {
	type series struct {
		name string
		port uint16
	}
	// A pod and its successor of the same name may both be there; two equal series may not.
	sums := make(map[series]int64, len(pool.Endpoints))
	for _, e := range pool.Endpoints {
		sums[series{e.Name, e.ID.Port}] += e.Load.InFlight()
	}
	for s, n := range sums {
		ch <- prometheus.MustNewConstMetric(m.inFlight, prometheus.GaugeValue, float64(n),
			pool.Name.Namespace, pool.Name.Name, s.name, fmt.Sprint(s.port))
	}
}

// deleteRemoved deletes the series of pools that are gone. The snapshot is read under the lock: a pool
// that was resolved before is then in it, or gone for good.
func (m *Metrics) deleteRemoved() {
	m.mu.Lock()
	defer m.mu.Unlock()
	snapshot := m.store.Snapshot()
	for name := range m.pools {
		if snapshot.Pool(name) != nil {
			continue
		}
		delete(m.pools, name)
		for _, v := range m.vecs {
			v.DeletePartialMatch(labelsOf(name))
		}
	}
}

func labelsOf(name endpoint.PoolName) prometheus.Labels {
	return prometheus.Labels{poolLabels[0]: name.Namespace, poolLabels[1]: name.Name}
}

// poolMetrics are one pool's series, looked up once for each version of the pool.
type poolMetrics struct {
	pool *endpoint.Pool // nil for a pool that the snapshot does not have

	picks           []prometheus.Counter // by picker.Outcome
	releases        prometheus.Counter
	streams         [len(endNames)][len(phaseNames)]prometheus.Counter
	refusals        []prometheus.Counter // by row of the refusals table
	dialects        []prometheus.Counter // bodies read in their dialect, by prompt.Dialect
	raw             []prometheus.Counter // bodies read as raw, by prompt.RawReason
	servedElsewhere prometheus.Counter
	earlyAtRequest  prometheus.Counter
	earlyAtResponse prometheus.Counter
	withoutBody     prometheus.Counter
	sinceFirst      prometheus.Observer
	sinceKey        prometheus.Observer
}

var (
	endNames   = [...]string{"eof", "canceled", "refused", "drained", "failed", "panic"}
	phaseNames = [...]string{"start", "request", "local_reply", "picked", "response", "done"}
)

// resolve finds the series of a pool; pool is nil when the snapshot does not have it.
func (m *Metrics) resolve(name endpoint.PoolName, pool *endpoint.Pool) *poolMetrics {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.pools[name] = struct{}{}
	labels := labelsOf(name)
	of := func(v *prometheus.CounterVec, values ...string) prometheus.Counter {
		return v.MustCurryWith(labels).WithLabelValues(values...)
	}
	p := &poolMetrics{
		pool:            pool,
		releases:        of(m.releases),
		servedElsewhere: of(m.servedElsewhere),
		earlyAtRequest:  of(m.closedEarly, "request"),
		earlyAtResponse: of(m.closedEarly, "response_headers"),
		withoutBody:     of(m.withoutBody),
		sinceFirst:      m.sinceFirst.With(labels),
		sinceKey:        m.sinceKey.With(labels),
		dialects:        make([]prometheus.Counter, len(prompt.Dialects())),
		raw:             make([]prometheus.Counter, 1+len(prompt.RawReasons())),
	}
	for e, end := range endNames {
		for i, phase := range phaseNames {
			p.streams[e][i] = of(m.streams, end, phase)
		}
	}
	for i := range refusals {
		p.refusals = append(p.refusals, of(m.refusals, refusals[i].reason))
	}
	for _, d := range prompt.Dialects() {
		if d != prompt.Raw {
			p.dialects[d] = of(m.bodies, d.String(), prompt.NotRaw.String())
		}
	}
	for _, r := range prompt.RawReasons() {
		p.raw[r] = of(m.bodies, prompt.Raw.String(), r.String())
	}
	if pool != nil {
		for _, o := range picker.Outcomes() {
			p.picks = append(p.picks, of(m.picks, pool.Policy.Strategy.String(), o.String()))
		}
	}
	return p
}

// body counts a request body that was read.
func (p *poolMetrics) body(r *prompt.Prompt) {
	if r.RawReason == prompt.NotRaw {
		p.dialects[r.Dialect].Inc()
	} else {
		p.raw[r.RawReason].Inc()
	}
}
