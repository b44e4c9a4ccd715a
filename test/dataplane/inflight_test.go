package dataplane

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/homing-dev/homing/test/env"
)

// leavers is how many clients leave at each point, half of them with HTTP/1.1 and half with HTTP/2.
const leavers = 20

// TestClientsThatLeave has clients leave at every point of a request. Whatever they leave behind, it is
// not counted in flight.
func TestClientsThatLeave(t *testing.T) {
	const messagesSent = "envoy_http_ext_proc_stream_msgs_sent" // by Envoy to Homing
	gate := newGate()
	r := newRig(t, setup{
		policy: env.Policy{PrefixLength: 1024},
		serve: func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Query().Has("stream") {
				gate.stream(w, r)
			} else {
				gate.hold(w, r)
			}
		},
	})
	whole := chat("leaves", 5000)
	for _, test := range []struct {
		name, path string
		part       string   // of the body that is sent before the client leaves
		whole      bool     // that is all of the body
		messages   float64  // for each request, that Envoy has sent to Homing by then
		picked     bool     // by then
		begun      bool     // the response, by then
		phases     []string // what Homing has seen of it
	}{
		// What Envoy has sent may be overtaken by its reset of the stream.
		{"before the body", "/v1/chat/completions", "", false, 1, false, false, []string{"start", "request"}},
		{"mid-body, before the key is known", "/v1/chat/completions", whole[:3000], false, 2, false, false, []string{"start", "request"}},
		{"mid-body, after the pick", "/invocations", whole[:3000], false, 2, true, false, []string{"picked"}},
		{"before the response", "/v1/chat/completions", whole, true, 2, true, false, []string{"picked"}},
		{"mid-response", "/v1/chat/completions?stream", whole, true, 3, true, true, []string{"response"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := r.in(t)
			before, sent := r.metrics(), r.envoyStat(messagesSent)
			ctx, leave := context.WithCancel(t.Context())
			defer leave()
			var clients sync.WaitGroup
			for i := range leavers {
				body, writer := io.Pipe()
				context.AfterFunc(ctx, func() { _ = writer.CloseWithError(context.Canceled) }) // HTTP/1.1 waits for it
				req := request(t, r.envoy.URL+test.path, body).WithContext(ctx)
				go func() {
					if _, err := io.WriteString(writer, test.part); err == nil && test.whole {
						_ = writer.Close()
					}
				}()
				clients.Go(func() { do([]*http.Client{r.client, r.h2}[i%2], req) })
			}
			picked := 0.0
			if test.picked {
				picked = leavers
			}
			r.want(picked, "homing_in_flight_requests")
			eventually(t, "messages to Homing", func() error {
				if n := r.envoyStat(messagesSent) - sent; n < leavers*test.messages {
					return fmt.Errorf("%v, want %v", n, leavers*test.messages)
				}
				return nil
			})
			if test.begun {
				r.wantStreaming(leavers)
			}
			leave()
			clients.Wait()
			eventually(t, "streams that have ended", func() error {
				m, ended := r.metrics(), 0.0
				for _, phase := range test.phases {
					ended += m.Sum("homing_streams_total", "phase", phase) - before.Sum("homing_streams_total", "phase", phase)
				}
				if ended != leavers {
					return fmt.Errorf("%v in phase %v, want %v; all: %v", ended, test.phases, leavers, nonzero(m["homing_streams_total"]))
				}
				return nil
			})
			if n := r.settles() - before.Sum("homing_picks_total"); n != picked {
				t.Errorf("%v picks, want %v", n, picked)
			}
		})
	}
}

// TestUpstreamsThatReset has model servers drop the connection before and during the response.
func TestUpstreamsThatReset(t *testing.T) {
	begun := make(chan struct{}) // the client has the response's first event
	r := newRig(t, setup{envoy: func(c env.EnvoyConfig) {
		c.ConnectionManager()["delayed_close_timeout"] = "0.05s" // else HTTP/1.1 clients hear of a reset after 1 s
	}, serve: func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Has("stream") {
			firstEvent(w, r)
			<-begun
		}
		reset(w)
	}})
	for _, client := range []*http.Client{r.client, r.h2} {
		for range leavers / 2 {
			if got := post(t, client, r.envoy.URL+"/v1/chat/completions", chat("resets", 5000)); got.status != http.StatusServiceUnavailable {
				t.Errorf("before the response: status %d, want Envoy's 503", got.status)
			}
			response := r.untilFirstEvent(client, "/v1/chat/completions?stream")
			begun <- struct{}{}
			if rest, err := io.ReadAll(response); err == nil || len(rest) > 0 {
				t.Errorf("after the reset came %q, %v", rest, err)
			}
		}
	}
	if n := r.settles(); n != 2*leavers {
		t.Errorf("%v picks of %d requests", n, 2*leavers)
	}
	r.want(0, "homing_streams_closed_early_total")
}

