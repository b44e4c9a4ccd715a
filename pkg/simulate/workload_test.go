package simulate

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestReadMooncake(t *testing.T) {
	const trace = `{"timestamp": 0, "input_length": 1100, "output_length": 5, "hash_ids": [0, 1, 2]}
{"timestamp": 0, "input_length": 1024, "output_length": 0, "hash_ids": [0, 1]}
{"timestamp": 3000, "input_length": 1100, "output_length": 5, "hash_ids": [0, 1, 2]}
`
	w, err := ReadMooncake(strings.NewReader(trace), "t", 4)
	if err != nil {
		t.Fatal(err)
	}
	var starts []time.Duration
	var r []*Request
	for _, s := range w.Sessions {
		starts = append(starts, s.Start)
		r = append(r, s.Turns[0].Request)
	}
	if want := []time.Duration{0, 1500 * time.Millisecond, 3 * time.Second}; !slices.Equal(starts, want) {
		t.Errorf("starts %v, want the bucket spread: %v", starts, want)
	}
	if r[0].Prompt != 1100 || r[1].Prompt != 1024 || r[1].Output != 1 {
		t.Errorf("prompts of %d and %d tokens, an answer of %d", r[0].Prompt, r[1].Prompt, r[1].Output)
	}
	if got := common(r[0], r[1]); got != 1024 {
		t.Errorf("%d tokens in common, want 1024", got)
	}
	if got := common(r[0], r[2]); got != 1024 {
		t.Errorf("%d tokens in common, want 1024: a block that is not full is nobody else's", got)
	}
}

func TestReadMooncakeRefuses(t *testing.T) {
	for name, trace := range map[string]string{
		"nothing":      "",
		"no JSON":      "hello",
		"no hash ids":  `{"timestamp": 0, "input_length": 1100, "output_length": 5}`,
		"no prompt":    `{"timestamp": 0, "output_length": 5}`,
		"out of order": `{"timestamp": 9, "input_length": 1, "output_length": 5}` + "\n" + `{"timestamp": 3, "input_length": 1, "output_length": 5}`,
	} {
		if _, err := ReadMooncake(strings.NewReader(trace), "t", 4); !errors.Is(err, ErrTrace) {
			t.Errorf("%s: error %v, want %v", name, err, ErrTrace)
		}
	}
}

func TestBuiltins(t *testing.T) {
	for _, b := range Builtins() {
		w, err := b.Make(WorkloadOptions{Seed: 1, Engines: 7})
		if err != nil {
			t.Errorf("%s: %v", b.Name, err)
			continue
		}
		if w.Requests() < 48 || w.Name != b.Name {
			t.Errorf("%s: %d requests, named %s", b.Name, w.Requests(), w.Name)
		}
		halves := w.Take(First).Requests() + w.Take(Second).Requests()
		if halves != w.Requests() {
			t.Errorf("%s: its halves have %d requests, it has %d", b.Name, halves, w.Requests())
		}
		if second := w.Take(Second); second.Sessions[0].Start != 0 {
			t.Errorf("%s: its second half starts at %v, want 0", b.Name, second.Sessions[0].Start)
		}
	}
	if _, err := FindBuiltin("nothing"); err == nil {
		t.Error("a workload of no known name was found")
	}
}

func TestMooncakeTraceIsWhole(t *testing.T) {
	for name, want := range map[string]struct {
		requests int
		tokens   int
	}{"mooncake-conversation": {12031, 144_793_823}, "mooncake-synthetic": {3993, 61_194_628}} {
		b, err := FindBuiltin(name)
		if err != nil {
			t.Fatal(err)
		}
		w, err := b.Make(WorkloadOptions{})
		if err != nil {
			t.Fatal(err)
		}
		tokens := 0
		for _, s := range w.Sessions {
			tokens += s.Turns[0].Request.Prompt
		}
		if len(w.Sessions) != want.requests || tokens != want.tokens {
			t.Errorf("%s: %d requests of %d tokens in all, want %v", name, len(w.Sessions), tokens, want)
		}
	}
}

func TestFasterKeepsOrderAndText(t *testing.T) {
	w := mixed(1)
	fast := w.Faster(2)
	for i, s := range fast.Sessions {
		if s.Start != w.Sessions[i].Start/2 || s.Turns[0].Request != w.Sessions[i].Turns[0].Request {
			t.Fatalf("session %d starts at %v, was %v", i, s.Start, w.Sessions[i].Start)
		}
	}
}

func TestConversationsGrow(t *testing.T) {
	m := newMaker(WorkloadOptions{Seed: 1, Engines: 7, CharsPerToken: 4})
	turns := m.converse(conversation{
		turns: 5, opening: []Span{m.text(100)}, question: func() int { return 10 }, answer: func() int { return 20 }, longest: 1000,
	})
	for i, turn := range turns {
		if want := 110 + 30*i; turn.Request.Prompt != want {
			t.Errorf("turn %d has %d tokens, want %d", i, turn.Request.Prompt, want)
		}
		if i > 0 {
			before := turns[i-1].Request
			if got := common(turn.Request, before); int(got) != before.Prompt {
				t.Errorf("turn %d shares %d tokens with the one before, want all %d", i, got, before.Prompt)
			}
		}
	}
}

