package dataplane

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/homing-dev/homing/test/env"
)

// bothWays are modes in which responses pass through Homing: it must wait for them.
var bothWays = modes{"FULL_DUPLEX_STREAMED", "SEND", "FULL_DUPLEX_STREAMED", "SEND", false}

// TestShutdown sends SIGTERM to Homing in the middle of uploads, of silence and of responses. It ends
// without waiting for a response, wherever no response passes through it, and every request and response
// is whole nevertheless. In Homing's place is then nobody, and at last a successor.
func TestShutdown(t *testing.T) {
	const n = 8 // requests of each kind
	for _, m := range []modes{
		{"FULL_DUPLEX_STREAMED", "SEND", "NONE", "SEND", false},
		{"FULL_DUPLEX_STREAMED", "SEND", "STREAMED", "SEND", false},
		{"BUFFERED", "SEND", "STREAMED", "SKIP", true},
		{"BUFFERED_PARTIAL", "SEND", "STREAMED", "SKIP", false},
		{"STREAMED", "SEND", "STREAMED", "SKIP", false},
		{"NONE", "SEND", "NONE", "SEND", false},
		bothWays,
	} {
		t.Run(m.String(), func(t *testing.T) {
			large := 3 << 20
			if m.requestBody == "BUFFERED" {
				large = 500_000 // Envoy refuses what is longer than its buffer
			}
			s := startShutdown(t, m, n, large)
			s.check(s.homing.Signal(syscall.SIGTERM))
			switch {
			case m.requestBody == "NONE": // an upload is no business of Homing's
				await(t, "Homing's end", s.homing.Done())
			case m != bothWays:
				s.wantStreams(2*n, "end", "drained")
			}
			s.finishUploads()
			for range n {
				await(t, "an upload", s.generating.arrived)
			}
			if m == bothWays {
				s.want(3*n, "homing_in_flight_requests")
			} else {
				await(t, "Homing's end", s.homing.Done())
			}
			s.generating.open()
			s.silent.open()
			s.wantWhole()
			await(t, "Homing's end", s.homing.Done())
			if err := s.homing.Err(); err != nil {
				t.Errorf("Homing ended with %v", err)
			}

			s.startHoming(setup{})
			eventually(t, "requests to the successor", func() error {
				if got := post(t, s.client, s.envoy.URL+"/v1/models", chat("new", 500)); got.status != http.StatusOK {
					return fmt.Errorf("status %d", got.status)
				}
				return nil
			})
		})
	}
}

// TestStreamsThatEndUnderway ends a stream well when a message has just come, which is left without an
// answer: the worst moment that a stream that waits can be ended at. Only full duplex loses by it, and so
// Homing never ends such a stream. If a newer Envoy loses nothing, it could.
func TestStreamsThatEndUnderway(t *testing.T) {
	for _, test := range []struct {
		responseBody, endAt string
		lost                bool
	}{
		{"NONE", "ResponseHeaders", false},
		{"NONE", "ResponseTrailers", false},
		{"STREAMED", "ResponseHeaders", false},
		{"STREAMED", "ResponseBody", false},
		{"STREAMED", "ResponseTrailers", false},
		{"BUFFERED", "ResponseBody", false},
		{"FULL_DUPLEX_STREAMED", "ResponseBody", true},
	} {
		t.Run(test.responseBody+"/"+test.endAt, func(t *testing.T) {
			gate := newGate()
			o := observe(t, gate.generate, func(c env.EnvoyConfig) {
				speakHTTP2(c)
				modes{"FULL_DUPLEX_STREAMED", "SEND", test.responseBody, "SEND", false}.apply(c)
			})
			o.endAt = test.endAt
			client := httpClient(t, true)
			answered := start(client, request(t, o.url+"/v1/chat/completions", strings.NewReader(chat("ends", 3000))))
			await(t, "the request", gate.arrived)
			if test.endAt == "ResponseTrailers" || test.responseBody == "BUFFERED" {
				gate.open() // it takes the response's end to come there
			}
			await(t, "the stream's end", o.stream(t, "/v1/chat/completions").ended)
			gate.open()
			got := await(t, "the response", answered)
			if got.wholeGeneration() == test.lost {
				t.Errorf("status %d, %q, %v; want bytes lost: %v", got.status, got.body, got.err, test.lost)
			}
		})
	}
}

// TestPoolThatMoves gives a pool another port while a response is under way. The stream on the old one ends,
// the response does not.
func TestPoolThatMoves(t *testing.T) {
	gate := newGate()
	r := newRig(t, setup{serve: gate.generate})
	answered := start(r.h2, request(t, r.envoy.URL+"/v1/chat/completions", strings.NewReader(chat("moves", 3000))))
	r.wantStreaming(1)
	moved := r.pool
	port, err := env.FreePort()
	r.check(err)
	moved.Port = port
	r.check(r.files.WritePool(moved))
	r.wantStreams(1, "end", "drained", "phase", "response")
	r.want(0, "homing_in_flight_requests")
	gate.open()
	if got := await(t, "the response", answered); !got.wholeGeneration() {
		t.Errorf("status %d, %q, %v", got.status, got.body, got.err)
	}
}

