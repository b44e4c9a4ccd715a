package dataplane

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/homing-dev/homing/test/env"
)

// refused fails the test unless the answer is Homing's refusal, as OpenAI's clients read errors.
func (a answer) refused(t testing.TB, status int, code string) {
	t.Helper()
	var body struct {
		Error struct {
			Message, Type, Code string
			Param               *string
		}
	}
	if err := json.Unmarshal([]byte(a.body), &body); err != nil {
		t.Fatalf("status %d %q: %v", a.status, a.body, err)
	}
	kind, retryAfter := "server_error", ""
	if status == http.StatusTooManyRequests {
		kind, retryAfter = "rate_limit_error", "1"
	}
	got := []any{a.status, a.header.Get("Content-Type"), a.header.Get("Retry-After"), body.Error.Type, body.Error.Code}
	if diff := cmp.Diff([]any{status, "application/json", retryAfter, kind, code}, got); diff != "" {
		t.Errorf("the refusal (-want +got):\n%s", diff)
	}
	if !strings.Contains(body.Error.Message, "retry") {
		t.Errorf("the message does not say what to do: %q", body.Error.Message)
	}
}

// reload changes one file and waits until Homing has read it with that result, "success" or "failure".
func (r *rig) reload(result string, change func() error) {
	r.t.Helper()
	const reloads = "homing_config_reloads_total"
	before := r.metrics().Sum(reloads, "result", result)
	r.check(change())
	r.want(before+1, reloads, "result", result)
}

func (r *rig) setPolicy(p env.Policy) {
	r.t.Helper()
	r.reload("success", func() error { return r.files.WritePolicy(r.pool.Name, p) })
}

func (r *rig) setPool(p env.Pool) {
	r.t.Helper()
	r.reload("success", func() error { return r.files.WritePool(p) })
}

func TestNoEndpoint(t *testing.T) {
	r := newRig(t, setup{})
	r.setPool(env.Pool{Name: r.pool.Name, Port: r.pool.Port})
	for _, client := range []*http.Client{r.client, r.h2} {
		for _, body := range []string{"", chat("none", 500), chat("none", 2<<20)} {
			post(t, client, r.envoy.URL+"/v1/chat/completions", body).refused(t, http.StatusServiceUnavailable, "no_ready_endpoint")
		}
	}
	r.want(6, "homing_immediate_responses_total", "reason", "no_ready_endpoint")
	r.wantStreams(6, "end", "refused")
	r.setPool(r.pool)
	body := chat("none", 500)
	post(t, r.client, r.envoy.URL+"/v1/chat/completions", body).passed(t, body)
	if n := r.settles(); n != 1 {
		t.Errorf("%v picks of one request that had an endpoint", n)
	}
}

// TestSaturation fills a pool to its threshold, with one key: the requests go home, spill in the key's
// own order, and then overflow or are refused, as the policy says at that moment.
func TestSaturation(t *testing.T) {
	gate := newGate()
	reject := env.Policy{ConcurrencyThreshold: 2, Saturation: "Reject"}
	r := newRig(t, setup{serve: gate.hold, policy: reject})
	body := chat("saturation", 3000)
	var answers []<-chan answer
	hold := func() (served string) {
		t.Helper()
		answers = append(answers, start(r.h2, request(t, r.envoy.URL+"/v1/chat/completions", strings.NewReader(body))))
		return await(t, "the request at a model server", gate.arrived).addr
	}
	var served []string
	for range 6 {
		served = append(served, hold())
	}
	a, b, c := served[0], served[2], served[4]
	if diff := cmp.Diff([]string{a, a, b, b, c, c}, served); diff != "" || a == b || b == c || a == c {
		t.Errorf("who serves (-two each, one after the other +got):\n%s", diff)
	}
	for _, client := range []*http.Client{r.client, r.h2} {
		post(t, client, r.envoy.URL+"/v1/chat/completions", body).refused(t, http.StatusTooManyRequests, "saturated")
	}
	r.want(2, "homing_immediate_responses_total", "reason", "saturated")

	overflow := reject
	overflow.Saturation = "Overflow"
	r.setPolicy(overflow)
	for range 3 {
		hold()
	}
	for _, e := range r.pool.Endpoints {
		r.want(3, "homing_in_flight_requests", "endpoint", r.endpoint(e)) // spread over the least loaded
	}
	r.setPolicy(env.Policy{ConcurrencyThreshold: 4, Saturation: "Reject"})
	if home := hold(); home != a {
		t.Errorf("under a higher threshold %s serves, home is %s", home, a)
	}
	r.setPolicy(reject)
	post(t, r.client, r.envoy.URL+"/v1/chat/completions", body).refused(t, http.StatusTooManyRequests, "saturated")

	gate.open()
	for _, answered := range answers {
		await(t, "the response", answered).passed(t, body)
	}
	if n := r.settles(); n != 10 {
		t.Errorf("%v picks of 10 requests that were served", n)
	}
	for outcome, n := range map[string]float64{"home": 3, "spill": 4, "saturated": 3} {
		r.want(n, "homing_picks_total", "outcome", outcome)
	}
}

