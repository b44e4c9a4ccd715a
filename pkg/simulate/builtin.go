package simulate

import (
	"fmt"
	"strings"
)

// Builtin is a workload that comes with the program.
type Builtin struct {
	Name string
	// About says in a line what it is.
	About string
	make  func(o WorkloadOptions) (*Workload, error)
}

// WorkloadOptions are what all builtin workloads have in common.
type WorkloadOptions struct {
	// Seed makes another workload of the same kind. Traces have none.
	Seed uint64
	// Engines is how many engines it will meet: synthetic workloads scale with them.
	Engines       int
	CharsPerToken int
}

// Builtins are the workloads that come with the program.
func Builtins() []Builtin {
	return []Builtin{
		traceOf("mooncake-conversation", "an hour of a chat service: 12,031 requests, 12,000 tokens on average (Mooncake, FAST 2025)", "mooncake_conversation_trace.jsonl.zst"),
		traceOf("mooncake-synthetic", "17 minutes of long documents asked about more than once: 3,993 requests, 15,000 tokens (Mooncake, FAST 2025)", "mooncake_synthetic_trace.jsonl.zst"),
		{"sagemaker-long", "550 shared prefixes of 8,000 tokens; fitted, with --frontend 80ms --prefix-lengths 1024, to SageMaker's published figures", sagemakerLong},
		{"sagemaker-short", "1,000 conversations in the manner of ShareGPT; fitted, with the same flags, to those for short prompts", sagemakerShort},
		{"shared-system", "ten minutes of chats under one system prompt of 2,000 tokens", sharedSystem},
		{"zipf-prefixes", "3,000 prefixes of 4,000 tokens, more than caches hold, by Zipf's law", zipfPrefixes},
		{"flash-hot", "400 prefixes of 6,000 tokens, one of which gets two thirds of the traffic for three minutes", flashHot},
		{"agents", "agent loops of five kinds: 5 to 30 steps that each add a tool's answer", agents},
		{"ten-chats", "ten conversations under one short system prompt, four clients; meant for --hardware cpu-small-llama --engines 3", tenChats(270, 4)},
		{"twelve-prefixes", "48 requests for 12 prefixes of 2,600 tokens, two clients; meant for the same", groupsOf(12, 2600, 48, 2, 0)},
		{"skewed-prefixes", "96 requests for 16 prefixes of 1,500 tokens by Zipf's law, four clients; meant for the same", groupsOf(16, 1500, 96, 4, 1)},
		{"kv-pressure", "72 requests for 30 prefixes of 2,600 tokens, more than the caches hold, three clients; meant for the same", groupsOf(30, 2600, 72, 3, 0.7)},
		{"few-agents", "nine agent loops of three kinds, each of 5 to 10 steps, four at a time; meant for the same", fewAgents},
		{"quiet-chats", "ten conversations under one system prompt of 1,500 tokens, one client; meant for the same", tenChats(1500, 1)},
	}
}

func traceOf(name, about, file string) Builtin {
	return Builtin{Name: name, About: about, make: func(o WorkloadOptions) (*Workload, error) {
		return builtinTrace(file, name, o.CharsPerToken)
	}}
}

// FindBuiltin is the builtin workload of that name.
func FindBuiltin(name string) (Builtin, error) {
	var names []string
	for _, b := range Builtins() {
		if b.Name == name {
			return b, nil
		}
		names = append(names, b.Name)
	}
	return Builtin{}, fmt.Errorf("unknown workload %q: want one of %s", name, strings.Join(names, ", "))
}

// Make makes the workload.
func (b Builtin) Make(o WorkloadOptions) (*Workload, error) {
	if o.CharsPerToken <= 0 {
		o.CharsPerToken = DefaultCharsPerToken
	}
	w, err := b.make(o)
	if err != nil {
		return nil, fmt.Errorf("workload %s: %w", b.Name, err)
	}
	w.Name, w.About = b.Name, b.About
	return w, nil
}
