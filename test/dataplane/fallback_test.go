package dataplane

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/homing-dev/homing/test/env"
)

const endpointHeader = "X-Gateway-Destination-Endpoint"

// access waits for the nth line of the access log that is about a path.
func (r *rig) access(path string, n int) (a env.Access) {
	r.t.Helper()
	eventually(r.t, "the access log", func() error {
		log, err := r.envoy.AccessLog()
		if err != nil {
			r.t.Fatal(err)
		}
		log = slices.DeleteFunc(log, func(a env.Access) bool { return a.Path != path })
		if len(log) < n {
			return fmt.Errorf("%d lines about %s, want %d", len(log), path, n)
		}
		a = log[n-1]
		return nil
	})
	return a
}

// TestRetriesGoDownTheList closes model servers one by one. Each time the retry goes to the next
// endpoint that Homing named, and the request is counted there.
func TestRetriesGoDownTheList(t *testing.T) {
	var gate atomic.Pointer[gate]
	r := newRig(t, setup{serve: func(w http.ResponseWriter, r *http.Request) { gate.Load().stream(w, r) }})
	const path = "/v1/chat/completions"
	var order []string
	for dead := range 3 {
		if dead > 0 {
			r.backends[slices.Index(r.pool.Endpoints, order[dead-1])].close()
		}
		gate.Store(newGate())
		answered := start(r.client, request(t, r.envoy.URL+path, strings.NewReader(chat("retries", 2000))))
		served := await(t, "the request at a model server", gate.Load().arrived).addr
		r.want(1, "homing_in_flight_requests", "endpoint", r.endpoint(served))
		r.want(1, "homing_in_flight_requests")
		gate.Load().open()
		if got := await(t, "the response", answered); got.body != whole {
			t.Errorf("with %d dead: status %d %q, %v", dead, got.status, got.body, got.err)
		}
		a := r.access(path, dead+1)
		if dead == 0 {
			order = strings.Split(a.Picked, ",")
		}
		if a.Picked != strings.Join(order, ",") || a.Served != order[dead] || a.Served != served || a.Attempts != dead+1 {
			t.Errorf("with %d dead of %v: %s serves, the access log says %+v", dead, order, served, a)
		}
		r.want(float64(dead), "homing_served_elsewhere_total")
	}
	r.backends[slices.Index(r.pool.Endpoints, order[2])].close()
	if got := post(t, r.client, r.envoy.URL+path, chat("retries", 2000)); got.status != http.StatusServiceUnavailable {
		t.Errorf("with all dead: status %d, want Envoy's 503", got.status)
	}
	r.settles()
	r.said(1, "served a request at another endpoint")
}

// TestBusyServersAreLeft: a model server that answers 503 has not begun to work, so Envoy tries the
// next on the list.
func TestBusyServersAreLeft(t *testing.T) {
	r := newRig(t, setup{serve: func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-Busy") == self(r).addr {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		echo(w, r)
	}})
	body := chat("busy", 20_000)
	first := post(t, r.client, r.envoy.URL+"/v1/chat/completions", body)
	first.passed(t, body)
	order := strings.Split(r.access("/v1/chat/completions", 1).Picked, ",")
	req := request(t, r.envoy.URL+"/v1/chat/completions", strings.NewReader(body))
	req.Header.Set("X-Busy", order[0])
	got := send(t, r.client, req)
	got.passed(t, body)
	if got.Backend != order[1] {
		t.Errorf("served by %s; the list was %v", got.Backend, order)
	}
	r.settles()
}

// TestLongBodiesAreNotRetried: Envoy keeps no more of a body than its buffer, 1 MiB.
func TestLongBodiesAreNotRetried(t *testing.T) {
	r := newRig(t, setup{serve: func(w http.ResponseWriter, r *http.Request) {
		_, _ = take(r)
		w.WriteHeader(http.StatusServiceUnavailable)
	}})
	for path, want := range map[string]struct{ size, attempts int }{"/short": {500_000, 3}, "/long": {2 << 20, 1}} {
		got := post(t, r.client, r.envoy.URL+path, chat("retries", want.size))
		if a := r.access(path, 1); got.status != http.StatusServiceUnavailable || a.Attempts != want.attempts {
			t.Errorf("%d bytes: status %d after %d attempts, want 503 after %d", want.size, got.status, a.Attempts, want.attempts)
		}
	}
	r.settles()
}

