package main

import (
	"context"
	"fmt"
	"io"
	"path/filepath"
	"time"

	"github.com/homing-dev/homing/test/env"
)

const (
	poolName = "demo"
	// prefixLength is shorter than every document, and long enough to tell them apart.
	prefixLength = 2048
)

// kind is a way to play the demo.
type kind struct {
	engines int
	start   func(context.Context, *env.Env, int) ([]*env.Engine, error)
	work    workload
	probes  int // pairs of requests that measure what routing adds
}

var kinds = map[string]kind{
	"simulated": {
		engines: 4,
		start: func(ctx context.Context, e *env.Env, n int) ([]*env.Engine, error) {
			// A GPU's proportions: 5,000 tokens of prefill a second, 65,536 tokens of cache.
			return e.Simulated(ctx, n, "--prefill-time-per-token", "200us", "--inter-token-latency", "2ms")
		},
		work:   workload{documents: 40, lengths: []int{600, 1500, 3000, 6000}, conversations: 3, turns: 2, clients: 8, answer: 16},
		probes: 300,
	},
	"vllm": {
		engines: 3,
		start: func(ctx context.Context, e *env.Env, n int) ([]*env.Engine, error) {
			return e.VLLM(ctx, n, env.VLLMOptions{})
		},
		work:   workload{documents: 12, lengths: []int{2600}, conversations: 3, turns: 2, clients: 2, answer: 4},
		probes: 150,
	},
}

// stage is the running parts.
type stage struct {
	kind    kind
	engines []*env.Engine
	files   *env.Files
	homing  *env.Homing
	envoy   *env.Envoy
}

// build starts every part.
func build(ctx context.Context, e *env.Env, k kind) (*stage, error) {
	s := &stage{kind: k}
	var err error
	if s.engines, err = k.start(ctx, e, k.engines); err != nil {
		return nil, err
	}
	if s.files, err = e.Files(); err != nil {
		return nil, err
	}
	port, err := env.FreePort()
	if err != nil {
		return nil, err
	}
	if err := s.files.WritePool(env.Pool{Name: poolName, Port: port, Endpoints: env.Addrs(s.engines)}); err != nil {
		return nil, err
	}
	if err := s.setStrategy(strategies[0]); err != nil {
		return nil, err
	}
	if s.homing, err = e.Homing(ctx, s.files); err != nil {
		return nil, err
	}
	s.envoy, err = e.Envoy(ctx, env.EnvoyOptions{
		Picker: fmt.Sprintf("127.0.0.1:%d", port), Endpoints: env.Addrs(s.engines), Plain: true,
	})
	return s, err
}

func (s *stage) setStrategy(strategy string) error {
	return s.files.WritePolicy(poolName, env.Policy{Strategy: strategy, PrefixLength: prefixLength})
}

// switchTo changes the policy file under the running Homing and waits until a pick was made by it.
func (s *stage) switchTo(ctx context.Context, strategy string) error {
	if err := s.setStrategy(strategy); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	for {
		if err := probe(ctx, s.envoy.URL); err != nil {
			return err
		}
		metrics, err := s.homing.Metrics(ctx)
		if err != nil {
			return err
		}
		if metrics.Sum("homing_picks_total", "strategy", strategy) > 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the policy file changed, but no pick was made by %s: %w", strategy, ctx.Err())
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// invite prints what to try while everything runs.
func (s *stage) invite(w io.Writer) {
	fmt.Fprintf(w, `
Everything is still running. Try:

  # the same beginning, the same engine: compare "cached_tokens"
  curl -s %[1]s/v1/chat/completions -H 'content-type: application/json' \
    -d '{"model": %[2]q, "max_tokens": 8, "messages": [{"role": "user", "content": "'"$(seq -s ' ' 500)"'"}]}'

  curl -s %[3]s/v1/models                     # a plain Envoy cluster, round robin
  curl -s %[4]s | grep homing_picks           # where requests went, and why
  tail -f %[5]s   # Envoy's access log: picked, served
  sed -i 's/strategy: .*/strategy: Random/' %[6]s   # followed live

Ctrl-C ends it all.
`, s.envoy.URL, env.Model, s.envoy.Plain, s.homing.MetricsURL, s.envoy.LogFile(), filepath.Join(s.files.Dir, poolName+"-policy.yaml"))
}
