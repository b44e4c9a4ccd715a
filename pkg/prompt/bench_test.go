package prompt

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
)

// chatBody is a chat of about size bytes: a system prompt, then turns, in the order that the openai
// client sends members. Like real text it has line ends, quotes and some characters beyond ASCII.
func chatBody(size int) []byte {
	words := strings.Fields("the of prefix cache model token served \"quoted\" naïve request engine, and warm. to in a is")
	rng := rand.New(rand.NewPCG(1, 2))
	type message struct {
		Role    string `json:"role"`
		Content string `json:"content"`
	}
	var messages []message
	for total := 0; total < size; {
		var content strings.Builder
		for content.Len() < 1500 {
			content.WriteString(words[rng.IntN(len(words))])
			content.WriteByte(" \n"[min(rng.IntN(12)/11, 1)])
		}
		role := []string{"user", "assistant"}[len(messages)%2]
		if len(messages) == 0 {
			role = "system"
		}
		messages = append(messages, message{role, content.String()})
		total += content.Len() + 60
	}
	body, err := json.Marshal(struct {
		Messages []message      `json:"messages"`
		Model    string         `json:"model"`
		Tools    []any          `json:"tools"`
		Options  map[string]any `json:"stream_options"`
	}{messages, "llama-70b", []any{}, map[string]any{"include_usage": true}})
	if err != nil {
		panic(err)
	}
	return body
}

func benchmarkRead(b *testing.B, path string, o Options, body []byte, chunk int) {
	b.Helper()
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	var r Reader
	for b.Loop() {
		r.Reset(path, "", o)
		for p := body; len(p) > 0; p = p[min(chunk, len(p)):] {
			if r.Write(p[:min(chunk, len(p))]) {
				break
			}
		}
		r.Close()
		if !r.Prompt().HasText {
			b.Fatal("no text")
		}
	}
}

// BenchmarkChat reads chats, and encoding/json reads the same ones.
func BenchmarkChat(b *testing.B) {
	for _, size := range []int{32 << 10, 1 << 20} {
		body := chatBody(size)
		for _, length := range []int{4096, 65536} {
			o := Options{PrefixLength: length}
			b.Run(fmt.Sprintf("size=%dKiB/length=%d/whole", size>>10, length), func(b *testing.B) {
				benchmarkRead(b, pathChat, o, body, len(body))
			})
			b.Run(fmt.Sprintf("size=%dKiB/length=%d/chunks", size>>10, length), func(b *testing.B) {
				benchmarkRead(b, pathChat, o, body, 16<<10)
			})
		}
		b.Run(fmt.Sprintf("size=%dKiB/encodingjson", size>>10), func(b *testing.B) {
			b.SetBytes(int64(len(body)))
			b.ReportAllocs()
			for b.Loop() {
				var v any
				if err := json.Unmarshal(body, &v); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkRaw: the key of a raw prefix costs the same whatever follows it.
func BenchmarkRaw(b *testing.B) {
	for _, size := range []int{10 << 10, 10 << 20} {
		body := bytes.Repeat([]byte("raw bytes "), size/10)
		b.Run(fmt.Sprintf("behind=%dKiB", size>>10), func(b *testing.B) {
			benchmarkRead(b, "/invocations", Options{PrefixLength: 8192}, body, 16<<10)
		})
	}
}

// BenchmarkSkip reads on after the text is in hand: more chat, a schema's many short strings, numbers.
func BenchmarkSkip(b *testing.B) {
	const size = 1 << 20
	start := `{"messages":[{"role":"user","content":"` + strings.Repeat("x", 1024) + `"}],"later":`
	schema := `{"type":"object","properties":{"city":{"type":"string","description":"The \"city\" to look at"},"n":{"type":"integer"}}},`
	for _, c := range []struct{ name, later string }{
		{"chat", string(chatBody(size))},
		{"schemas", "[" + strings.Repeat(schema, size/len(schema)) + "0]"},
		{"numbers", "[" + strings.Repeat("-0.123456,", size/10) + "0]"},
		{"media", `"` + strings.Repeat("iVBORw0KGgoAAAAN", size/16) + `"`},
	} {
		b.Run(c.name, func(b *testing.B) {
			body := []byte(start + c.later + "}")
			benchmarkRead(b, pathChat, Options{PrefixLength: 1024, MaxInspectBytes: 2 * size}, body, 16<<10)
		})
	}
}

// BenchmarkHash reads what is hashed and not counted: tools, and an image before the text.
func BenchmarkHash(b *testing.B) {
	const size = 256 << 10
	tool := `{"type":"function","function":{"name":"get_weather","description":"Looks up the weather.\nOnly for cities.","parameters":{"type":"object","properties":{"city":{"type":"string","description":"The city to look at"},"days":{"type":"integer","minimum":1}},"required":["city"]}}}`
	text := `{"role":"user","content":[{"type":"text","text":"` + strings.Repeat("x", 1024) + `"}]}`
	image := `{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,` + strings.Repeat("iVBORw0KGgoAAAAN", size/16) + `"}}]}`
	for _, c := range []struct{ name, body string }{
		{"tools", `{"tools":[` + strings.Repeat(tool+",", size/len(tool)) + tool + `],"messages":[` + text + `]}`},
		{"image", `{"messages":[` + image + "," + text + `]}`},
	} {
		b.Run(c.name, func(b *testing.B) {
			benchmarkRead(b, pathChat, Options{}, []byte(c.body), 16<<10)
		})
	}
}
