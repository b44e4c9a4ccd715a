package dataplane

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"syscall"
	"testing"

	"github.com/homing-dev/homing/test/env"
)

func allowFailures(c env.EnvoyConfig) { c.ExtProc()["failure_mode_allow"] = true }

// TestWithoutHoming kills Homing and goes on without it. By the shipped configuration requests fail. With
// failure_mode_allow Envoy serves by itself what it has not begun to hand to Homing: requests without a body,
// or whose body is late. A client's own choice counts then, unless its header is removed.
func TestWithoutHoming(t *testing.T) {
	for _, test := range []struct {
		name   string
		envoy  func(env.EnvoyConfig)
		status map[string]int // by how the body comes
		chosen bool           // by the client's header
	}{
		{"as shipped", nil, map[string]int{"none": 500, "late": 500, "at once": 500}, false},
		{"failure_mode_allow", allowFailures, map[string]int{"none": 200, "late": 200, "at once": 500}, true},
		{"failure_mode_allow without the client's header", func(c env.EnvoyConfig) {
			allowFailures(c)
			addFilter(c, "header_mutation", map[string]any{
				"@type":     "type.googleapis.com/envoy.extensions.filters.http.header_mutation.v3.HeaderMutation",
				"mutations": map[string]any{"request_mutations": []any{map[string]any{"remove": strings.ToLower(endpointHeader)}}},
			})
		}, map[string]int{"none": 200, "late": 200, "at once": 500}, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := newRig(t, setup{envoy: test.envoy})
			r.kill()
			served := map[string]bool{}
			for how, status := range test.status {
				for range 6 {
					got := r.withoutHoming(how)
					if got.status != status {
						t.Errorf("body %s: status %d, want %d", how, got.status, status)
					}
					if got.status == http.StatusOK {
						served[got.Backend] = true
					}
				}
			}
			if test.envoy != nil && (len(served) == 1 && served[r.pool.Endpoints[1]]) != test.chosen {
				t.Errorf("served by %v; the client chose %s", served, r.pool.Endpoints[1])
			}
		})
	}
}

// withoutHoming sends a request that chooses the second endpoint; its body is not there, late or there at once.
func (r *rig) withoutHoming(body string) answer {
	r.t.Helper()
	const failure = "Received gRPC error"
	whole := chat("without", 3000)
	req := request(r.t, r.envoy.URL+"/v1/chat/completions", strings.NewReader(whole))
	pipe, writer := io.Pipe()
	switch body {
	case "none":
		req = request(r.t, r.envoy.URL+"/v1/chat/completions", nil)
	case "late":
		req = request(r.t, r.envoy.URL+"/v1/chat/completions", pipe)
	}
	req.Header.Set(endpointHeader, r.pool.Endpoints[1])
	seen := strings.Count(r.envoy.Log(), failure)
	answered := start(r.client, req)
	eventually(r.t, "Envoy's failure to reach Homing", func() error {
		if strings.Count(r.envoy.Log(), failure) == seen {
			return errors.New("not in its log")
		}
		return nil
	})
	if body == "late" {
		_, _ = io.WriteString(writer, whole) // the answer tells if that failed
		_ = writer.Close()
	}
	return await(r.t, "the response", answered)
}

// TestHomingDies: Envoy cuts a response whose picker dies, whatever its failure mode.
func TestHomingDies(t *testing.T) {
	for name, envoy := range map[string]func(env.EnvoyConfig){"as shipped": nil, "failure_mode_allow": allowFailures} {
		t.Run(name, func(t *testing.T) {
			gate := newGate()
			r := newRig(t, setup{serve: gate.stream, envoy: envoy})
			answered := start(r.client, request(t, r.envoy.URL+"/v1/chat/completions", strings.NewReader(chat("dies", 3000))))
			r.wantStreaming(1)
			r.kill()
			if got := await(t, "the response", answered); got.err == nil {
				t.Errorf("status %d %q, want an error", got.status, got.body)
			}
		})
	}
}

// kill ends Homing without a chance to say goodbye.
func (r *rig) kill() {
	r.t.Helper()
	r.check(r.homing.Signal(syscall.SIGKILL))
	await(r.t, "Homing's end", r.homing.Done())
}
