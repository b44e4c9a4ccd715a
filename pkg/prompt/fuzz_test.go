package prompt

import (
	"encoding/json"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func newRand(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 0)) }

// FuzzSpelling: one conversation has one key in every dialect and spelling, and another has another.
func FuzzSpelling(f *testing.F) {
	for seed := range uint64(50) {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, seed uint64) {
		rng := newRand(seed)
		c := newConversation(rng)
		first := c.spell(rng, Chat)
		o := Options{PrefixLength: 1 + rng.IntN(80), MaxInspectBytes: 1 << 20}
		want := keyOf(t, first, o)
		for _, d := range []Dialect{Chat, Responses, Messages} {
			r := c.spell(rng, d)
			if !json.Valid([]byte(r.body)) {
				t.Fatalf("the generator wrote bad JSON: %s", r.body)
			}
			if diff := cmp.Diff(want, keyOf(t, r, o)); diff != "" {
				t.Fatalf("at %d: %s %s differs from %s (-first +this):\n%s", o.PrefixLength, r.path, r.body, first.body, diff)
			}
		}
		for what, other := range c.others(rng) {
			d := []Dialect{Chat, Responses, Messages}[rng.IntN(3)]
			if r := other.spell(rng, d); keyOf(t, r, Options{}) == keyOf(t, c.spell(rng, Chat), Options{}) {
				t.Fatalf("another %s: %s %s has the key of %s", what, r.path, r.body, first.body)
			}
		}
	})
}

// others are conversations that differ from c in one thing each.
func (c conversation) others(rng *rand.Rand) map[string]conversation {
	clone := func(change func(*conversation)) conversation {
		o := c
		o.turns, o.tools = slices.Clone(c.turns), slices.Clone(c.tools)
		change(&o)
		return o
	}
	at := rng.IntN(len(c.turns))
	others := map[string]conversation{
		"model":            clone(func(o *conversation) { o.model += "x" }),
		"cache_salt":       clone(func(o *conversation) { o.salt += "x" }),
		"prompt_cache_key": clone(func(o *conversation) { o.cacheKey += "x" }),
		"system prompt":    clone(func(o *conversation) { o.system += "x" }),
		"text":             clone(func(o *conversation) { o.turns[at].text += "x" }),
		"turn":             clone(func(o *conversation) { o.turns = append(o.turns, turn{role: "user", text: "x"}) }),
		"tool":             clone(func(o *conversation) { o.tools = append(o.tools, function{name: "x", json: "{}"}) }),
	}
	if t := c.turns[at]; len(t.calls) > 0 {
		others["call"] = clone(func(o *conversation) {
			o.turns[at].calls = append([]function{{name: t.calls[0].name + "x", json: "{}"}}, t.calls[1:]...)
		})
	}
	if c.turns[at].image != "" {
		others["image"] = clone(func(o *conversation) { o.turns[at].image += "AAAA" })
	}
	return others
}

// FuzzCuts: whatever a body is, it is read alike in any chunks, and decides at the same byte.
func FuzzCuts(f *testing.F) {
	for _, body := range []string{
		"", "{}", `{"messages":[{"role":"user","content":"hi"}]}`, "\xef\xbb\xbf{}", "{}{}", `{"a":"\ud800`,
		`{"messages":[{"content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,AAAA"}},"é\ud83d\ude00\n"],"role":"tool"}],"model":"m"}`,
		`{"input":[{"type":"function_call","name":"f","arguments":"{\"a\": 1}"},{"type":"custom_tool_call","input":"x"},{"role":"assistant","content":"x"}],"instructions":"be \u0062rief"}`,
		`{"messages":[{"role":"user","content":[{"type":"tool_result","content":[{"type":"image","source":{"data":"AA"}}]}]}],"system":[{"text":"x-anthropic-billing-header: 1\nx","type":"text"}]}`,
		`{"prompt":[[1,2,3],[4]],"tools":[{"type":"function","function":{"name":"f","parameters":{"a":["\\\""]}}}]}`,
		`{"skipped":{"a":[1,"\"]}\\",{"b":"` + strings.Repeat("long ", 30) + `"}]},"prompt":"` + "\xe2\x82" + `x"}`,
		string(pack(f, "gzip", []byte(`{"prompt":"hi"}`))), string(pack(f, "zstd", []byte(`{"prompt":"hi"}`))),
	} {
		for d := range numDialects {
			f.Add([]byte(body), uint8(d), uint8(10), uint8(40), uint64(1))
		}
	}
	paths := []string{"/invocations", pathChat, pathCompletions, pathResponses, pathEmbeddings, pathMessages}
	f.Fuzz(func(t *testing.T, body []byte, path, length, inspect uint8, seed uint64) {
		o := Options{PrefixLength: 1 + int(length), MaxInspectBytes: 1 + int(inspect)}
		encoding := []string{"", "gzip", "br"}[seed%3]
		checkChunks(t, paths[int(path)%len(paths)], encoding, body, o, newRand(seed))
	})
}

