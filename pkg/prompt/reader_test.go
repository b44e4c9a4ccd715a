package prompt

import (
	"bytes"
	"encoding/base64"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"testing"
	"unicode/utf16"

	"github.com/google/go-cmp/cmp"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"

	"github.com/homing-dev/homing/pkg/prefix"
)

func TestDialects(t *testing.T) {
	for path, want := range map[string]Dialect{
		"/v1/chat/completions":                       Chat,
		"/team-a/v1/chat/completions?api-version=1":  Chat,
		"/v1/completions":                            Completions,
		"/v1/responses":                              Responses,
		"/v1/embeddings?x=/v1/messages":              Embeddings,
		"/v1/messages":                               Messages,
		"/v1/messages/count_tokens":                  Messages,
		"/v1/chat/completions/":                      Raw,
		"/v1/Completions":                            Raw,
		"/completions":                               Raw,
		"/invocations":                               Raw,
		"/endpoints/a/invocations?x=/v1/completions": Raw,
		"/endpoints/a/invocations-response-stream":   Raw,
		"/v1/models":                                 Raw,
		"":                                           Raw,
		"?/v1/messages":                              Raw,
		"https://example.com/v1/responses?stream=true#a": Responses,
	} {
		if got := dialectOf(path); got != want {
			t.Errorf("%q is %v, not %v", path, got, want)
		}
	}
}

func TestNames(t *testing.T) {
	seen := map[string]bool{}
	for _, d := range Dialects() {
		seen[d.String()] = true
	}
	for _, r := range RawReasons() {
		seen[r.String()] = true
	}
	if len(seen) != int(numDialects)+int(numRawReasons)-1 || seen["unknown"] || Dialect(99).String() != "unknown" {
		t.Errorf("names: %v", seen)
	}
}

