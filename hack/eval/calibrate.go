package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/homing-dev/homing/pkg/simulate"
	"github.com/homing-dev/homing/test/env"
)

// completion is a request with a prompt of token ids, so that its length is exact.
type completion struct {
	Model     string `json:"model"`
	Prompt    []int  `json:"prompt"`
	MaxTokens int    `json:"max_tokens"`
	Stream    bool   `json:"stream"`
	IgnoreEOS bool   `json:"ignore_eos"`
}

// calibrate measures what a step takes on these engines: the constants that the simulator needs.
func calibrate(ctx context.Context, engines []*env.Engine) (simulate.Hardware, error) {
	c := &calibration{engines: engines, rand: rand.New(rand.NewPCG(1, 1))}
	hw := simulate.CPU
	c.prefill(ctx, 1, 256) // the first of anything is slow

	// A step that decodes takes Overhead and a little for each sequence and each token it looks back on.
	const far = 4096
	near := c.decode(ctx, 1, 64)
	hw.PerContext = max(0, (c.decode(ctx, 1, far)-near)/far)
	hw.PerSequence = max(0, (c.decode(ctx, 4, 64)-near)/3)
	hw.Overhead, hw.Weights, hw.Reduce, hw.ReducePerToken = near-hw.PerSequence, 0, 0, 0

	// A prompt takes the way to the scheduler, its steps, and for each token some more, the more the longer.
	way := c.prefill(ctx, 1, 16) - near
	one, four := c.prefill(ctx, 1, 1024)-way-near, c.prefill(ctx, 1, 4096)-way-4*near
	// one = 1024 b + 1024^2/2 c; four = 4096 b + 4096^2/2 c
	hw.PerAttention = max(0, (four-4*one)/(4096*4096/2-4*1024*1024/2))
	hw.PerToken = (one - hw.PerAttention*1024*1024/2) / 1024

	alone := c.prefill(ctx, 1, 2048)
	hw.Contention = nil
	for k := range engines {
		hw.Contention = append(hw.Contention, max(1, c.prefill(ctx, k+1, 2048)/alone))
	}
	hw.Frontend = time.Duration((c.chat(ctx) - near) * float64(time.Millisecond))
	return hw, c.err
}

// calibration is measurements in milliseconds. After the first error they are all 0.
type calibration struct {
	engines []*env.Engine
	rand    *rand.Rand
	err     error
}

// tokens is a prompt that no cache holds.
func (c *calibration) tokens(n int) []int {
	p := make([]int, n)
	for i := range p {
		p[i] = 100 + c.rand.IntN(300) // that many are in any vocabulary
	}
	return p
}

// timing is when a stream's first token came and its last, in milliseconds after it was sent.
type timing struct{ first, last float64 }

// send sends prompts at once, the i-th to the engine that to names, and returns the median timing.
func (c *calibration) send(ctx context.Context, n, tokens, output int, to func(i int) *env.Engine) timing {
	var firsts, lasts []float64
	for range 5 {
		var mu sync.Mutex
		var all sync.WaitGroup
		for i := range n {
			prompt := c.tokens(tokens)
			all.Go(func() {
				t, err := c.complete(ctx, to(i), prompt, output)
				mu.Lock()
				defer mu.Unlock()
				if err != nil {
					c.err = err
				}
				firsts, lasts = append(firsts, t.first), append(lasts, t.last)
			})
		}
		all.Wait()
		if c.err != nil {
			return timing{}
		}
	}
	return timing{median(firsts), median(lasts)}
}

func (c *calibration) complete(ctx context.Context, e *env.Engine, prompt []int, output int) (t timing, err error) {
	begun := time.Now()
	first, err := stream(ctx, e.URL+"/v1/completions", completion{env.Model, prompt, output, true, true})
	return timing{ms(first), ms(time.Since(begun))}, err
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// prefill is how long it takes to the first token of a prompt on each of the first n engines at once.
func (c *calibration) prefill(ctx context.Context, n, tokens int) float64 {
	return c.send(ctx, n, tokens, 1, func(i int) *env.Engine { return c.engines[i] }).first
}

// decode is how long each further token takes, with so many sequences at one engine.
func (c *calibration) decode(ctx context.Context, sequences, tokens int) float64 {
	const output = 65
	t := c.send(ctx, sequences, tokens, output, func(int) *env.Engine { return c.engines[0] })
	return (t.last - t.first) / (output - 1)
}

// chat is how long a short chat's first token takes: a template and a tokenizer come before the scheduler.
func (c *calibration) chat(ctx context.Context) float64 {
	var took []float64
	for range 9 {
		t, err := stream(ctx, c.engines[0].URL+"/v1/chat/completions",
			chat{Model: env.Model, Messages: []message{{"user", "hello"}}, MaxTokens: 1, Stream: true})
		if err != nil {
			c.err = err
			return 0
		}
		took = append(took, ms(t))
	}
	return median(took)
}

// describe is the engines' constants in words.
func (m *Measured) describe() string {
	h := m.Hardware
	return fmt.Sprintf("%g of a processor for each engine: a step %.1f ms, and %.3f ms a token, %.2g ms a token and token before it; "+
		"decoding %.2f ms a sequence, %.2g ms a token of context; front end %v; with 1, 2 .. engines at work %.2f times as long",
		m.Share, h.Overhead, h.PerToken, h.PerAttention, h.PerSequence, h.PerContext, h.Frontend.Round(time.Millisecond), h.Contention)
}