// TestCutsOfSpellings does the same with bodies that mean something, some of them damaged.
func TestCutsOfSpellings(t *testing.T) {
	for seed := range uint64(500) {
		t.Run(strconv.FormatUint(seed, 10), func(t *testing.T) {
			rng := newRand(seed)
			r := newConversation(rng).spell(rng, []Dialect{Chat, Responses, Messages}[rng.IntN(3)])
			body := []byte(r.body)
			switch rng.IntN(6) {
			case 0:
				body = body[:rng.IntN(len(body))]
			case 1:
				body[rng.IntN(len(body))] = `"\{}[],: 1`[rng.IntN(10)]
			}
			o := Options{PrefixLength: 1 + rng.IntN(80), MaxInspectBytes: 1 + rng.IntN(len(r.body))}
			defer func() {
				if t.Failed() {
					t.Logf("%s %q %+v", r.path, body, o)
				}
			}()
			checkChunks(t, r.path, "", body, o, rng)
		})
	}
}

func checkChunks(t *testing.T, path, encoding string, body []byte, o Options, rng *rand.Rand) {
	t.Helper()
	whole := readEncoded(path, encoding, body, len(body)+1, o)
	checkPrompt(t, whole, o)
	var bytewise, random Reader
	bytewise.Reset(path, encoding, o)
	random.Reset(path, encoding, o)
	longest := 1 + rng.IntN(100)
	for rest := body; len(rest) > 0; {
		n := 1 + rng.IntN(min(len(rest), longest))
		done, known := random.Write(rest[:n]), false
		for _, c := range rest[:n] {
			known = bytewise.Write([]byte{c})
		}
		if done != known {
			t.Fatalf("a chunk is done: %v; its bytes: %v", done, known)
		}
		rest = rest[n:]
	}
	bytewise.Close()
	random.Close()
	if diff := cmp.Diff(whole, bytewise.Prompt()); diff != "" {
		t.Fatalf("in bytes (-whole +bytes):\n%s", diff)
	}
	if diff := cmp.Diff(whole, random.Prompt()); diff != "" {
		t.Fatalf("in chunks (-whole +chunks):\n%s", diff)
	}
}

func checkPrompt(t *testing.T, p Prompt, o Options) {
	t.Helper()
	if p.RawReason != NotRaw {
		if len(p.Text) > o.PrefixLength || p.Cut != (len(p.Text) == o.PrefixLength) {
			t.Fatalf("a raw text of %d bytes, cut: %v", len(p.Text), p.Cut)
		}
		return
	}
	if p.Dialect == Completions || p.Dialect == Embeddings {
		return // token ids are not characters
	}
	marks := 0
	for at := NextMessage(p.Text, 0); at < len(p.Text); at = NextMessage(p.Text, at) {
		marks++
	}
	end, _ := cut(p.Text, o.PrefixLength)
	if marks > maxMarks || end != len(p.Text) || len(p.Text) > 4*o.PrefixLength+maxMarks*markSize {
		t.Fatalf("%d bytes of text with %d messages, %d of them in the key", len(p.Text), marks, end)
	}
}

// FuzzSkip: a value is passed over as a slow reader passes over it.
func FuzzSkip(f *testing.F) {
	f.Add([]byte(`{"a":[1,"\"]}\\",{"b":"`+strings.Repeat("long ", 30)+`"}]},x`), uint8(7))
	f.Add([]byte(strings.Repeat(`["",{"\\":"]"},`, 20)), uint8(63))
	f.Add([]byte(strings.Repeat("\\", 70)+`"]`), uint8(64))
	f.Fuzz(func(t *testing.T, p []byte, size uint8) {
		want := slowSkip(p)
		s := skipper{depth: 1}
		got := 0
		for rest := p; len(rest) > 0; {
			chunk := rest[:min(len(rest), 1+int(size))]
			n, ended := s.run(chunk)
			if got += n; ended {
				break
			}
			if n < len(chunk) {
				t.Fatalf("stopped at %d", got)
			}
			rest = rest[n:]
		}
		if got != want {
			t.Fatalf("%q ends at %d, not at %d", p, got, want)
		}
	})
}

func slowSkip(p []byte) int {
	depth, str, escape := 1, false, false
	for i, c := range p {
		switch {
		case escape:
			escape = false
		case c == '\\':
			escape = true
		case c == '"':
			str = !str
		case !str && (c == '{' || c == '['):
			depth++
		case !str && (c == '}' || c == ']'):
			depth--
		}
		if depth == 0 {
			return i + 1
		}
	}
	return len(p)
}
