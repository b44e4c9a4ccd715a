package dataplane

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/homing-dev/homing/test/env"
)

// modes are an ext_proc filter's processing modes.
type modes struct {
	requestBody, responseHeaders, responseBody, responseTrailers string
	override                                                     bool // Envoy heeds Homing's mode_override
}

func (m modes) String() string {
	s := fmt.Sprintf("%s,%s,%s,%s", m.requestBody, m.responseHeaders, m.responseBody, m.responseTrailers)
	if m.override {
		s += ",override"
	}
	return s
}

func (m modes) apply(c env.EnvoyConfig) {
	trailers := "SEND"
	if m.requestBody != "FULL_DUPLEX_STREAMED" {
		trailers = "SKIP" // as Envoy's default is
	}
	c.ExtProc()["processing_mode"] = map[string]any{
		"request_header_mode": "SEND", "request_body_mode": m.requestBody, "request_trailer_mode": trailers,
		"response_header_mode": m.responseHeaders, "response_body_mode": m.responseBody, "response_trailer_mode": m.responseTrailers,
	}
	c.ExtProc()["allow_mode_override"] = m.override
}

const (
	duplex  = "FULL_DUPLEX_STREAMED"
	backEnd = "the response ends" // the backend's last byte, among the events of a stream
)

// TestProcessingModes is the table of what a gateway's processing modes make of a stream: which messages
// come, and whether the stream lasts to the end of the response.
func TestProcessingModes(t *testing.T) {
	in := []string{"RequestHeaders", "RequestBody"}
	onlyHeaders := in[:1]
	for _, test := range []struct {
		modes modes
		want  []string // the steps of a stream
	}{
		// What config/envoy ships, and its neighbours.
		{modes{duplex, "SEND", "NONE", "SEND", false}, add(in, "ResponseHeaders", backEnd, "EOF")},
		{modes{duplex, "SKIP", "NONE", "SEND", false}, add(in, backEnd, "EOF")},
		{modes{duplex, "SEND", "NONE", "SKIP", false}, add(in, "ResponseHeaders", "canceled", backEnd)},
		{modes{duplex, "SKIP", "NONE", "SKIP", false}, add(in, "canceled", backEnd)},
		{modes{duplex, "SEND", duplex, "SEND", false}, add(in, "ResponseHeaders", "ResponseBody", backEnd, "ResponseBody", "canceled")},
		{modes{duplex, "SEND", "STREAMED", "SEND", false}, add(in, "ResponseHeaders", "ResponseBody", backEnd, "ResponseBody", "canceled")},
		{modes{duplex, "SEND", "STREAMED", "SKIP", false}, add(in, "ResponseHeaders", "ResponseBody", backEnd, "ResponseBody", "canceled")},
		// Full duplex on either side keeps Envoy from heeding an override.
		{modes{duplex, "SEND", "STREAMED", "SEND", true}, add(in, "ResponseHeaders", "ResponseBody", backEnd, "ResponseBody", "canceled")},
		// Buffered requests.
		{modes{"BUFFERED", "SEND", "NONE", "SEND", false}, add(in, "ResponseHeaders", backEnd, "EOF")},
		{modes{"BUFFERED_PARTIAL", "SEND", "NONE", "SEND", false}, add(in, "ResponseHeaders", backEnd, "EOF")},
		{modes{"BUFFERED", "SEND", "STREAMED", "SKIP", false}, add(in, "ResponseHeaders", "ResponseBody", backEnd, "ResponseBody", "canceled")},
		{modes{"BUFFERED", "SEND", "STREAMED", "SKIP", true}, add(in, "ResponseHeaders", backEnd, "EOF")},
		{modes{"BUFFERED", "SEND", "NONE", "SKIP", true}, add(in, "ResponseHeaders", backEnd, "EOF")},
		// Requests whose body cannot be waited for.
		{modes{"NONE", "SEND", "NONE", "SEND", false}, add(onlyHeaders, "ResponseHeaders", backEnd, "EOF")},
		{modes{"STREAMED", "SEND", "NONE", "SEND", false}, add(in, "ResponseHeaders", backEnd, "EOF")},
		{modes{"STREAMED", "SEND", "NONE", "SEND", true}, add(onlyHeaders, "ResponseHeaders", backEnd, "EOF")},
	} {
		t.Run(test.modes.String(), func(t *testing.T) {
			gate := newGate()
			o := observe(t, func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path == "/fence" {
					echo(w, r)
				} else {
					gate.stream(w, r)
				}
			}, test.modes.apply)

			resp, err := o.client.Post(o.url+"/v1/chat/completions", "application/json", strings.NewReader(chat("modes", 2000)))
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			body := bufio.NewReader(resp.Body)
			if line, err := body.ReadString('\n'); err != nil || line != "data: first\n" {
				t.Fatalf("status %d, first line %q, %v", resp.StatusCode, line, err)
			}
			stream := o.stream(t, "/v1/chat/completions")
			early := slices.Index(test.want, backEnd) > slices.IndexFunc(test.want, isEnd)
			if early {
				await(t, "the stream's early end", stream.ended)
				if n := o.inFlight(); n != 0 {
					t.Errorf("%d in flight after the stream's end", n)
				}
			} else {
				// Envoy has one worker, and this request comes after whatever it did for the first.
				post(t, o.client, o.url+"/fence", chat("fence", 200))
				await(t, "the end of the fence's stream", o.stream(t, "/fence").ended)
				if n := o.inFlight(); n != 1 {
					t.Errorf("%d in flight during the response, want 1", n)
				}
			}
			stream.note(backEnd)
			gate.open()
			rest, err := io.ReadAll(body)
			if err != nil || string(rest) != "\ndata: [DONE]\n\n" {
				t.Errorf("the response goes on with %q, %v", rest, err)
			}
			await(t, "the stream's end", stream.ended)
			if n := o.inFlight(); n != 0 {
				t.Errorf("%d in flight after all", n)
			}
			if diff := cmp.Diff(test.want, stream.steps()); diff != "" {
				t.Errorf("steps of the stream (-want +got):\n%s", diff)
			}
			if stream.count("ResponseHeaders") > 1 {
				t.Error("response headers came twice")
			}
		})
	}
}

