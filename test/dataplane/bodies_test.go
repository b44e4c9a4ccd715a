package dataplane

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptrace"
	"strings"
	"testing"

	"github.com/homing-dev/homing/test/env"
)

// sizes are those of the bodies that must pass, in bytes.
var sizes = map[string]int{"0": 0, "1KiB": 1 << 10, "32KiB": 32 << 10, "64KiB+1": 64<<10 + 1, "1.2MiB": 12 << 20 / 10, "16MiB": 16 << 20}

// noise is a body that is no text in any dialect, the same for the same size.
func noise(size int) string {
	b := make([]byte, size)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(b) // it never fails
	return string(b)
}

// unsized hides a body's length from the client, so that it is sent in chunks.
type unsized struct{ io.Reader }

func TestBodiesPassByteForByte(t *testing.T) {
	r := newRig(t, setup{})
	for name, size := range sizes {
		for path, body := range map[string]string{"/v1/chat/completions": chat("bodies", size)[:size], "/invocations": noise(size)} {
			for how, client := range map[string]*http.Client{"HTTP1": r.client, "HTTP2": r.h2} {
				t.Run(name+path+"/"+how, func(t *testing.T) {
					got := post(t, client, r.envoy.URL+path+"?a=b", body)
					got.passed(t, body)
					if got.Path != path+"?a=b" {
						t.Errorf("path %q", got.Path)
					}
				})
				t.Run(name+path+"/"+how+"chunked", func(t *testing.T) {
					send(t, client, request(t, r.envoy.URL+path, unsized{strings.NewReader(body)})).passed(t, body)
				})
			}
		}
	}
	if n := r.settles(); n != float64(len(sizes)*8) {
		t.Errorf("%v picks of %d requests", n, len(sizes)*8)
	}
}

func TestRequestsWithoutABodyPass(t *testing.T) {
	r := newRig(t, setup{})
	for _, client := range []*http.Client{r.client, r.h2} {
		for _, method := range []string{http.MethodGet, http.MethodHead, http.MethodDelete, http.MethodOptions} {
			req := request(t, r.envoy.URL+"/v1/models", nil)
			req.Method = method
			got := send(t, client, req)
			if got.status != http.StatusOK || got.header.Get("X-Served-By") == "" {
				t.Errorf("%s: status %d, served by %q", method, got.status, got.header.Get("X-Served-By"))
			}
			if method != http.MethodHead && got.Method != method {
				t.Errorf("%s came as %s", method, got.Method)
			}
		}
	}
	if n := r.settles(); n != 8 {
		t.Errorf("%v picks of 8 requests", n)
	}
}

func TestRequestTrailersPass(t *testing.T) {
	for _, test := range []struct {
		name    string
		retries bool
		h2      bool
		trailer string // as it comes
		copies  int    // of the body
	}{
		{"HTTP1", true, false, "", 1}, // whose trailers Envoy drops unless told otherwise
		{"HTTP2", false, true, "sum", 1},
		// Envoy sends the body again after it: envoyproxy/envoy#45470. When a newer one does not, the warning
		// in docs/gateways/plain-envoy.md can go.
		{"HTTP2 to a route with retries", true, true, "sum", 2},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := newRig(t, setup{envoy: func(c env.EnvoyConfig) {
				speakHTTP2(c)
				if !test.retries {
					delete(c.Route(), "retry_policy")
				}
			}})
			for _, size := range []int{0, 1 << 10, 2 << 20} {
				body := chat("trailers", size)[:size]
				req := request(t, r.envoy.URL+"/v1/chat/completions", unsized{strings.NewReader(body)})
				req.Trailer = http.Header{"X-Sum": {"sum"}}
				got := send(t, httpClient(t, test.h2), req)
				got.passed(t, strings.Repeat(body, test.copies))
				if sum := got.Trailer.Get("X-Sum"); sum != test.trailer {
					t.Errorf("%d bytes: trailer %q, want %q", size, sum, test.trailer)
				}
			}
			if n := r.settles(); n != 3 {
				t.Errorf("%v picks of 3 requests", n)
			}
		})
	}
}

// speakHTTP2 has Envoy speak HTTP/2 to the model servers.
func speakHTTP2(c env.EnvoyConfig) {
	c.Cluster("pool")["typed_extension_protocol_options"] = c.Cluster("picker")["typed_extension_protocol_options"]
}

func TestExpectContinue(t *testing.T) {
	r := newRig(t, setup{})
	body := chat("expect", 100_000)
	req := request(t, r.envoy.URL+"/v1/chat/completions", strings.NewReader(body))
	req.Header.Set("Expect", "100-continue")
	continued := false
	req = req.WithContext(httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{Got100Continue: func() { continued = true }}))
	client := httpClient(t, false)
	client.Transport.(*http.Transport).ExpectContinueTimeout = patience // the body waits for the 100
	send(t, client, req).passed(t, body)
	if !continued {
		t.Error("100 Continue did not come")
	}
	r.settles()
}

// TestEarlyAnswer holds back the rest of a body until the model server has seen the request's headers:
// they go there as soon as the key is known.
func TestEarlyAnswer(t *testing.T) {
	started := make(chan string, 1)
	r := newRig(t, setup{
		policy: env.Policy{PrefixLength: 1024},
		serve: func(w http.ResponseWriter, r *http.Request) {
			started <- self(r).addr
			echo(w, r)
		},
	})
	for how, client := range map[string]*http.Client{"HTTP1": r.client, "HTTP2": r.h2} {
		for _, test := range []struct {
			path, body string
			enough     int // bytes to know the key by
		}{
			{"/invocations", noise(3 << 20), 2000},
			// A JSON body decides at --max-inspect-bytes, if the text is in hand by then.
			{"/v1/chat/completions", chat("early", 3<<20), 2 << 20},
		} {
			t.Run(how+test.path, func(t *testing.T) {
				r := r.in(t)
				reader, writer := io.Pipe()
				answered := start(client, request(t, r.envoy.URL+test.path, reader))
				if _, err := io.WriteString(writer, test.body[:test.enough]); err != nil {
					t.Fatal(err)
				}
				served := await(t, "the headers at the model server", started)
				r.want(1, "homing_in_flight_requests", "endpoint", r.endpoint(served))
				if _, err := io.WriteString(writer, test.body[test.enough:]); err != nil {
					t.Fatal(err)
				}
				_ = writer.Close()
				await(t, "the response", answered).passed(t, test.body)
				r.settles()
			})
		}
	}
}

// TestStalledUpload has other requests come and go while a body stands still, before and after its key
// is known.
func TestStalledUpload(t *testing.T) {
	r := newRig(t, setup{})
	for path, body := range map[string]string{"/v1/chat/completions": chat("stalls", 40_000), "/invocations": noise(40_000)} {
		stalls := 0
		got := send(t, r.client, request(t, r.envoy.URL+path, &stalling{rest: bytes.NewBufferString(body), stall: func() {
			stalls++
			other := chat(fmt.Sprint(stalls), 300)
			post(t, r.h2, r.envoy.URL+"/v1/chat/completions", other).passed(t, other)
		}}))
		got.passed(t, body)
		if stalls < 5 {
			t.Errorf("%s: %d stalls", path, stalls)
		}
	}
	r.settles()
}

// stalling is a reader of ten thousand bytes at a time that stalls before each.
type stalling struct {
	rest  *bytes.Buffer
	stall func()
}

func (s *stalling) Read(p []byte) (int, error) {
	s.stall()
	return s.rest.Read(p[:min(len(p), 10_000)])
}
