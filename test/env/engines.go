package env

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"time"
)

// Model is the name under which every engine here serves its model.
const Model = "tiny"

// Engine is a model server, simulated or real.
type Engine struct {
	*Process
	Addr string // ip:port
	URL  string // http://ip:port
}

// Metrics reads the engine's metrics.
func (e *Engine) Metrics(ctx context.Context) (Metrics, error) { return Scrape(ctx, e.URL+"/metrics") }

// Counts is what an engine has counted so far: prompt tokens found in its cache, prompt tokens looked for there, and
// requests that it has finished.
type Counts struct{ Hits, Queries, Finished float64 }

// CountAll reads what each engine has counted.
func CountAll(ctx context.Context, engines []*Engine) ([]Counts, error) {
	all := make([]Counts, len(engines))
	for i, engine := range engines {
		m, err := engine.Metrics(ctx)
		if err != nil {
			return nil, err
		}
		// The simulator's counters lack the suffix that vLLM's have.
		all[i] = Counts{
			Hits:     m.Sum("vllm:prefix_cache_hits_total") + m.Sum("vllm:prefix_cache_hits"),
			Queries:  m.Sum("vllm:prefix_cache_queries_total") + m.Sum("vllm:prefix_cache_queries"),
			Finished: m.Sum("vllm:request_success_total"),
		}
	}
	return all, nil
}

// Simulated starts n simulated vLLM servers (llm-d-inference-sim) with an exact prefix cache, and waits
// until they serve. args are more flags, of which the last wins; without any, prefill takes 5 ms and
// 0.1 ms per token that is not cached, decoding 1 ms per token, and the cache holds 65,536 tokens.
func (e *Env) Simulated(ctx context.Context, n int, args ...string) ([]*Engine, error) {
	binary, err := e.SimulatorBinary(ctx)
	if err != nil {
		return nil, err
	}
	return e.engines(ctx, "sim", n, func(port int) *exec.Cmd {
		cmd := exec.Command(binary, append([]string{
			"--model", Model, "--port", strconv.Itoa(port), "--mode", "random", "--seed", "1", "--zmq-endpoint", "",
			"--enable-kvcache=true", "--kv-cache-size", "4096", "--block-size", "16", "--max-num-seqs", "64",
			"--max-model-len", "32768", "--latency-calculator", "per-token", "--prefill-overhead", "5ms",
			"--prefill-time-per-token", "100us", "--inter-token-latency", "1ms",
		}, args...)...)
		cmd.Env = append(os.Environ(), "POD_IP=127.0.0.1") // its cache wants a name
		return cmd
	})
}

// SimulatorBinary is the path of the simulated vLLM server, which it builds if need be.
func (e *Env) SimulatorBinary(ctx context.Context) (string, error) {
	return e.script(ctx, "tools/sim/build.sh")
}

// VLLMOptions are the sizes of a real engine.
type VLLMOptions struct {
	MaxModelLen int      // tokens, 0 for 8,192
	KVCache     string   // bytes, as vLLM spells them; "" for 100M, which is 17,056 tokens
	Args        []string // more flags of vLLM's server
	Nice        int      // how far they give way to other processes, 0..19, as engines on nodes of their own would
}

// VLLM starts n real vLLM engines on the CPU, all with the same tiny model of random weights, and waits
// until they serve: about a minute for three. The error is [ErrUnsupported] where they can't run.
func (e *Env) VLLM(ctx context.Context, n int, o VLLMOptions) ([]*Engine, error) {
	dir, err := e.VLLMDir(ctx)
	if err != nil {
		return nil, err
	}
	if o.MaxModelLen == 0 {
		o.MaxModelLen = 8192
	}
	if o.KVCache == "" {
		o.KVCache = "100M"
	}
	return e.engines(ctx, "vllm", n, func(port int) *exec.Cmd {
		cmd := exec.Command(filepath.Join(Root(), "hack/vllm/serve.sh"), append([]string{
			filepath.Join(dir, "model"), strconv.Itoa(port), "--max-num-batched-tokens", "1024",
		}, o.Args...)...)
		cmd.Env = append(os.Environ(), "VENV="+filepath.Join(dir, "venv"), "NAME="+Model,
			"LEN="+strconv.Itoa(o.MaxModelLen), "KV="+o.KVCache, "NICE="+strconv.Itoa(o.Nice))
		return cmd
	})
}

// VLLMDir is the folder with what real engines need: venv and model. The error is [ErrUnsupported] where
// they can't run.
func (e *Env) VLLMDir(ctx context.Context) (string, error) { return e.script(ctx, "vllm/setup.sh") }

// engines starts n model servers at once and waits for all of them, with a progress line each 10 s.
func (e *Env) engines(ctx context.Context, kind string, n int, command func(port int) *exec.Cmd) ([]*Engine, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Minute)
	defer cancel()
	ports, err := FreePorts(n)
	if err != nil {
		return nil, err
	}
	engines := make([]*Engine, n)
	for i, port := range ports {
		p, err := e.Start(fmt.Sprintf("%s-%d", kind, i), command(port))
		if err != nil {
			return nil, err
		}
		addr := fmt.Sprintf("127.0.0.1:%d", port)
		engines[i] = &Engine{Process: p, Addr: addr, URL: "http://" + addr}
	}
	begun := time.Now()
	e.say("%s: starting %d engines", kind, n)
	errs := make([]error, n)
	var ready sync.WaitGroup
	for i, engine := range engines {
		ready.Go(func() {
			errs[i] = engine.Await(ctx, 200*time.Millisecond, Answers200(http.DefaultClient, engine.URL+"/health"))
			if errs[i] == nil {
				e.say("%s: ready after %.0f s", engine.Name, time.Since(begun).Seconds())
			} else {
				cancel() // one that fails ends the wait for the others
			}
		})
	}
	stopTicker := e.tick(10*time.Second, func() string {
		return fmt.Sprintf("%s: still starting, %.0f s", kind, time.Since(begun).Seconds())
	})
	ready.Wait()
	stopTicker()
	for _, err := range errs {
		if err != nil {
			return nil, err
		}
	}
	return engines, nil
}

// tick says a line each interval until it is stopped.
func (e *Env) tick(interval time.Duration, line func() string) (stop func()) {
	ticker, done := time.NewTicker(interval), make(chan struct{})
	go func() {
		defer ticker.Stop()
		for {
			select {
			case <-done:
				return
			case <-ticker.C:
				e.say("%s", line())
			}
		}
	}()
	return func() { close(done) }
}

// Addrs is the addresses of engines.
func Addrs(engines []*Engine) []string {
	addrs := make([]string, len(engines))
	for i, e := range engines {
		addrs[i] = e.Addr
	}
	return addrs
}