func isEnd(event string) bool { return event == "EOF" || event == "canceled" }

// add appends to a copy.
func add(to []string, events ...string) []string { return slices.Concat(to, events) }

// TestRequestModes sends bodies in the modes that config/envoy does not ship. They pass, and have their
// homes where the mode shows Homing the body, or an id.
func TestRequestModes(t *testing.T) {
	const limit = 1 << 20 // of Envoy's buffer
	for _, test := range []struct {
		mode     string
		homes    bool // by the body
		tooLarge int  // status of a body over the limit
	}{
		{"BUFFERED", true, http.StatusRequestEntityTooLarge},
		{"BUFFERED_PARTIAL", true, http.StatusOK},
		{"STREAMED", false, http.StatusOK},
		{"NONE", false, http.StatusOK},
	} {
		t.Run(test.mode, func(t *testing.T) {
			r := newRig(t, setup{backends: 8, envoy: modes{test.mode, "SEND", "NONE", "SEND", false}.apply})
			picks := 0.0
			homes := func(id string) int {
				served := map[string]bool{}
				for range 16 {
					body := chat("request modes", 40_000)
					req := request(t, r.envoy.URL+"/v1/chat/completions", strings.NewReader(body))
					if id != "" {
						req.Header.Set("X-Amzn-Sagemaker-Prefix-Aware-Id", id)
					}
					got := send(t, r.client, req)
					got.passed(t, body)
					served[got.Backend] = true
					picks++
				}
				return len(served)
			}
			if n := homes(""); (n == 1) != test.homes {
				t.Errorf("16 equal bodies are served by %d endpoints", n)
			}
			if n := homes("tenant"); n != 1 {
				t.Errorf("16 equal bodies with an id are served by %d endpoints, want 1", n)
			}
			withoutBody := picks
			if test.homes {
				withoutBody = 0
			}
			r.want(withoutBody, "homing_picks_without_body_total")

			large := chat("large", 2*limit)
			got := post(t, r.client, r.envoy.URL+"/v1/chat/completions", large)
			if got.status != test.tooLarge {
				t.Errorf("a body of %d bytes: status %d, want %d", len(large), got.status, test.tooLarge)
			}
			if got.status == http.StatusOK {
				got.passed(t, large)
				picks++
			}
			if n := r.settles(); n != picks {
				t.Errorf("%v picks, want %v", n, picks)
			}
			r.wantStreams(0, "end", "failed")
		})
	}
}

// TestEarlyClosersAreNamed: a gateway that closes streams before responses end is counted each time, and
// told of once per pool.
func TestEarlyClosersAreNamed(t *testing.T) {
	const requests = 6
	for _, test := range []struct {
		modes modes
		at    string // "" for a gateway in order
	}{
		{modes{duplex, "SEND", "NONE", "SKIP", false}, "response_headers"},
		{modes{duplex, "SKIP", "NONE", "SKIP", false}, "request"},
		{modes{duplex, "SEND", "NONE", "SEND", false}, ""},
		{modes{duplex, "SKIP", "NONE", "SEND", false}, ""},
		{modes{duplex, "SEND", duplex, "SEND", false}, ""},
		{modes{duplex, "SEND", "STREAMED", "SKIP", false}, ""},
	} {
		t.Run(test.modes.String(), func(t *testing.T) {
			begun := make(chan struct{}) // the client has the response's first event
			serve := func(w http.ResponseWriter, r *http.Request) {
				firstEvent(w, r)
				<-begun
				_, _ = io.WriteString(w, "data: [DONE]\n\n")
			}
			second := env.Pool{Name: "second", Port: env.Port(t), Endpoints: []string{startBackend(t, 0, serve).addr}}
			r := newRig(t, setup{serve: serve, envoy: func(c env.EnvoyConfig) {
				test.modes.apply(c)
				if err := c.AddPool(second.Name, fmt.Sprintf("127.0.0.1:%d", second.Port), second.Endpoints); err != nil {
					t.Fatal(err)
				}
			}})
			r.setPool(second)
			for range requests {
				for _, path := range []string{"/v1/chat/completions", "/second/v1/chat/completions"} {
					response := r.untilFirstEvent(r.client, path)
					begun <- struct{}{}
					if rest, err := io.ReadAll(response); err != nil || string(rest) != "data: [DONE]\n\n" {
						t.Errorf("the response goes on with %q, %v", rest, err)
					}
				}
			}
			if n := r.settles(); n != 2*requests {
				t.Errorf("%v picks of %d requests", n, 2*requests)
			}
			early, lines := 0.0, 0
			if test.at != "" {
				early, lines = requests, 1
			}
			for _, pool := range []string{r.pool.Name, second.Name} {
				r.want(early, "homing_streams_closed_early_total", "pool_name", pool, "at", test.at)
				r.said(lines, `response_trailer_mode: SEND in its ext_proc filter","pool":"default/`+pool)
			}
			if test.at == "" {
				r.want(0, "homing_streams_closed_early_total")
			}
		})
	}
}