// untilFirstEvent sends a chat, reads the first event of its response and returns the rest.
func (r *rig) untilFirstEvent(client *http.Client, path string) io.Reader {
	r.t.Helper()
	resp, err := client.Do(request(r.t, r.envoy.URL+path, strings.NewReader(chat("streams", 5000))))
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = resp.Body.Close() })
	first := make([]byte, len("data: first\n\n"))
	if _, err := io.ReadFull(resp.Body, first); err != nil || string(first) != "data: first\n\n" || resp.StatusCode != http.StatusOK {
		r.t.Fatalf("the response begins with status %d %q, %v", resp.StatusCode, first, err)
	}
	return resp.Body
}

// TestLocalReplies has Envoy answer by itself, before and after a pick.
func TestLocalReplies(t *testing.T) {
	gate := newGate()
	r := newRig(t, setup{serve: gate.hold, envoy: func(c env.EnvoyConfig) {
		manager := c.ConnectionManager()
		manager["request_timeout"] = "0.5s" // for a request to come whole
		host := manager["route_config"].(map[string]any)["virtual_hosts"].([]any)[0].(map[string]any)
		route := host["routes"].([]any)[0].(map[string]any)
		route["match"] = map[string]any{"prefix": "/v1/"}
		slow := map[string]any{"match": map[string]any{"path": "/slow"}, "route": map[string]any{"cluster": "pool", "timeout": "0.2s"}}
		nowhere := map[string]any{"match": map[string]any{"path": "/nowhere"}, "route": map[string]any{"cluster": "nowhere"}}
		host["routes"] = []any{route, slow, nowhere}
		addFilter(c, "fault", map[string]any{
			"@type": "type.googleapis.com/envoy.extensions.filters.http.fault.v3.HTTPFault",
			"abort": map[string]any{"header_abort": map[string]any{}, "percentage": map[string]any{"numerator": 100}},
		})
		resources := c["static_resources"].(map[string]any)
		resources["clusters"] = append(resources["clusters"].([]any), map[string]any{
			"name": "nowhere", "type": "STATIC", "connect_timeout": "1s",
			"load_assignment": map[string]any{"cluster_name": "nowhere"},
		})
	}})
	for _, test := range []struct {
		name, path string
		status     int
		header     string
		stalls     bool // the body does not end
		phase      string
	}{
		{"no route", "/elsewhere", http.StatusNotFound, "", false, "done"},
		{"no host", "/nowhere", http.StatusServiceUnavailable, "", false, "response"},
		{"route timeout", "/slow", http.StatusGatewayTimeout, "", false, "response"},
		{"request timeout", "/v1/chat/completions", http.StatusRequestTimeout, "", true, "local_reply"},
		{"a filter before ext_proc", "/v1/chat/completions", http.StatusTeapot, "418", false, "local_reply"},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := r.in(t)
			for i, client := range []*http.Client{r.client, r.h2} {
				var body io.Reader = strings.NewReader(chat("local", 2000))
				if test.stalls {
					pipe, writer := io.Pipe()
					go func() { _, _ = io.WriteString(writer, chat("local", 2000)[:1000]) }()
					t.Cleanup(func() { _ = writer.Close() })
					body = pipe
				}
				req := request(t, r.envoy.URL+test.path, body)
				if test.header != "" {
					req.Header.Set("X-Envoy-Fault-Abort-Request", test.header)
				}
				before := r.metrics().Sum("homing_streams_total", "phase", test.phase)
				if got := do(client, req); got.status != test.status {
					t.Errorf("client %d: status %d, want %d (%v)", i, got.status, test.status, got.err)
				}
				r.wantStreams(before+1, "phase", test.phase)
			}
			r.settles()
		})
	}
	r.wantStreams(0, "end", "failed")
}
