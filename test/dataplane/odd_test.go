package dataplane

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"mime/multipart"
	"net/http"
	"strings"
	"testing"
	"unicode/utf16"

	"github.com/klauspost/compress/zstd"
)

// oddBody is a body that some client or other sends, and the headers it sends with it.
type oddBody struct {
	name, path, body, contentType, encoding string
}

func oddBodies(t *testing.T) []oddBody {
	const chats, completions = "/v1/chat/completions", "/v1/completions"
	plain := chat("odd", 3000)
	small := chat("odd", 200)
	return []oddBody{
		{name: "gzip", path: chats, body: gzipped(t, plain), encoding: "gzip"},
		{name: "zstd", path: chats, body: zstandard(t, plain), encoding: "zstd"},
		{name: "gzip, cut short", path: chats, body: gzipped(t, plain)[:40], encoding: "gzip"},
		{name: "gzip by name only", path: chats, body: plain, encoding: "gzip"},
		{name: "gzip bomb", path: chats, body: gzipped(t, strings.Repeat(" ", 64<<20)), encoding: "gzip"},
		{name: "brotli", path: chats, body: noise(3000), encoding: "br"},
		{name: "multipart", path: "/v1/audio/transcriptions", body: multipartForm(t), contentType: "multipart/form-data; boundary=b"},
		{name: "NDJSON", path: "/v1/batch", body: small + "\n" + small + "\n", contentType: "application/x-ndjson"},
		{name: "NDJSON chats", path: chats, body: small + "\n" + small + "\n"},
		{name: "BOM", path: chats, body: "\ufeff" + small},
		{name: "UTF-16", path: chats, body: utf16Of(small)},
		{name: "lone surrogates", path: completions, body: `{"model":"tiny","prompt":"a \ud800 b \udc00\udc00"}`},
		{name: "invalid UTF-8", path: completions, body: "{\"model\":\"tiny\",\"prompt\":\"a \xff\xfe\xc0\x80 b\"}"},
		{name: "invalid escape", path: completions, body: `{"model":"tiny","prompt":"a \q \u12 b"}`},
		{name: "NUL", path: completions, body: "{\"prompt\":\"\x00\"}\x00"},
		{name: "truncated", path: chats, body: plain[:1500]},
		{name: "truncated in an escape", path: completions, body: `{"prompt":"a\ud8`},
		{name: "not JSON", path: chats, body: "hello"},
		{name: "null", path: chats, body: "null"},
		{name: "array", path: chats, body: "[1,2]"},
		{name: "wrong shapes", path: chats, body: `{"model":7,"messages":{"role":[1]},"tools":"x"}`},
		{name: "20,000 arrays deep", path: chats, body: `{"messages":` + strings.Repeat("[", 20_000) + strings.Repeat("]", 20_000) + `}`},
		{name: "20,000 objects deep", path: chats, body: strings.Repeat(`{"messages":`, 20_000) + "1" + strings.Repeat("}", 20_000)},
		{name: "20,000 deep and open", path: "/v1/messages", body: strings.Repeat(`{"a":[`, 20_000)},
		{name: "long number", path: completions, body: `{"prompt":[` + strings.Repeat("9", 100_000) + `]}`},
		{name: "long name", path: completions, body: `{"` + strings.Repeat("n", 100_000) + `":1,"prompt":"x"}`},
		{name: "many members", path: completions, body: "{" + strings.Repeat(`"prompt":"x",`, 50_000) + `"prompt":"y"}`},
		{name: "blanks", path: chats, body: strings.Repeat(" \n\t", 10_000)},
		{name: "empty", path: chats, body: ""},
	}
}

// TestOddBodies sends what no reader of prompts can like. Whatever a model server makes of it, it must
// get there, byte for byte.
func TestOddBodies(t *testing.T) {
	r := newRig(t, setup{})
	bodies := oddBodies(t)
	for _, odd := range bodies {
		t.Run(odd.name, func(t *testing.T) {
			for _, client := range []*http.Client{r.client, r.h2} {
				req := request(t, r.envoy.URL+odd.path, strings.NewReader(odd.body))
				if odd.contentType != "" {
					req.Header.Set("Content-Type", odd.contentType)
				}
				if odd.encoding != "" {
					req.Header.Set("Content-Encoding", odd.encoding)
				}
				got := send(t, client, req)
				got.passed(t, odd.body)
				if got.Header.Get("Content-Encoding") != odd.encoding {
					t.Errorf("content-encoding %q, want %q", got.Header.Get("Content-Encoding"), odd.encoding)
				}
			}
		})
	}
	if n := r.settles(); n != float64(2*len(bodies)) {
		t.Errorf("%v picks of %d requests", n, 2*len(bodies))
	}
	r.wantStreams(0, "end", "panic")
	r.wantStreams(0, "end", "failed")
	r.wantStreams(0, "end", "refused")
}

// TestEncodedBodiesShareAHome: a compressed body has the key of what it decodes to.
func TestEncodedBodiesShareAHome(t *testing.T) {
	r := newRig(t, setup{backends: 8})
	for _, seed := range []string{"one", "two", "three", "four"} {
		plain := chat(seed, 5000)
		home := post(t, r.client, r.envoy.URL+"/v1/chat/completions", plain).Backend
		for encoding, body := range map[string]string{"gzip": gzipped(t, plain), "zstd": zstandard(t, plain)} {
			req := request(t, r.envoy.URL+"/v1/chat/completions", strings.NewReader(body))
			req.Header.Set("Content-Encoding", encoding)
			if got := send(t, r.client, req); got.Backend != home {
				t.Errorf("%s, %s: served by %s, plain by %s", seed, encoding, got.Backend, home)
			}
		}
	}
}

func gzipped(t testing.TB, s string) string {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	if _, err := w.Write([]byte(s)); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func zstandard(t testing.TB, s string) string {
	w, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	return string(w.EncodeAll([]byte(s), nil))
}

func multipartForm(t testing.TB) string {
	var b bytes.Buffer
	w := multipart.NewWriter(&b)
	if err := w.SetBoundary("b"); err != nil {
		t.Fatal(err)
	}
	for _, field := range []string{"model", "file"} {
		if err := w.WriteField(field, noise(2000)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// utf16Of is a string in UTF-16 with a byte order mark, little-endian.
func utf16Of(s string) string {
	b := []byte{0xff, 0xfe}
	for _, unit := range utf16.Encode([]rune(s)) {
		b = binary.LittleEndian.AppendUint16(b, unit)
	}
	return string(b)
}
