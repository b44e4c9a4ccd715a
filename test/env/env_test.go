package env

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestCloseEndsItsProcesses(t *testing.T) {
	e := For(t)
	p, err := e.Start("sleeper", exec.Command("sleep", "600"))
	if err != nil {
		t.Fatal(err)
	}
	e.Close()
	select {
	case <-p.Done():
	default:
		t.Fatal("Close returned before the process had ended")
	}
	if err := syscall.Kill(p.Pid(), 0); err == nil {
		t.Errorf("process %d is still there", p.Pid())
	}
	if _, err := e.Start("late", exec.Command("true")); err == nil {
		t.Error("a closed Env started a process")
	}
}

func TestALimitedProcessTakesItsPartOfTheProcessors(t *testing.T) {
	e := For(t)
	p, err := e.Start("busy", exec.Command("sh", "-c", "sleep 4 & while :; do :; done")) // the sleeper outlives it
	Check(t, err)
	if err := e.Limit(p, 0.1); errors.Is(err, ErrUnsupported) {
		t.Skip(err) // nothing else needs it but measurements
	} else if err != nil {
		t.Fatal(err)
	}
	begun := time.Now()
	time.Sleep(time.Second)
	p.Stop()
	took := time.Since(begun)
	if used := p.cmd.ProcessState.UserTime() + p.cmd.ProcessState.SystemTime(); used > took/4 {
		t.Errorf("limited to a tenth of a processor, it took %v of it in %v", used, took)
	}
	e.Close()
	for _, groups := range []string{"/sys/fs/cgroup/homing-*-busy", "/sys/fs/cgroup/cpu/homing-*-busy"} {
		if left, err := filepath.Glob(groups); len(left) > 0 || err != nil {
			t.Errorf("left behind: %v, %v", left, err)
		}
	}
}

func TestAwaitTellsWhyAProcessEnded(t *testing.T) {
	e := For(t)
	p, err := e.Start("failing", exec.Command("sh", "-c", "echo no such model; exit 7"))
	if err != nil {
		t.Fatal(err)
	}
	err = p.Await(t.Context(), time.Millisecond, func(context.Context) error { return net.ErrClosed })
	if err == nil || !strings.Contains(err.Error(), "no such model") || !strings.Contains(err.Error(), "exit status 7") {
		t.Errorf("await said %v", err)
	}
}

func TestPlainListenerOfEnvoyServesWithoutAPicker(t *testing.T) {
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(w, r.Body)
	}))
	defer upstream.Close()
	e := For(t)
	port, err := FreePort()
	if err != nil {
		t.Fatal(err)
	}
	envoy, err := e.Envoy(t.Context(), EnvoyOptions{
		Picker: loopbackURL(port)[len("http://"):], Endpoints: []string{upstream.Listener.Addr().String()}, Plain: true,
	})
	Check(t, err)
	for url, want := range map[string]int{envoy.Plain: http.StatusOK, envoy.URL: http.StatusInternalServerError} {
		resp, err := http.Post(url+"/echo", "text/plain", strings.NewReader("hello"))
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if resp.StatusCode != want {
			t.Errorf("%s answered %d %q, want %d", url, resp.StatusCode, body, want)
		}
	}
}

func TestSimulatedEnginesCachePrefixes(t *testing.T) {
	e := For(t)
	engines, err := e.Simulated(t.Context(), 1)
	Check(t, err)
	prompt := strings.Repeat("All happy families are alike. ", 100)
	cold := cachedTokens(t, engines[0].URL, prompt)
	warm := cachedTokens(t, engines[0].URL, prompt)
	if cold != 0 || warm == 0 {
		t.Errorf("cached tokens: %d cold, %d warm; want none and some", cold, warm)
	}
	metrics, err := engines[0].Metrics(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if hits := metrics.Sum("vllm:prefix_cache_hits"); hits != float64(warm) {
		t.Errorf("the engine counts %v hits, its answers %d", hits, warm)
	}
}

// cachedTokens asks for a chat of one message and returns how many of its tokens were cached.
func cachedTokens(t *testing.T, url, prompt string) int {
	t.Helper()
	body, err := json.Marshal(map[string]any{
		"model": Model, "max_tokens": 1, "messages": []any{map[string]any{"role": "user", "content": prompt}},
	})
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.Post(url+"/v1/chat/completions", "application/json", bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var answer struct {
		Usage struct {
			Details struct {
				Cached int `json:"cached_tokens"`
			} `json:"prompt_tokens_details"`
		}
	}
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil {
		t.Fatal(err)
	}
	if resp.StatusCode != http.StatusOK {
		t.Fatalf("%s", resp.Status)
	}
	return answer.Usage.Details.Cached
}