// TestEndpointsThatEnvoyDoesNotKnow: Envoy serves them elsewhere without a word, so Homing says so.
func TestEndpointsThatEnvoyDoesNotKnow(t *testing.T) {
	gate := newGate()
	r := newRig(t, setup{serve: gate.stream, policy: env.Policy{Strategy: "LeastOutstandingRequests"}, envoy: func(c env.EnvoyConfig) {
		assignment := c.Cluster("pool")["load_assignment"].(map[string]any)
		locality := assignment["endpoints"].([]any)[0].(map[string]any)
		locality["lb_endpoints"] = locality["lb_endpoints"].([]any)[:1]
	}})
	known := r.pool.Endpoints[0]
	// The first may be picked for the endpoint that Envoy knows. It serves all three, so the others are not.
	var answers []<-chan answer
	for range 3 {
		answers = append(answers, start(r.client, request(t, r.envoy.URL+"/v1/chat/completions", strings.NewReader(chat("unknown", 2000)))))
		if served := await(t, "the request at a model server", gate.arrived).addr; served != known {
			t.Errorf("served by %s", served)
		}
		r.want(float64(len(answers)), "homing_in_flight_requests", "endpoint", r.endpoint(known))
	}
	gate.open()
	elsewhere := 0.0
	for i, answered := range answers {
		if got := await(t, "the response", answered); got.body != whole {
			t.Errorf("status %d %q, %v", got.status, got.body, got.err)
		}
		if !strings.HasPrefix(r.access("/v1/chat/completions", i+1).Picked, known) {
			elsewhere++
		}
	}
	if elsewhere < 2 {
		t.Errorf("%v of 3 requests were picked for endpoints that Envoy does not know", elsewhere)
	}
	r.want(elsewhere, "homing_served_elsewhere_total")
	r.settles()
	r.said(1, "served a request at another endpoint")
}

// said checks how many lines of Homing's log hold a text. The log is written before the request goes on.
func (r *rig) said(n int, text string) {
	r.t.Helper()
	if got := strings.Count(r.homing.Log(), text); got != n {
		r.t.Errorf("Homing says %d times %q, want %d", got, text, n)
	}
}

// TestEndpointHeader: model servers see the pick, whatever the client wrote there, and the fallbacks
// only where the policy wants it.
func TestEndpointHeader(t *testing.T) {
	for _, fallbacks := range []bool{false, true} {
		t.Run(fmt.Sprintf("fallbackHeader=%t", fallbacks), func(t *testing.T) {
			r := newRig(t, setup{policy: env.Policy{FallbackHeader: fallbacks}})
			for i, forged := range []string{"", "127.0.0.1:1", r.pool.Endpoints[0], r.pool.Endpoints[1], r.pool.Endpoints[2], "nonsense"} {
				for _, client := range []*http.Client{r.client, r.h2} {
					req := request(t, r.envoy.URL+fmt.Sprint("/v1/chat/completions/", i), strings.NewReader(chat("header", 2000)))
					if forged != "" {
						req.Header[endpointHeader] = []string{forged, forged}
					}
					got := send(t, client, req)
					a := r.access(req.URL.Path, 1)
					want := a.Picked
					if !fallbacks {
						want, _, _ = strings.Cut(a.Picked, ",")
					}
					if diff := cmp.Diff([]string{want}, got.Header[endpointHeader]); diff != "" {
						t.Errorf("client wrote %q, the model server reads (-want +got):\n%s", forged, diff)
					}
					if pick, _, _ := strings.Cut(a.Picked, ","); got.Backend != pick {
						t.Errorf("client wrote %q: served by %s, picked was %s", forged, got.Backend, pick)
					}
				}
			}
			r.settles()
			r.want(0, "homing_served_elsewhere_total")
		})
	}
}

