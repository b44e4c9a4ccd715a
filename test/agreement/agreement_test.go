// Package agreement holds prefix keys against a real engine: for pairs of requests whose text fills
// PrefixLength, the keys are equal exactly where vLLM shares its KV cache for that stretch.
package agreement

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/homing-dev/homing/pkg/endpoint"
	"github.com/homing-dev/homing/pkg/prefix"
	"github.com/homing-dev/homing/pkg/prompt"
	"github.com/homing-dev/homing/test/env"
)

const (
	baseModel = env.Model
	loraOne   = "lora-one"
	loraTwo   = "lora-two"

	// prefixLength is the shortest there is, which keeps the prompts, and so the test, short.
	prefixLength = endpoint.MinPrefixLength
	// rounds is how many conversations each pair is made of.
	rounds = 3
)

func TestMain(m *testing.M) { env.Main(m) }

func TestKeysAreEqualWhereTheEngineSharesItsCache(t *testing.T) {
	if testing.Short() {
		t.Skip("a real engine takes a minute to start; not with -short")
	}
	e := startEngine(t)
	for _, p := range pairs {
		t.Run(p.name, func(t *testing.T) {
			for round := range uint64(rounds) {
				a, b := p.make(rand.New(rand.NewPCG(round, prefix.Digest(p.name)))) // no pair meets another's cache
				shares := e.shares(t, a, b)
				equal := keyOf(a) == keyOf(b)
				switch {
				case p.differ == "" && equal != shares:
					t.Errorf("keys equal: %t, cache shared: %t\n%s\n%s", equal, shares, a, b)
				case p.differ != "" && equal == shares:
					t.Errorf("key and cache agree (%t), so this is no exception any more: %s", equal, p.differ)
				}
			}
		})
	}
}

func (r request) String() string { return r.path + " " + r.body }

// keyOf is the prefix key as pkg/extproc makes it.
func keyOf(r request) prefix.Key {
	var reader prompt.Reader
	reader.Reset(r.path, "", prompt.Options{PrefixLength: prefixLength})
	reader.Write([]byte(r.body))
	reader.Close()
	p := reader.Prompt()
	scope := prefix.Scope{Model: p.Model, CacheSalt: p.CacheSalt, Tools: p.Tools, Isolation: p.CacheKey}
	return prefix.Of(scope, p.Text)
}

type engine struct{ *env.Engine }

// startEngine starts a vLLM engine with two LoRA adapters. Templates get content as a string, as those of
// most models want it.
func startEngine(t *testing.T) engine {
	t.Helper()
	e := env.For(t)
	dir, err := e.VLLMDir(t.Context())
	env.Check(t, err)
	adapters := t.TempDir()
	args := []string{"--chat-template-content-format", "string", "--enable-lora", "--max-loras", "2", "--max-lora-rank", "8", "--lora-modules"}
	for i, name := range []string{loraOne, loraTwo} {
		out := filepath.Join(adapters, name)
		cmd := exec.CommandContext(t.Context(), filepath.Join(dir, "venv/bin/python"), filepath.Join(env.Root(), "hack/vllm/mklora.py"),
			filepath.Join(dir, "model"), out, fmt.Sprint(i+1))
		if output, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("making adapter %s: %v\n%s", name, err, output)
		}
		args = append(args, name+"="+out)
	}
	engines, err := e.VLLM(t.Context(), 1, env.VLLMOptions{Args: args})
	env.Check(t, err)
	return engine{engines[0]}
}

// shares says whether b finds a's stretch of prefixLength characters in the cache.
func (e engine) shares(t *testing.T, a, b request) bool {
	t.Helper()
	e.send(t, a)
	before := e.hits(t)
	e.send(t, b)
	hits := e.hits(t) - before
	// The stretch in tokens, from below: no token of this tokenizer is longer than a word. Pairs are made
	// to differ in the first third of the stretch or not at all, so that blocks don't blur the answer.
	stretch := e.stretch(t, a)
	switch {
	case hits >= 0.85*stretch:
		return true
	case hits > 0.6*stretch:
		t.Errorf("%.0f of about %.0f tokens were shared, neither all nor few:\n%s\n%s", hits, stretch, a, b)
	}
	return false
}

// stretch is how many tokens the routing text of a request has.
func (e engine) stretch(t *testing.T, r request) float64 {
	t.Helper()
	var reader prompt.Reader
	reader.Reset(r.path, "", prompt.Options{PrefixLength: prefixLength})
	reader.Write([]byte(r.body))
	reader.Close()
	p := reader.Prompt()
	if !p.Cut {
		t.Fatalf("the text does not fill the prefix:\n%s", r)
	}
	if strings.Contains(r.body, `"prompt":[`) && !strings.Contains(r.body, `"prompt":["`) {
		return prefixLength / 4 // token ids
	}
	text := strings.ToValidUTF8(string(p.Text), "") // without the marks' first bytes; their digests are few
	var tokens struct{ Count float64 }
	answer := e.post(t, "/tokenize", plain(obj("model", baseModel, "prompt", text, "add_special_tokens", false)))
	if err := json.Unmarshal(answer, &tokens); err != nil || tokens.Count == 0 {
		t.Fatalf("tokenizing: %v: %s", err, answer)
	}
	return tokens.Count * 0.9 // the digests in the marks are no text
}

func (e engine) send(t *testing.T, r request) { e.post(t, r.path, r.body) }

func (e engine) post(t *testing.T, path, body string) []byte {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, e.URL+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s %v\n%s\n%s", path, resp.Status, err, body, answer)
	}
	return answer
}

// hits is how many tokens the engine has found in its cache so far.
func (e engine) hits(t *testing.T) float64 {
	t.Helper()
	metrics, err := e.Metrics(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return metrics.Sum("vllm:prefix_cache_hits_total")
}
