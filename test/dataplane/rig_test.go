// Package dataplane tests Homing where it works: the real binary behind a real Envoy with the
// configuration that config/envoy ships, real HTTP on both sides, and model servers whose behaviour
// each test scripts.
//
// Its tests wait for what they expect and never for a time, so a busy machine makes them slower and
// not wrong. Where a test must see single messages, Homing's own service runs in the test's process.
package dataplane

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"

	"github.com/homing-dev/homing/test/env"
)

// patience is how long a test waits for what must come.
const patience = 60 * time.Second

func TestMain(m *testing.M) { env.Main(m) }

// setup says what a rig is made of. The zero setup is three echoing backends under the default policy.
type setup struct {
	backends int                   // 0 for 3
	serve    http.HandlerFunc      // what every backend does; nil for echo
	policy   env.Policy            // of the pool; the zero Policy writes none
	homing   []string              // more flags of homing
	envoy    func(env.EnvoyConfig) // changes to the shipped configuration
	tls      bool                  // between Envoy and Homing
	workers  int                   // of Envoy; 0 for 2
	plain    bool                  // a second listener of Envoy's, without the picker
}

// rig is one pool behind one Envoy, with Homing as its picker.
type rig struct {
	t        testing.TB
	env      *env.Env
	files    *env.Files
	homing   *env.Homing
	envoy    *env.Envoy
	pool     env.Pool
	backends []*backend
	client   *http.Client // HTTP/1.1
	h2       *http.Client // HTTP/2 with prior knowledge
	flags    []string     // of homing, as it was started last
}

func newRig(t testing.TB, s setup) *rig {
	t.Helper()
	r := &rig{t: t, env: env.For(t), client: httpClient(t, false), h2: httpClient(t, true)}
	if s.backends == 0 {
		s.backends = 3
	}
	if s.serve == nil {
		s.serve = echo
	}
	r.pool = env.Pool{Name: "pool", Port: env.Port(t)}
	for i := range s.backends {
		r.backends = append(r.backends, startBackend(t, i, s.serve))
		r.pool.Endpoints = append(r.pool.Endpoints, r.backends[i].addr)
	}
	var err error
	r.files, err = r.env.Files()
	r.check(err)
	r.check(r.files.WritePool(r.pool))
	if s.policy != (env.Policy{}) {
		r.check(r.files.WritePolicy(r.pool.Name, s.policy))
	}
	r.startHoming(s)
	r.envoy, err = r.env.Envoy(t.Context(), env.EnvoyOptions{
		Picker: fmt.Sprintf("127.0.0.1:%d", r.pool.Port), PickerTLS: s.tls, Plain: s.plain,
		Endpoints: r.pool.Endpoints, Edit: s.envoy, Concurrency: s.workers,
	})
	env.Check(t, err)
	return r
}

// in is the rig for a subtest.
func (r *rig) in(t testing.TB) *rig {
	c := *r
	c.t = t
	return &c
}

func (r *rig) startHoming(s setup) {
	r.t.Helper()
	args := s.homing
	if s.tls {
		args = append([]string{"--secure-serving=true"}, args...)
	}
	r.flags = s.homing
	var err error
	r.homing, err = r.env.Homing(r.t.Context(), r.files, args...)
	env.Check(r.t, err)
}

func (r *rig) check(err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatal(err)
	}
}

// endpoint is the name of the endpoint at an address, as metrics carry it.
func (r *rig) endpoint(addr string) string {
	r.t.Helper()
	i := slices.Index(r.pool.Endpoints, addr)
	if i < 0 {
		r.t.Fatalf("no endpoint at %q", addr)
	}
	return fmt.Sprintf("%s-%d", r.pool.Name, i)
}