func TestRaw(t *testing.T) {
	const ok = `{"messages":[{"role":"user","content":"hi"}]}`
	deep := strings.Repeat(`{"a":[`, 20000)
	utf16Body := func() string {
		var b strings.Builder
		b.WriteString("\xff\xfe")
		for _, u := range utf16.Encode([]rune(ok)) {
			b.WriteByte(byte(u))
			b.WriteByte(byte(u >> 8))
		}
		return b.String()
	}()
	for _, c := range []struct {
		name, path, body string
		want             RawReason
	}{
		{"a chat", pathChat, ok, NotRaw},
		{"another path", "/invocations", ok, RawPath},
		{"another path, empty", "/v1/models", "", RawPath},
		{"empty", pathChat, "", RawEmpty},
		{"white space", pathChat, " \r\n\t", RawEmpty},
		{"only a byte order mark", pathChat, "\xef\xbb\xbf", RawEmpty},
		{"half a byte order mark", pathChat, "\xef\xbb", RawNotObject},
		{"half a byte order mark and an object", pathChat, "\xef\xbb" + ok, RawNotObject},
		{"an array", pathChat, "[" + ok + "]", RawNotObject},
		{"a string", pathChat, `"hi"`, RawNotObject},
		{"text", pathChat, "hi", RawNotObject},
		{"utf-16", pathChat, utf16Body, RawNotObject},
		{"utf-16 without a mark", pathChat, utf16Body[2:], RawSyntax},
		{"multipart", pathChat, "--x\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\n" + ok + "\r\n--x--\r\n", RawNotObject},
		{"a form", pathChat, "messages=hi", RawNotObject},
		{"two lines of JSON", pathChat, ok + "\n" + ok, RawTrailing},
		{"a comma after", pathChat, ok + ",", RawTrailing},
		{"white space after", pathChat, ok + " \n", NotRaw},
		{"truncated in a name", pathChat, `{"messa`, RawTruncated},
		{"truncated in a string", pathChat, ok[:len(ok)-5], RawTruncated},
		{"truncated before the end", pathChat, ok[:len(ok)-1], RawTruncated},
		{"truncated in an escape", pathChat, `{"a":"\`, RawTruncated},
		{"truncated in a number", pathChat, `{"a":1`, RawTruncated},
		{"a missing colon", pathChat, `{"a" 1}`, RawSyntax},
		{"a missing comma", pathChat, `{"a":1 "b":2}`, RawSyntax},
		{"a comma too many", pathChat, `{"a":1,}`, RawSyntax},
		{"a comma too many in an array", pathChat, `{"messages":[{"role":"user"},]}`, RawSyntax},
		{"no name", pathChat, `{a:1}`, RawSyntax},
		{"single quotes", pathChat, `{'a':1}`, RawSyntax},
		{"no value", pathChat, `{"a":}`, RawSyntax},
		{"a wrong literal", pathChat, `{"a":nul}`, RawSyntax},
		{"a wrong number", pathChat, `{"a":1a}`, RawSyntax},
		{"a wrong bracket", pathChat, `{"messages":[}`, RawSyntax},
		{"what Python takes for numbers", pathChat, `{"a":NaN,"b":-Infinity,"c":1e5}`, NotRaw},
		{"20,000 deep", pathChat, `{"x":` + deep + "1" + strings.Repeat("]}", 20000) + `,` + ok[1:], NotRaw},
		{"20,000 deep, truncated", pathChat, `{"x":` + deep, RawTruncated},
		{"20,000 deep in a tool", pathChat, `{"tools":[{"x":` + deep + "1" + strings.Repeat("]}", 20000) + `}],` + ok[1:], NotRaw},
		{"20,000 deep in content", pathChat, `{"messages":[{"content":` + strings.Repeat(`[{"content":`, 20000) + "1" + strings.Repeat("}]", 20000) + `}]}`, NotRaw},
	} {
		got := readAll(t, c.path, c.body, Options{})
		if got.RawReason != c.want {
			t.Errorf("%s: %v, not %v", c.name, got.RawReason, c.want)
		}
		if c.want == NotRaw {
			if got.Dialect != Chat {
				t.Errorf("%s: dialect %v", c.name, got.Dialect)
			}
			continue
		}
		head := c.body[:min(len(c.body), DefaultPrefixLength)]
		want := Prompt{RawReason: c.want, Text: []byte(head), HasText: head != "", Cut: len(head) == DefaultPrefixLength}
		if diff := cmp.Diff(want, got, cmp.Transformer("text", func(b []byte) string { return string(b) })); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.name, diff)
		}
	}
}

// decide gives the reader body byte by byte, and says after how many it was done, or -1.
func decide(r *Reader, path, body string, o Options) int {
	r.Reset(path, "", o)
	for i := range len(body) {
		if r.Write([]byte{body[i]}) {
			return i + 1
		}
	}
	r.Close()
	return -1
}

func TestWhenItIsKnown(t *testing.T) {
	o := Options{PrefixLength: 10, MaxInspectBytes: 100}
	user := func(s string) string { return `{"role":"user","content":"` + s + `"}` }
	short, long := user("0123456789"), user(strings.Repeat("x", 200))
	image := `{"image_url":"data:;base64,` + strings.Repeat("A", 2000) + `"}`
	for _, c := range []struct {
		name, path, body string
		want             int
	}{
		{"raw", "/invocations", strings.Repeat("x", 50), 10},
		{"raw and short", "/invocations", strings.Repeat("x", 9), -1},
		{"no object", pathChat, "[" + strings.Repeat("1,", 50), 10},
		{"a syntax error later", pathChat, `{"messages":[` + short + `]!}`, len(`{"messages":[` + short + `]!`)},
		{"at its end", pathChat, `{"messages":[` + short + `]}`, -1},
		{"at MaxInspectBytes", pathChat, `{"messages":[` + short + "," + long + `]}`, 100},
		{"white space at its end", pathChat, `{"messages":[` + short + `]}` + strings.Repeat(" ", 100), 100},
		{"too little text at MaxInspectBytes", pathChat, `{"x":"` + strings.Repeat("x", 200) + `","messages":[` + short + `]}`,
			len(`{"x":"` + strings.Repeat("x", 200) + `","messages":[{"role":"user","content":"0123456789`)},
		{"with a front", pathMessages, `{"x":"` + strings.Repeat("x", 200) + `","messages":[` + user("0123") + `],"system":"456789xxxxxx"}`,
			len(`{"x":"` + strings.Repeat("x", 200) + `","messages":[` + user("0123") + `],"system":"456789`)},
		{"tokens", pathCompletions, `{"x":"` + strings.Repeat("x", 200) + `","prompt":[1,2,345,6,7]}`,
			len(`{"x":"` + strings.Repeat("x", 200) + `","prompt":[1,2,345,`)},
		{"too little text at all", pathChat, `{"messages":[` + user("hi") + `],"x":"` + strings.Repeat("x", 2000) + `"}`, 800},
		{"much media", pathChat, `{"messages":[{"content":[` + image + `]}]}`, 800},
	} {
		var r Reader
		if got := decide(&r, c.path, c.body, o); got != c.want {
			t.Errorf("%s: known at %d, not at %d", c.name, got, c.want)
		}
		if diff := cmp.Diff(r.Prompt(), readAll(t, c.path, c.body, o)); diff != "" {
			t.Errorf("%s in one chunk (-bytes +whole):\n%s", c.name, diff)
		}
		if c.want > 0 { // what comes later is not in the key
			if diff := cmp.Diff(r.Prompt(), readAll(t, c.path, c.body[:c.want]+`"}]],"model":"m"}`, o)); diff != "" {
				t.Errorf("%s with another end (-want +got):\n%s", c.name, diff)
			}
		}
	}
}

// Members that come after the place where a long body decides are not in the key; before it, they are.
func TestLateMembers(t *testing.T) {
	o := Options{PrefixLength: 10, MaxInspectBytes: 1000}
	start := `{"messages":[{"role":"user","content":"0123456789"}`
	filler := `,{"role":"user","content":"` + strings.Repeat("x", 1000) + `"}`
	if p := readAll(t, pathChat, start+`],"model":"m"}`, o); p.Model == 0 {
		t.Error("a short body's model is not in its key")
	}
	if p := readAll(t, pathChat, start+filler+`],"model":"m"}`, o); p.Model != 0 || !p.Cut {
		t.Error("a long body's late model is in its key")
	}
	if p := readAll(t, pathChat, `{"model":"m",`+start[1:]+filler+`]}`, o); p.Model == 0 {
		t.Error("a long body's early model is not in its key")
	}
}

func TestCut(t *testing.T) {
	o := Options{PrefixLength: 4}
	body := func(content string) request {
		return chat(`{"messages":[{"role":"user","content":"` + content + `"}]}`)
	}
	same := func(a, b request) {
		t.Helper()
		if diff := cmp.Diff(keyOf(t, a, o), keyOf(t, b, o)); diff != "" {
			t.Errorf("%s and %s differ:\n%s", a.body, b.body, diff)
		}
	}
	same(body("abcd"), body("abcde"))
	same(body("äöü😀"), body(`äöü\ud83d\ude00x`))
	same(body(`a\nb\"`), body(`a\nb\"c`))
	same(body("abcd"), chat(`{"messages":[{"role":"user","content":["abcd",{"image_url":"x"}],"tool_calls":[{"function":{"name":"f"}}]},{"role":"tool"}]}`))
	same(body("abc"), chat(`{"messages":[{"role":"user","content":"abc"}]}`))
	same(complete(`{"prompt":[1]}`), complete(`{"prompt":[1,2]}`))
	if keyOf(t, body("abc"), o) == keyOf(t, body("abcd"), o) {
		t.Error("the last character does not count")
	}
	for content, cut := range map[string]bool{"abc": false, "äöü": false, "abcd": true, "abcde": true} {
		if p := readAll(t, pathChat, body(content).body, o); p.Cut != cut {
			t.Errorf("%s: Cut = %v", content, p.Cut)
		}
	}
}

func TestMarksAreBounded(t *testing.T) {
	messages := strings.Repeat(`{"role":"user"},`, maxMarks)
	text := func(n int) string {
		return keyOf(t, chat(`{"messages":[`+messages+strings.Repeat(`{"role":"tool"},`, n)+`{"role":"user","content":"hi"}]}`), Options{}).Text
	}
	if got := len(text(0)); got != maxMarks*markSize+len("hi") {
		t.Errorf("%d bytes of text", got)
	}
	if text(0) != text(5) {
		t.Error("marks beyond the bound count")
	}
}

// An id in a body has the digest that pkg/prefix gives to the same id in a header.
func TestDigests(t *testing.T) {
	model := strings.Repeat("llama-70b/", 300)
	for _, c := range []struct{ spelled, want string }{{"m", "m"}, {`m\u002f\ud83d\ude00`, "m/😀"}, {model, model}, {`\ud800`, "\uFFFD"}} {
		p := readAll(t, pathChat, `{"model":"`+c.spelled+`"}`, Options{})
		if want := prefix.Digest(c.want); p.Model != want {
			t.Errorf("%.20s: digest %x, not %x", c.spelled, p.Model, want)
		}
	}
}

// noise is bytes that no compression makes shorter.
func noise(n int) []byte {
	p := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{}).Read(p) // never fails
	return p
}

func pack(t testing.TB, encoding string, body []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	switch encoding {
	case "gzip":
		w := gzip.NewWriter(&out)
		_, _ = w.Write(body)
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
	case "zstd":
		w, err := zstd.NewWriter(&out)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = w.Write(body)
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
	}
	return out.Bytes()
}

func readEncoded(path, encoding string, body []byte, chunk int, o Options) Prompt {
	var r Reader
	r.Reset(path, encoding, o)
	for p := range slices.Chunk(body, chunk) {
		r.Write(p)
	}
	r.Close()
	return r.Prompt()
}

func TestEncodings(t *testing.T) {
	body := chatBody(40 << 10)
	want := readAll(t, pathChat, string(body), Options{})
	raw := func(body []byte, reason RawReason) Prompt {
		head := body[:min(len(body), DefaultPrefixLength)]
		return Prompt{RawReason: reason, Text: head, HasText: true, Cut: len(head) == DefaultPrefixLength}
	}
	gz, zs := pack(t, "gzip", body), pack(t, "zstd", body)
	damaged := slices.Clone(gz)
	copy(damaged[len(gz)/2:], noise(8<<10))
	for _, c := range []struct {
		name, path, encoding string
		body                 []byte
		want                 Prompt
	}{
		{"gzip", pathChat, "gzip", gz, want},
		{"x-gzip", pathChat, " X-GZip", gz, want},
		{"zstd", pathChat, "zstd", zs, want},
		{"unsaid gzip", pathChat, "", gz, want},
		{"unsaid zstd", pathChat, "identity", zs, want},
		{"the wrong one", pathChat, "zstd", gz, want},
		{"plain, said to be gzip", pathChat, "gzip", body, want},
		{"brotli", pathChat, "br", body, raw(body, RawEncoding)},
		{"two", pathChat, "gzip, zstd", gz, raw(gz, RawEncoding)},
		{"damaged", pathChat, "gzip", damaged[:len(gz)/2+100], raw(damaged[:len(gz)/2+100], RawEncoding)},
		{"truncated", pathChat, "gzip", gz[:2000], raw(gz[:2000], RawEncoding)},
		{"truncated zstd", pathChat, "zstd", zs[:2000], raw(zs[:2000], RawEncoding)},
		{"only the magic number", pathChat, "gzip", gz[:2], raw(gz[:2], RawEncoding)},
		{"half the magic number", pathChat, "gzip", gz[:1], raw(gz[:1], RawNotObject)},
		{"not compressed at all", pathChat, "zstd", []byte("(abc)"), raw([]byte("(abc)"), RawNotObject)},
		{"compressed text", pathChat, "gzip", pack(t, "gzip", noise(8<<10)), raw(noise(8<<10), RawNotObject)},
		{"compressed for a raw path", "/invocations", "gzip", gz, raw(body, RawPath)},
		{"unsaid for a raw path", "/invocations", "", gz, raw(gz, RawPath)},
	} {
		for _, chunk := range []int{1, 1000, len(c.body)} {
			if diff := cmp.Diff(c.want, readEncoded(c.path, c.encoding, c.body, chunk, Options{})); diff != "" {
				t.Errorf("%s in chunks of %d (-want +got):\n%s", c.name, chunk, diff)
			}
		}
	}
}

// A small body that unpacks to a huge one is read as far as any other body, and a huge compressed one is
// held as far as MaxInspectBytes.
func TestEncodingsAreBounded(t *testing.T) {
	o := Options{PrefixLength: 1000, MaxInspectBytes: 64 << 10}
	bomb := []byte(`{"messages":[{"role":"user","content":"hi"}],"x":"` + strings.Repeat("x", 8<<20) + `","model":"m"}`)
	for _, encoding := range []string{"gzip", "zstd"} {
		var r Reader
		r.Reset(pathChat, encoding, o)
		r.Write(pack(t, encoding, bomb))
		r.Close()
		if p := r.Prompt(); p.RawReason != NotRaw || string(p.Text[markSize:]) != "hi" || p.Model != 0 {
			t.Errorf("%s: %+v", encoding, p)
		}
		if r.offset != hardBound*o.MaxInspectBytes {
			t.Errorf("%s: %d bytes were read", encoding, r.offset)
		}

		huge := pack(t, encoding, []byte(`{"messages":[{"role":"user","content":"hi"}],"x":"`+
			base64.StdEncoding.EncodeToString(noise(1<<20))+`","model":"m"}`))
		whole, chunks := readEncoded(pathChat, encoding, huge, len(huge), o), readEncoded(pathChat, encoding, huge, 999, o)
		if diff := cmp.Diff(whole, chunks); diff != "" || whole.RawReason != NotRaw || whole.Model != 0 {
			t.Errorf("%s: %+v, (-whole +chunks):\n%s", encoding, whole, diff)
		}
	}
}

// A used Reader allocates nothing, whatever it reads.
func TestNoAllocations(t *testing.T) {
	image := `{"image_url":{"url":"data:image/png;base64,` + strings.Repeat("A", 1000) + `"}}`
	tools := `[{"type":"function","function":{"name":"f","strict":true,"parameters":{"a":[1,"é\n"]}}},{"type":"x","y":1}]`
	bodies := []request{
		chat(string(chatBody(100 << 10))),
		chat(`{"messages":[{"role":"user","content":["x",` + image + `]},{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":"{\"a\":1}"}}]}],"model":"m","tools":` + tools + `}`),
		respond(`{"input":[{"role":"user","content":"x"},{"type":"custom_tool_call","input":"x"}],"instructions":"é"}`),
		anthropic(`{"messages":[{"role":"user","content":[{"type":"tool_result","content":"x"}]}],"system":"x-anthropic-billing-header: x\nx"}`),
		complete(`{"prompt":[1,2,3]}`),
		embed(`{"input":"` + strings.Repeat("é", 10000) + `"}`),
		{"/invocations", strings.Repeat("x", 10000)},
		chat("hi"),
	}
	var r Reader
	for _, b := range bodies {
		body := []byte(b.body)
		run := func() {
			r.Reset(b.path, "", Options{})
			for p := range slices.Chunk(body, 16<<10) {
				if r.Write(p) {
					break
				}
			}
			r.Close()
			if !r.Prompt().HasText {
				t.Errorf("%.40s: no text", b.body)
			}
		}
		run()
		if n := testing.AllocsPerRun(20, run); n != 0 {
			t.Errorf("%.40s: %v allocations", b.body, n)
		}
	}
}

// What a Reader holds does not grow with the body.
func TestFlatMemory(t *testing.T) {
	const size, less = 16 << 20, 1 << 20 // less for what is slow under the race detector
	for _, c := range []struct {
		name, path, start, filler, end string
		size                           int
	}{
		{"text", pathChat, `{"messages":[{"role":"user","content":"`, "much text, \\n \\u00e9 é ", `"}]}`, size},
		{"messages", pathChat, `{"messages":[{"role":"user"}`, `,{"role":"user","content":[{"type":"text","text":""}]}`, `]}`, less},
		{"media", pathChat, `{"messages":[{"content":[{"image_url":"data:image/png;base64,`, "iVBORw0KGgo", `"}]}]}`, size},
		{"tools", pathChat, `{"tools":[1`, `,{"function":{"name":"f","parameters":{"type":"object"}}}`, `]}`, less},
		{"arguments", pathChat, `{"messages":[{"tool_calls":[{"function":{"arguments":"{`, `\"a\":[`, `"}}]}]}`, less},
		{"nesting", pathChat, `{"x":`, `[{"a":`, `"}]}`, less},
		{"names", pathChat, `{"`, `a long name`, `":1}`, less},
		{"numbers", pathCompletions, `{"prompt":[1`, `,12345`, `]}`, less},
		{"a number", pathCompletions, `{"prompt":[1`, `1111111111`, `]}`, less},
		{"white space", pathChat, `{`, ` `, `}`, less},
		{"raw", "/invocations", ``, `raw bytes`, ``, size},
	} {
		var r Reader
		r.Reset(c.path, "", Options{MaxInspectBytes: math.MaxInt / hardBound})
		chunk := bytes.Repeat([]byte(c.filler), 64<<10/len(c.filler))
		r.Write([]byte(c.start))
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		for sent := 0; sent < c.size; sent += len(chunk) {
			r.Write(chunk)
		}
		r.Write([]byte(c.end))
		r.Close()
		runtime.ReadMemStats(&after)
		if grown := after.TotalAlloc - before.TotalAlloc; grown > 512<<10 {
			t.Errorf("%s: %d KiB were allocated", c.name, grown>>10)
		}
		if held := cap(r.head) + cap(r.body.main.buf) + cap(r.body.front.buf) + cap(r.body.word) + cap(r.body.media.head); held > 256<<10 {
			t.Errorf("%s: %d KiB are held", c.name, held>>10)
		}
	}
}
