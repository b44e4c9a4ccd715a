package simulate

import "time"

// Hardware is what an engine runs on: the constants of its step time and its memory. Times are in
// milliseconds, as the formula in [Hardware.step] has them.
type Hardware struct {
	Name string
	// Overhead is a step's fixed cost: scheduling, launching, sampling.
	Overhead float64
	// Weights is the cost of streaming the weights once, the least that a step's matrices take;
	// PerToken their cost for each token once compute is the bound.
	Weights, PerToken float64
	// Reduce is the least that tensor parallelism's all-reduces take, ReducePerToken their cost for a token.
	Reduce, ReducePerToken float64
	// PerContext is the cost of reading one token of context for a decoding sequence, PerSequence that of
	// a decoding sequence itself.
	PerContext, PerSequence float64
	// PerAttention is the cost of a prompt token attending to one token before it.
	PerAttention float64
	// Frontend is what a request takes before it reaches the scheduler: HTTP, template, tokenizer.
	Frontend time.Duration
	// Contention, unless nil, is of engines that share processors: how many times as long a step takes with one
	// engine at work, with two, and so on; the last value holds for more.
	Contention []float64
	Memory
}

// Memory is an engine's KV cache and its scheduler's limits.
type Memory struct {
	// KVTokens is what the cache holds, in tokens; BlockTokens is how many make a block.
	KVTokens, BlockTokens int
	// StepTokens is the token budget of a step, Sequences how many may run at once.
	StepTokens, Sequences int
}

// Llama70B is Llama-3.1-70B in BF16, tensor parallel over the eight H100 of a p5.48xlarge, under vLLM.
//
// The constants are estimates, not measurements. What each amounts to, of the hardware's peak:
//   - Weights: 141 GB over 8 x 3.35 TB/s is 5.3 ms, so 72 % of the bandwidth.
//   - PerToken: 2 x 70.6 GFLOP over 8 x 989 TFLOP/s is 0.018 ms, so 64 % of the arithmetic.
//   - Reduce: 160 all-reduces, 8 us each; ReducePerToken: 16 KiB each, at 228 GB/s.
//   - PerContext: 320 KiB of keys and values over 8 x 3.35 TB/s, at 72 %.
//   - PerAttention: 4 x 80 layers x 8192 FLOP over 8 x 989 TFLOP/s, at 45 %.
//   - Overhead, PerSequence and Frontend have no such bound: they are guesses.
//   - KVTokens: 0.9 x 8 x 80 GB less the weights is 1.33 M x 320 KiB, and with GiB 1.46 M less activations.
//   - StepTokens, Sequences, BlockTokens: as vLLM's server has them on such a GPU.
//
// [Study.Sensitivity] says how much an answer depends on them.
var Llama70B = Hardware{
	Name:     "Llama-3.1-70B BF16, TP8 on p5.48xlarge (8x H100)",
	Overhead: 4.3,
	Weights:  7.3, PerToken: 0.028,
	Reduce: 1.3, ReducePerToken: 0.0115,
	PerContext: 1.7e-5, PerSequence: 0.01,
	PerAttention: 7.3e-7,
	Frontend:     15 * time.Millisecond,
	Memory:       Memory{KVTokens: 1_350_000, BlockTokens: 16, StepTokens: 8192, Sequences: 1024},
}

// CPU is the vLLM 0.32 that Homing's tests run, an engine of one thread with 0.55 of a processor to itself, with a
// Llama of 6 layers and random weights and KV for 17,056 tokens. The costs were measured there, by
// `make eval-vllm`; on another machine they are others.
var CPU = Hardware{
	Name:       "vLLM on one CPU thread, a small Llama",
	Overhead:   7.7,
	PerToken:   0.2,
	PerContext: 1.3e-3, PerSequence: 0.85,
	PerAttention: 1.2e-4,
	Frontend:     8 * time.Millisecond,
	Memory:       Memory{KVTokens: 17_056, BlockTokens: 32, StepTokens: 1024, Sequences: 16},
}

// Hardwares are those that the program knows, by a short name.
func Hardwares() map[string]Hardware {
	return map[string]Hardware{"h100x8-llama-70b": Llama70B, "cpu-small-llama": CPU}
}

// work is what one step does.
type work struct {
	tokens    int // of prompts and decoding sequences
	decoding  int // sequences
	context   int // tokens that the decoding sequences attend to
	attention int // sum over chunks of chunk x (done + chunk/2)
}

// step is how long an engine takes for a step.
func (h *Hardware) step(w work) time.Duration {
	n := float64(w.tokens)
	// Conversions keep products from being fused into sums, which would round otherwise on some machines.
	ms := h.Overhead + max(h.Weights, h.PerToken*n) + max(h.Reduce, h.ReducePerToken*n) +
		float64(h.PerContext*float64(w.context)) + float64(h.PerSequence*float64(w.decoding)) +
		float64(h.PerAttention*float64(w.attention))
	return time.Duration(ms * float64(time.Millisecond))
}

// Scale is the hardware with each cost of a step multiplied by f, for sensitivity runs.
func (h Hardware) Scale(f float64) Hardware {
	for _, cost := range []*float64{
		&h.Overhead, &h.Weights, &h.PerToken, &h.Reduce, &h.ReducePerToken, &h.PerContext, &h.PerSequence, &h.PerAttention,
	} {
		*cost *= f
	}
	return h
}