// TestPolicyChanges: what a file says applies to the next request.
func TestPolicyChanges(t *testing.T) {
	r := newRig(t, setup{backends: 5, policy: env.Policy{PrefixLength: 2048}})
	// Conversations that begin with the same 1,500 characters, and then differ.
	servedBy := func() (served map[string]bool) {
		served = map[string]bool{}
		for i := range 24 {
			body := strings.Replace(chat("changes", 3000), strings.Repeat("a", 1400), strings.Repeat("a", 1400)+fmt.Sprint(i), 1)
			got := post(t, r.client, r.envoy.URL+"/v1/chat/completions", body)
			got.passed(t, body)
			served[got.Backend] = true
		}
		return served
	}
	if n := len(servedBy()); n < 2 {
		t.Error("a prefix of 2,048 characters does not tell them apart")
	}
	r.setPolicy(env.Policy{PrefixLength: 1024})
	if n := len(servedBy()); n != 1 {
		t.Errorf("with a prefix of 1,024 characters they have %d homes, want 1", n)
	}
	for _, strategy := range []string{"LeastOutstandingRequests", "Random", "PrefixAware"} {
		before := r.metrics().Sum("homing_picks_total", "strategy", strategy)
		r.setPolicy(env.Policy{PrefixLength: 1024, Strategy: strategy})
		if n := len(servedBy()); (n == 1) != (strategy == "PrefixAware") {
			t.Errorf("%s: %d endpoints serve", strategy, n)
		}
		r.want(before+24, "homing_picks_total", "strategy", strategy)
	}
	// A policy that is wrong changes nothing.
	r.reload("failure", func() error {
		return r.files.WritePolicy(r.pool.Name, env.Policy{PrefixLength: 10, Strategy: "Random"})
	})
	if n := len(servedBy()); n != 1 {
		t.Errorf("after a wrong policy %d endpoints serve, want 1 as before", n)
	}
	r.want(1, "homing_config_errors")
	r.said(1, "pool-policy.yaml:7")
	r.settles()
}

// TestPoolsStayApart serves two pools on two ports, behind one Envoy whose routes ask for one each.
func TestPoolsStayApart(t *testing.T) {
	other := env.Pool{Name: "other", Port: env.Port(t)}
	for i := range 2 {
		other.Endpoints = append(other.Endpoints, startBackend(t, i, echo).addr)
	}
	r := newRig(t, setup{envoy: func(c env.EnvoyConfig) {
		if err := c.AddPool(other.Name, fmt.Sprintf("127.0.0.1:%d", other.Port), other.Endpoints); err != nil {
			t.Fatal(err)
		}
	}})
	r.setPool(other)
	r.reload("success", func() error { return r.files.WritePolicy("other", env.Policy{Strategy: "Random"}) })
	for i := range 20 {
		body := chat(fmt.Sprint("apart", i), 500)
		for path, endpoints := range map[string][]string{"/v1/chat/completions": r.pool.Endpoints, "/other/v1/chat/completions": other.Endpoints} {
			got := post(t, r.client, r.envoy.URL+path, body)
			got.passed(t, body)
			if !slices.Contains(endpoints, got.Backend) {
				t.Errorf("%s is served by %s, of another pool", path, got.Backend)
			}
		}
	}
	r.want(20, "homing_picks_total", "pool_name", "pool", "strategy", "PrefixAware")
	r.want(20, "homing_picks_total", "pool_name", "other", "strategy", "Random")
	r.want(0, "homing_served_elsewhere_total")
	r.settles()

	for _, file := range []string{"other-policy.yaml", "other-pool.yaml"} {
		r.reload("success", func() error { return os.Remove(filepath.Join(r.files.Dir, file)) })
	}
	eventually(t, "the removed pool's port", func() error {
		if got := post(t, r.client, r.envoy.URL+"/other/v1/models", ""); got.status != http.StatusInternalServerError {
			return fmt.Errorf("status %d, want Envoy's 500 without a picker", got.status)
		}
		return nil
	})
	body := chat("alone", 500)
	post(t, r.client, r.envoy.URL+"/v1/chat/completions", body).passed(t, body)
	if m := r.metrics(); m.Sum("homing_picks_total", "pool_name", "other") != 0 {
		t.Error("the metrics of the removed pool are still there")
	}
}