// withSubsets has Envoy read a request's subset hint from a header, as a string.
func withSubsets(c env.EnvoyConfig) {
	addFilter(c, "header_to_metadata", map[string]any{
		"@type": "type.googleapis.com/envoy.extensions.filters.http.header_to_metadata.v3.Config",
		"request_rules": []any{map[string]any{
			"header": "x-subset", "remove": true,
			"on_header_present": map[string]any{"metadata_namespace": "envoy.lb.subset_hint", "key": "x-gateway-destination-endpoint-subset"},
		}},
	})
}

// withSubset has every request carry the same hint, as a list.
func withSubset(c env.EnvoyConfig, list ...any) {
	addFilter(c, "set_metadata", map[string]any{
		"@type": "type.googleapis.com/envoy.extensions.filters.http.set_metadata.v3.Config",
		"metadata": []any{map[string]any{
			"metadata_namespace": "envoy.lb.subset_hint",
			"value":              map[string]any{"x-gateway-destination-endpoint-subset": list},
		}},
	})
}

// addFilter puts a filter before ext_proc.
func addFilter(c env.EnvoyConfig, name string, config map[string]any) {
	filter := map[string]any{"name": "envoy.filters.http." + name, "typed_config": config}
	c.ConnectionManager()["http_filters"] = append([]any{filter}, c.ConnectionManager()["http_filters"].([]any)...)
}

func TestSubsetHint(t *testing.T) {
	r := newRig(t, setup{backends: 4, envoy: withSubsets})
	e := r.pool.Endpoints
	for _, test := range []struct {
		hint string
		want []string // who may serve; nobody: 503
	}{
		{"", e},
		{e[1], e[1:2]},
		{e[3] + "," + e[1], []string{e[1], e[3]}},
		{" " + e[2] + " , 10.0.0.1:80", e[2:3]},
		{"127.0.0.1", e},
		{"127.0.0.2", nil},
		{"no address", nil},
	} {
		t.Run(test.hint, func(t *testing.T) {
			seen := map[string]bool{}
			for i := range 24 { // 1 of 100,000 runs does not see all four
				req := request(t, r.envoy.URL+"/v1/chat/completions", strings.NewReader(chat(fmt.Sprint("subset", i), 500)))
				if test.hint != "" {
					req.Header.Set("X-Subset", test.hint)
				}
				got := send(t, r.client, req)
				if len(test.want) == 0 {
					got.refused(t, http.StatusServiceUnavailable, "no_ready_endpoint")
				} else {
					seen[got.Backend] = true
				}
			}
			want := slices.Sorted(slices.Values(test.want))
			if diff := cmp.Diff(want, slices.Sorted(maps.Keys(seen))); diff != "" {
				t.Errorf("who serves (-want +got):\n%s", diff)
			}
		})
	}
	r.settles()
}

func TestSubsetHintAsAList(t *testing.T) {
	port, err := env.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	// An address and a port of an endpoint that is there, and one that is not.
	r := newRig(t, setup{envoy: func(c env.EnvoyConfig) {
		endpoints := c.Cluster("pool")["load_assignment"].(map[string]any)["endpoints"].([]any)[0].(map[string]any)["lb_endpoints"].([]any)
		last := endpoints[2].(map[string]any)["endpoint"].(map[string]any)["address"].(map[string]any)["socket_address"].(map[string]any)
		withSubset(c, fmt.Sprintf("127.0.0.1:%v", last["port_value"]), fmt.Sprintf("127.0.0.1:%d", port))
	}})
	for i := range 12 {
		body := chat(fmt.Sprint("list", i), 500)
		got := post(t, r.client, r.envoy.URL+"/v1/chat/completions", body)
		got.passed(t, body)
		if got.Backend != r.pool.Endpoints[2] {
			t.Errorf("served by %s, outside of the subset", got.Backend)
		}
	}
	r.settles()
}