// httpClient is a client that keeps to one version of HTTP and, unlike the default one, adds no header
// that changes the answer's encoding.
func httpClient(t testing.TB, h2 bool) *http.Client {
	transport := &http.Transport{Protocols: &http.Protocols{}, DisableCompression: true, MaxIdleConnsPerHost: 100}
	transport.Protocols.SetHTTP1(!h2)
	transport.Protocols.SetUnencryptedHTTP2(h2)
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

// eventually waits until check says nil, and fails the test with its last error when it never does.
func eventually(t testing.TB, what string, check func() error) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(deadline) || t.Context().Err() != nil {
			t.Fatalf("%s: %v", what, err)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// await receives from a channel, or fails the test.
func await[T any](t testing.TB, what string, ch <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-ch:
	case <-time.After(patience):
		t.Fatalf("waited in vain for %s", what)
	}
	return v
}

// metrics reads Homing's metrics.
func (r *rig) metrics() env.Metrics {
	r.t.Helper()
	m, err := r.homing.Metrics(context.WithoutCancel(r.t.Context()))
	if err != nil {
		r.t.Fatal(err)
	}
	return m
}

// want waits until a metric, summed over the series with these labels, is n.
func (r *rig) want(n float64, name string, labels ...string) {
	r.t.Helper()
	eventually(r.t, fmt.Sprint(name, labels), func() error {
		m := r.metrics()
		if got := m.Sum(name, labels...); got != n {
			return fmt.Errorf("is %v, want %v; series: %v", got, n, nonzero(m[name]))
		}
		return nil
	})
}

// nonzero is the series of a metric that are not 0, for a failure's message.
func nonzero(m *dto.MetricFamily) (series []string) {
	for _, one := range m.GetMetric() {
		if one.GetCounter().GetValue() != 0 || one.GetGauge().GetValue() != 0 {
			series = append(series, one.String())
		}
	}
	return series
}

// wantStreams waits until n streams have ended in this way.
func (r *rig) wantStreams(n float64, labels ...string) {
	r.t.Helper()
	r.want(n, "homing_streams_total", labels...)
}

// settles waits until nothing is in flight and every pick was released, and says how many picks there
// were. It fails at once if more was released than picked.
func (r *rig) settles() (picks float64) {
	r.t.Helper()
	eventually(r.t, "in-flight counts", func() error {
		m := r.metrics()
		picks = m.Sum("homing_picks_total")
		releases := m.Sum("homing_releases_total")
		if releases > picks {
			r.t.Fatalf("%v releases of %v picks", releases, picks)
		}
		for _, series := range m["homing_in_flight_requests"].GetMetric() {
			if series.GetGauge().GetValue() < 0 {
				r.t.Fatalf("in flight below zero: %v", series)
			}
		}
		if n := m.Sum("homing_in_flight_requests"); n != 0 || picks != releases {
			return fmt.Errorf("%v in flight, %v picks, %v releases", n, picks, releases)
		}
		return nil
	})
	return picks
}

// wantStreaming waits until n responses have begun to reach their clients, and nothing else is in flight.
func (r *rig) wantStreaming(n float64) {
	r.t.Helper()
	r.want(n, "homing_in_flight_requests")
	eventually(r.t, "responses that have begun", func() error {
		if got := r.envoyStat("envoy_http_downstream_rq_xx", "envoy_response_code_class", "2", "envoy_http_conn_manager_prefix", "inference"); got < n {
			return fmt.Errorf("%v, want %v", got, n)
		}
		return nil
	})
}

// envoyStat is one of Envoy's own metrics.
func (r *rig) envoyStat(name string, labels ...string) float64 {
	r.t.Helper()
	m, err := env.Scrape(context.WithoutCancel(r.t.Context()), r.envoy.Admin+"/stats/prometheus")
	if err != nil {
		r.t.Fatal(err)
	}
	return m.Sum(name, labels...)
}

// residentBytes is the memory that a process holds, and false where the system does not say.
func residentBytes(t testing.TB, pid int) (int64, bool) {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if errors.Is(err, os.ErrNotExist) {
		return 0, false
	}
	if err != nil {
		t.Fatal(err)
	}
	var size, resident int64
	if _, err := fmt.Sscan(string(text), &size, &resident); err != nil {
		t.Fatal(err)
	}
	return resident * int64(os.Getpagesize()), true
}