func TestZipf(t *testing.T) {
	m := newMaker(WorkloadOptions{Seed: 1})
	z, counts := newZipf(100, 1), map[uint64]int{}
	for range 50_000 {
		i := z.draw(m.rand)
		if i >= 100 {
			t.Fatalf("drew %d of 100", i)
		}
		counts[i]++
	}
	if ratio := float64(counts[0]) / float64(counts[9]); ratio < 8 || ratio > 12 {
		t.Errorf("the first came %.1f times as often as the tenth, want about 10", ratio)
	}
}

func chat(system, question string) string {
	return fmt.Sprintf(`{"model": "m", "messages": [{"role": "system", "content": %q}, {"role": "user", "content": %q}]}`, system, question)
}

func TestReadBodies(t *testing.T) {
	system := strings.Repeat("You are a careful assistant. ", 100) // 2,900 characters
	lines := []string{
		chat(system, "one"),
		`{"custom_id": "x", "url": "/v1/chat/completions", "body": ` + chat(system, "two") + `, "timestamp": 2500, "output_tokens": 7}`,
		"",
		`{"model": "m", "max_tokens": 3, "prompt": "Once upon a time"}`,
		strings.Replace(chat(system, "one"), `"m"`, `"other"`, 1),
	}
	w, err := ReadBodies(strings.NewReader(strings.Join(lines, "\n")), "t", 4)
	if err != nil {
		t.Fatal(err)
	}
	var r []*Request
	for _, s := range w.Sessions {
		r = append(r, s.Turns[0].Request)
	}
	if len(r) != 4 {
		t.Fatalf("%d requests, want 4", len(r))
	}
	if n := r[0].Prompt; n < 720 || n > 750 {
		t.Errorf("%d tokens, want about 2,900 characters / 4", n)
	}
	if got := common(r[0], r[1]); got < 700 || int(got) >= r[0].Prompt {
		t.Errorf("%d of %d tokens in common, want the system message", got, r[0].Prompt)
	}
	if r[0].Key(2048) != r[1].Key(2048) || r[0].Key(8192) == r[1].Key(8192) {
		t.Error("keys within the system message must be equal, and beyond it not")
	}
	if common(r[0], r[3]) != 0 {
		t.Error("prompts for other models share text")
	}
	if r[0].Output != assumedOutput || r[1].Output != 7 || r[2].Output != 3 {
		t.Errorf("answers of %d, %d, %d tokens", r[0].Output, r[1].Output, r[2].Output)
	}
	if got := w.Sessions[1].Start; got != 2500*time.Millisecond {
		t.Errorf("the second starts at %v, want 2.5s", got)
	}
	ends := 0
	for _, s := range r[0].prompt() {
		if s.message {
			ends++
		}
	}
	if ends != 2 {
		t.Errorf("%d message ends, want 2", ends)
	}
}

func TestReadBodiesRefuses(t *testing.T) {
	for name, file := range map[string]string{
		"nothing":   "\n\n",
		"no JSON":   "hello",
		"no prompt": `{"model": "m", "messages": []}`,
		"an array":  `[1]`,
	} {
		if _, err := ReadBodies(strings.NewReader(file), "t", 4); !errors.Is(err, ErrTrace) {
			t.Errorf("%s: error %v, want %v", name, err, ErrTrace)
		}
	}
}

func TestParseEvent(t *testing.T) {
	for text, want := range map[string]Event{
		"10m:add":         {At: 10 * time.Minute, Kind: Add, Factor: 1},
		"90s:remove:2":    {At: 90 * time.Second, Kind: Remove, Engine: 2, Factor: 1},
		"0s:kill:0":       {Kind: Kill, Factor: 1},
		"1h:slow:3:2.5":   {At: time.Hour, Kind: Slow, Engine: 3, Factor: 2.5},
		"1m30s:slow:3:.5": {At: 90 * time.Second, Kind: Slow, Engine: 3, Factor: .5},
		"3m:restart":      {At: 3 * time.Minute, Kind: Restart, Engine: -1, Factor: 1},
		"3m:restart:1":    {At: 3 * time.Minute, Kind: Restart, Engine: 1, Factor: 1},
	} {
		got, err := ParseEvent(text)
		if err != nil || got != want {
			t.Errorf("%s: %+v, %v, want %+v", text, got, err, want)
		}
		again, err := ParseEvent(got.String())
		if err != nil || again != want {
			t.Errorf("%s: written as %s and read as %+v, %v", text, got, again, err)
		}
	}
	for _, text := range []string{"", "add", "10m", "10m:add:1", "10m:kill", "x:add", "-1s:add", "1s:kill:-1", "1s:slow:1", "1s:slow:1:0", "1s:burn:1", "1s:restart:x", "1s:restart:1:2"} {
		if _, err := ParseEvent(text); err == nil {
			t.Errorf("%q was read as an event", text)
		}
	}
}
