package clients

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/homing-dev/homing/test/env"
)

// call is what python/clients.py prints of a call.
type call struct {
	Call, Group, Text string
	Streamed          bool
	Cached            *int // tokens of the prompt that the engine had in its cache, where it tells
}

func python(t testing.TB, g *gateway, mode string) []call {
	t.Helper()
	interpreter, err := g.env.Python(t.Context())
	env.Check(t, err)
	return run[call](t, interpreter, filepath.Join(env.Root(), "test/clients/python/clients.py"), mode, g.envoy.URL)
}

// TestConversationsHaveOneHome has conversations in every library and dialect, on real engines: each has
// one home, and finds its cache there. Each cache key and Prefix-Aware-Id has a home of its own.
func TestConversationsHaveOneHome(t *testing.T) {
	engines := env.SharedVLLM(t)
	g := newGateway(t, env.Addrs(engines), env.Policy{PrefixLength: prefixLength})
	calls := python(t, g, "homes")
	calls = append(calls, curls(t, g, "conversation 0")...)
	homes := homes{}
	for i, served := range g.served(len(calls)) {
		call := calls[i]
		status := http.StatusOK
		if call.Group == "unknown model" { // the engine's own error comes as it is
			status = http.StatusNotFound
		}
		if served.Status != status || served.Attempts != 1 || call.Text == "" {
			t.Errorf("%s of %s (streamed: %t) got %q; the access log says %+v", call.Call, call.Group, call.Streamed, call.Text, served)
		}
		if call.Cached != nil && homes[call.Group] != nil && *call.Cached < prefixLength {
			t.Errorf("%s of %s found %d tokens in the engine's cache, though it was not the first", call.Call, call.Group, *call.Cached)
		}
		homes.add(call.Group, served.Served)
	}
	homes.check(t, "", "tenant")
	g.settled(len(calls))
}

// curls has clients.py's conversation 0 once more, by hand.
func curls(t testing.TB, g *gateway, group string) (calls []call) {
	t.Helper()
	curl, err := exec.LookPath("curl")
	if err != nil {
		t.Log("no curl on PATH: not tried")
		return nil
	}
	system := "You are assistant number 0. " + strings.Repeat("All happy families are alike. ", 60)
	for _, stream := range []bool{false, true} {
		for _, options := range [][]string{{"--http1.1"}, {"--http2-prior-knowledge"}, {"--http1.1", "-H", "Transfer-Encoding: chunked"}} {
			body, err := json.Marshal(map[string]any{
				"max_tokens": 4, "stream": stream, "model": env.Model, "messages": []any{
					map[string]any{"content": []any{map[string]any{"type": "text", "text": system}}, "role": "system"},
					map[string]any{"role": "user", "content": "Which families are happy?"},
				},
			})
			if err != nil {
				t.Fatal(err)
			}
			cmd := exec.CommandContext(t.Context(), curl, append(options, "--no-buffer", "--silent", "--show-error", "--fail-with-body",
				"-H", "Content-Type: application/json", "--data-binary", "@-", g.envoy.URL+"/v1/chat/completions")...)
			cmd.Stdin = strings.NewReader(string(body))
			out, err := cmd.CombinedOutput()
			if err != nil {
				t.Fatalf("curl %v: %v\n%s", options, err, out)
			}
			if text := string(out); stream && !strings.HasSuffix(text, "data: [DONE]\n\n") || !stream && !json.Valid(out) {
				t.Errorf("curl %v got %s", options, text)
			}
			calls = append(calls, call{Call: fmt.Sprint("curl ", options), Group: group, Text: string(out), Streamed: stream})
		}
	}
	return calls
}

// TestLibrariesUnderstandRefusals: what Homing says reaches an application as an error of its library's.
func TestLibrariesUnderstandRefusals(t *testing.T) {
	busy := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		close(busy)
		<-r.Context().Done()
	}))
	t.Cleanup(server.Close)
	saturated := newGateway(t, []string{server.Listener.Addr().String()}, env.Policy{ConcurrencyThreshold: 1, Saturation: "Reject"})
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, saturated.envoy.URL+"/v1/models", nil)
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		if resp, err := http.DefaultClient.Do(req); err == nil { // it never is: the test ends it
			_ = resp.Body.Close()
		}
	}()
	<-busy
	for _, test := range []struct {
		gateway *gateway
		want    string // of every library
		text    string
	}{
		{newGateway(t, nil, env.Policy{}), "other 503", "no_ready_endpoint, retry after None"},
		{saturated, "rate limit 429", "saturated, retry after 1"},
	} {
		calls := python(t, test.gateway, "refused")
		if len(calls) != 4 {
			t.Errorf("%d calls, want 4", len(calls))
		}
		for _, call := range calls {
			if diff := cmp.Diff([]string{test.want, test.text}, []string{call.Group, call.Text}); diff != "" {
				t.Errorf("%s (-want +got):\n%s", call.Call, diff)
			}
		}
	}
}
