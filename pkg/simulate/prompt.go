package simulate

import (
	"math/bits"
	"sort"

	"github.com/homing-dev/homing/pkg/prefix"
)

// Span is a run of text: all that a prompt needs to say to be cached and routed. Two prompts share as much
// KV cache as they have equal spans from the start.
type Span struct {
	// ID is the identity of the text, its length included. Spans with other IDs differ from their first
	// token on.
	ID uint64
	// Tokens is the length, 1 or more.
	Tokens int
	// EndsMessage says that a chat message ends with this span.
	EndsMessage bool
}

// Request is a prompt and the answer it will get. It does not change once it is made.
type Request struct {
	// Prompt and Output are in tokens, both 1 or more.
	Prompt, Output int
	// Group is what should stay together, as the workload's maker sees it: a conversation, a shared
	// prefix. Scale events are measured on it; no strategy sees it.
	Group uint64

	spans         []span // of the prompt, and after these the answer as one more
	charsPerToken int
}

// span is a Span in its place.
type span struct {
	chain   uint64 // of this span and all before it
	end     int32  // tokens from the start of the prompt
	message bool
}

// DefaultCharsPerToken is about right for English under the tokenizers of current models.
const DefaultCharsPerToken = 4

// NewRequest is a prompt of these spans that will be answered with output tokens, which answer identifies
// to those prompts that will repeat it.
func NewRequest(prompt []Span, answer uint64, output, charsPerToken int) *Request {
	r := &Request{Output: max(output, 1), spans: make([]span, 0, len(prompt)+1), charsPerToken: charsPerToken}
	chain := uint64(0)
	for _, s := range prompt {
		chain = mix(chain, s.ID)
		r.Prompt += s.Tokens
		r.spans = append(r.spans, span{chain: chain, end: int32(r.Prompt), message: s.EndsMessage}) //nolint:gosec // tokens
	}
	end := int32(r.Prompt + r.Output) //nolint:gosec // tokens
	r.spans = append(r.spans, span{chain: mix(chain, answer), end: end, message: true})
	return r
}

// prompt is the spans without the answer.
func (r *Request) prompt() []span { return r.spans[:len(r.spans)-1] }

// Message is a chat message of a prompt.
type Message struct {
	// ID is the identity of the message and all before it.
	ID     uint64
	Tokens int
}

// Messages are the prompt's, for sending it to real engines.
func (r *Request) Messages() (messages []Message) {
	from := int32(0)
	for i, s := range r.prompt() {
		if s.message || i == len(r.prompt())-1 {
			messages = append(messages, Message{s.chain, int(s.end - from)})
			from = s.end
		}
	}
	return messages
}

// Chars is the length of the prompt's text.
func (r *Request) Chars() int { return r.Prompt * r.charsPerToken }

// Key is the prefix key of the first chars characters, or of the whole prompt if it is shorter.
func (r *Request) Key(chars int) prefix.Key {
	n := int32(min(max(chars/r.charsPerToken, 1), r.Prompt)) //nolint:gosec // tokens
	i := sort.Search(len(r.spans)-2, func(i int) bool { return r.spans[i].end >= n })
	return r.keyIn(i, n)
}

// keyIn is the key of the first n tokens, which end in span i.
func (r *Request) keyIn(i int, n int32) prefix.Key {
	s := r.spans[i]
	if n == s.end {
		return prefix.Key(s.chain)
	}
	return prefix.Key(mix(s.chain, uint64(s.end-n)|1<<32)) // what a span still lacks: its length is part of its identity
}

// Ladder appends the keys where [prefix.Spacing] has them within the first limit characters, and at the end
// of these, as [prefix.Ladder] does.
func (r *Request) Ladder(limit int, rungs []prefix.Rung) []prefix.Rung {
	var spacing prefix.Spacing
	limit = min(limit, r.Chars())
	take := func(i, at int) {
		n := int32(at / r.charsPerToken)                                         //nolint:gosec // tokens
		rungs = append(rungs, prefix.Rung{Bytes: int32(at), Key: r.keyIn(i, n)}) //nolint:gosec // characters
		spacing.Take(at)
	}
	for i, s := range r.prompt() {
		end := min(int(s.end)*r.charsPerToken, limit)
		for next := spacing.Next(); next < end; next = spacing.Next() {
			take(i, next)
		}
		if end == limit {
			take(i, end)
			break
		}
		if spacing.Next() == end || s.message && spacing.Message(end) {
			take(i, end)
		}
	}
	return rungs[:min(len(rungs), prefix.MaxRungs)]
}

// mix is a hash of two words.
func mix(a, b uint64) uint64 {
	hi, lo := bits.Mul64(a^0x9e3779b97f4a7c15, b^0xd1b54a32d192ed03)
	hi, lo = bits.Mul64(hi^lo^0x8cb92ba72f3d8dd7, a^0xabcb5f8a4e3d2b1d)
	return hi ^ lo
}

// blockKeys appends the keys of the first 1, 2, ... blocks of so many tokens, as many as are full and at
// most limit.
func (r *Request) blockKeys(tokens, limit int, keys []uint64) []uint64 {
	i := 0
	for b := 1; b <= limit && b*tokens <= r.Prompt; b++ {
		n := int32(b * tokens) //nolint:gosec // tokens
		for r.spans[i].end < n {
			i++
		}
		keys = append(keys, uint64(r.keyIn(i, n)))
	}
	return keys
}