// shutdown is a rig with requests of three kinds under way.
type shutdown struct {
	*rig
	generating, silent *gate
	uploads            []upload
	answers            map[string][]<-chan answer // by kind
	bodies             []string                   // of each kind's requests, in turn
}

// upload is the rest of a body that is still to be sent.
type upload struct {
	rest string
	to   *io.PipeWriter
}

// startShutdown has n requests of each kind under way: half uploaded, without a response yet, and in the
// response. Model servers speak HTTP/2, so that responses end by trailers; clients speak both.
func startShutdown(t *testing.T, m modes, n, large int) *shutdown {
	s := &shutdown{
		generating: newGate(), silent: newGate(),
		answers: map[string][]<-chan answer{}, bodies: []string{chat("small", 3000), chat("large", large)},
	}
	s.rig = newRig(t, setup{
		envoy: func(c env.EnvoyConfig) { speakHTTP2(c); m.apply(c) },
		serve: func(w http.ResponseWriter, r *http.Request) {
			if r.URL.RawQuery == "silent" {
				s.silent.hold(w, r)
			} else {
				s.generating.generate(w, r)
			}
		},
	})
	for i := range n {
		s.send("generating", i, strings.NewReader(s.body(i)))
		s.send("silent", i, strings.NewReader(s.body(i)))
	}
	for range n {
		await(t, "a request", s.generating.arrived)
		await(t, "a request", s.silent.arrived)
	}
	for i := range n {
		body, to := io.Pipe()
		s.send("uploading", i, body)
		sent := len(s.body(i)) / 3
		s.uploads = append(s.uploads, upload{s.body(i)[sent:], to})
		go func() { _, _ = io.WriteString(to, s.body(i)[:sent]) }()
	}
	eventually(t, "streams", func() error {
		m, err := env.Scrape(context.WithoutCancel(t.Context()), s.envoy.Admin+"/stats/prometheus?filter=ext_proc.streams_started$")
		if got := m.Sum("envoy_http_ext_proc_streams_started"); err == nil && got < float64(3*n) {
			err = fmt.Errorf("%v, want %v", got, 3*n)
		}
		return err
	})
	return s
}

// body is that of the i-th request of a kind.
func (s *shutdown) body(i int) string { return s.bodies[i/2%2] }

func (s *shutdown) send(kind string, i int, body io.Reader) {
	req := request(s.t, s.envoy.URL+"/v1/chat/completions?"+kind, body)
	s.answers[kind] = append(s.answers[kind], start([]*http.Client{s.client, s.h2}[i%2], req))
}

func (s *shutdown) finishUploads() {
	for _, u := range s.uploads {
		go func() {
			_, _ = io.WriteString(u.to, u.rest) // fails if the request does, which its answer tells
			_ = u.to.Close()
		}()
	}
}

// wantWhole fails the test unless every request reached a model server whole and every response its client.
func (s *shutdown) wantWhole() {
	s.t.Helper()
	for kind, answers := range s.answers {
		for i, answered := range answers {
			got := await(s.t, "a response", answered)
			if kind == "silent" {
				got.passed(s.t, s.body(i))
				continue
			}
			if !got.wholeGeneration() {
				s.t.Errorf("%s %d: status %d, %v, %d bytes of which not all are right", kind, i, got.status, got.err, len(got.body))
			}
			if got.header.Get("X-Request") != digest(s.body(i)) {
				s.t.Errorf("%s %d: the request's body was not what was sent", kind, i)
			}
			if i%2 == 1 && got.trailer.Get("X-Events") == "" {
				s.t.Errorf("%s %d: the response's trailers are missing", kind, i)
			}
		}
	}
}

// generate sends events without a pause until the gate opens, and how many in the last one and in trailers.
func (g *gate) generate(w http.ResponseWriter, r *http.Request) {
	got, err := take(r)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("X-Request", got.SHA256)
	g.arrived <- self(r)
	for n := 0; ; n++ {
		select {
		case <-g.opened:
			_, _ = fmt.Fprintf(w, "data: %d\n\n", n)
			w.Header().Set(http.TrailerPrefix+"X-Events", strconv.Itoa(n))
			return
		case <-r.Context().Done():
			panic(http.ErrAbortHandler)
		case <-time.After(time.Millisecond):
			_, _ = io.WriteString(w, event(n))
			_ = http.NewResponseController(w).Flush()
		}
	}
}

func event(n int) string {
	return fmt.Sprintf("data: {\"id\":\"chatcmpl-1\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\" token %d\"}}]}\n\n", n)
}

// wholeGeneration says whether this is all that generate sent.
func (a answer) wholeGeneration() bool {
	var want strings.Builder
	n := strings.Count(a.body, "\n\n") - 1
	for i := range n {
		want.WriteString(event(i))
	}
	fmt.Fprintf(&want, "data: %d\n\n", n)
	return a.status == http.StatusOK && a.err == nil && a.body == want.String()
}
