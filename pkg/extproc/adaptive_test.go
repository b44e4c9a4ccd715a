package extproc

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"

	"github.com/homing-dev/homing/pkg/endpoint"
)

func adaptive(addresses ...string) option {
	return func(_ *Options, pool *endpoint.PoolSpec) {
		pool.Policy.Strategy, pool.Policy.PrefixLength = endpoint.AdaptivePrefix, endpoint.MaxPrefixLength
		pool.Endpoints = specs(addresses...)
	}
}

// turns is the body of a chat of these messages, by user and assistant in turn.
func turns(messages ...string) string {
	type message struct {
		Role    string `json:"role"`
		Content string `json:"content"`
	}
	request := struct {
		Model    string    `json:"model"`
		Messages []message `json:"messages"`
	}{Model: "llama"}
	for i, m := range messages {
		request.Messages = append(request.Messages, message{[]string{"user", "assistant"}[i%2], m})
	}
	b, err := json.Marshal(request)
	if err != nil {
		panic(err) // strings marshal
	}
	return string(b)
}

// stage is a stream whose messages are handled one at a time.
type stage struct {
	tb testing.TB
	*stream
}

func (g *gateway) stage(request, response mode, text string) *stage {
	g.tb.Helper()
	s := &stage{g.tb, g.service.streams.Get().(*stream)}
	s.rpc = &deafStream{}
	s.play(postIn(request, response), body(text, true))
	return s
}

func (s *stage) play(messages ...*extprocv3.ProcessingRequest) {
	s.tb.Helper()
	for _, m := range messages {
		s.in.Request, s.in.ProtocolConfig, s.in.MetadataContext = m.Request, m.ProtocolConfig, m.MetadataContext
		if err := s.handle(); err != nil {
			s.tb.Fatal(err)
		}
	}
}

// end ends the stream and says where it was served.
func (s *stage) end() string {
	address := s.pick.Endpoint.Address
	s.finish(endEOF)
	s.reset()
	return address
}

func withStatus(m *extprocv3.ProcessingRequest, code string, more ...string) *extprocv3.ProcessingRequest {
	h := []*corev3.HeaderValue{{Key: ":status", RawValue: []byte(code)}}
	for i := 0; i < len(more); i += 2 {
		h = append(h, &corev3.HeaderValue{Key: more[i], RawValue: []byte(more[i+1])})
	}
	m.GetResponseHeaders().Headers.Headers = h
	return m
}

var three = []string{"10.0.0.1:8000", "10.0.0.2:8000", "10.0.0.3:8000"}

// Ten conversations under one long system prompt, in the first message, spread and stay.
func TestAdaptiveConversationsSpreadAndStay(t *testing.T) {
	for name, modes := range map[string][2]mode{
		"response not shown": {fullDuplex, none}, "full duplex": {fullDuplex, fullDuplex}, "buffered": {buffered, none},
	} {
		t.Run(name, func(t *testing.T) {
			g := newLocal(t, adaptive(three...))
			homes, used := map[int]string{}, map[string]int{}
			var history [10][]string
			for turn := range 5 {
				for c := range history {
					if turn == 0 {
						history[c] = []string{strings.Repeat("You are a helpful assistant. ", 40) + strings.Repeat(fmt.Sprint("I am user ", c), 100)}
					} else {
						history[c] = append(history[c], strings.Repeat(fmt.Sprint("answer ", c, turn), 30), strings.Repeat(fmt.Sprint("question ", c, turn), 50))
					}
					s := g.stage(modes[0], modes[1], turns(history[c]...))
					s.play(responseHeaders(false), responseTrailers())
					at := s.end()
					if turn == 0 {
						homes[c] = at
						used[at]++
					} else if homes[c] != at {
						t.Errorf("conversation %d moved from %s to %s in turn %d", c, homes[c], at, turn)
					}
				}
			}
			for _, address := range three {
				if used[address] < 3 {
					t.Errorf("conversations are %v at the endpoints, want 4, 3, 3", used)
				}
			}
			g.checkBalance()
		})
	}
}

// A prompt counts as computed when its answer's first token is seen, or at the answer's end.
func TestAPromptIsPendingUntilItsAnswerComes(t *testing.T) {
	prompt := turns(strings.Repeat("a long question ", 500))
	length := int64(len(prompt) / 2)
	for name, test := range map[string]struct {
		response mode
		before   []*extprocv3.ProcessingRequest // after which it is pending
		after    []*extprocv3.ProcessingRequest // after which it is not
	}{
		"a stream that is shown": {
			fullDuplex,
			[]*extprocv3.ProcessingRequest{responseHeaders(false), responseBody("", false)},
			[]*extprocv3.ProcessingRequest{responseBody("data: {}\n\n", false)},
		},
		"a whole answer that is shown": {
			fullDuplex,
			[]*extprocv3.ProcessingRequest{withStatus(responseHeaders(false), "200", "content-length", "100"), responseBody("{", false)},
			nil,
		},
		"an answer that is not shown": {
			none,
			[]*extprocv3.ProcessingRequest{responseHeaders(false), responseTrailers()},
			nil,
		},
		"a failure": {
			fullDuplex,
			[]*extprocv3.ProcessingRequest{withStatus(responseHeaders(false), "503"), responseBody("no", false)},
			nil,
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := newLocal(t, adaptive("10.0.0.1:8000"))
			load := g.store.Snapshot().Pool(llama).Endpoints[0].Load
			s := g.stage(fullDuplex, test.response, prompt)
			s.play(test.before...)
			if got := load.Pending(); got < length {
				t.Errorf("%d bytes pending, want the prompt's", got)
			}
			if len(test.after) > 0 {
				s.play(test.after...)
				if got := load.Pending(); got != 0 {
					t.Errorf("%d bytes pending when the first token has come", got)
				}
			}
			s.end()
			if got := load.Pending(); got != 0 {
				t.Errorf("%d bytes pending when the answer has ended", got)
			}
			g.checkBalance()
		})
	}
}

func TestAConversationFollowsTheEndpointThatServed(t *testing.T) {
	g := newLocal(t, adaptive(three...))
	prompt := strings.Repeat("a question ", 300)
	s := g.stage(fullDuplex, none, turns(prompt))
	to := three[0]
	if s.pick.Endpoint.Address == to {
		to = three[1]
	}
	s.play(servedBy(to), responseTrailers())
	if got := s.end(); got != to {
		t.Fatalf("counted at %s, served by %s", got, to)
	}
	next := g.stage(fullDuplex, none, turns(prompt, "an answer", "another question"))
	if got := next.end(); got != to {
		t.Errorf("the next turn went to %s, want %s, which has the first", got, to)
	}
	g.checkBalance()
}

// What is beyond prefixLength counts by the request's length, as far as that is known.
func TestALongPromptIsAsLongAsItsBody(t *testing.T) {
	text := turns(strings.Repeat("a question ", 20_000))
	for name, test := range map[string]struct {
		headers []string
		body    string
		end     bool
		want    int64
	}{
		"by content-length": {[]string{"content-length", "9000000"}, text, false, 9_000_000},
		"by what came":      {nil, text, true, int64(len(text))},
		"by an absurd one":  {[]string{"content-length", "9223372036854775807"}, text, false, maxPrompt},
		"by a negative one": {[]string{"content-length", "-9223372036854775808"}, text, true, int64(len(text))},
		"short text":        {[]string{"content-length", "9000000"}, turns(strings.Repeat("x", 3000)), true, 3018},
	} {
		t.Run(name, func(t *testing.T) {
			g := newLocal(t, adaptive(three...), withOptions(func(o *Options) { o.MaxInspectBytes = 128 << 10 }))
			s := &stage{t, g.service.streams.Get().(*stream)}
			s.rpc = &deafStream{}
			first := headers(false, append([]string{":path", "/v1/chat/completions"}, test.headers...)...)
			s.play(first, body(test.body, test.end))
			if got := s.asked.Bytes; got != test.want {
				t.Errorf("%d bytes, want %d", got, test.want)
			}
			s.end()
		})
	}
}

// What only counts tokens neither needs a cache nor fills one, and how long other paths take says nothing of prompts.
func TestOnlyPromptsThatAreComputedTeach(t *testing.T) {
	for path, test := range map[string]struct{ keyed, timed bool }{
		"/v1/messages":                        {true, true},
		"/v1/messages/count_tokens":           {false, false},
		"/v1/messages/count_tokens?beta=true": {false, false},
		"/tokenize":                           {true, false},
		"/v1/chat/completions":                {true, true},
	} {
		g := newLocal(t, adaptive(three...))
		s := &stage{t, g.service.streams.Get().(*stream)}
		s.rpc = &deafStream{}
		s.play(headers(false, ":path", path), body(turns("a question"), true))
		if got := len(s.asked.Rungs) > 0; got != test.keyed {
			t.Errorf("%s: picked by its text: %t, want %t", path, got, test.keyed)
		}
		if s.timed != test.timed {
			t.Errorf("%s: its time tells of the prompt: %t, want %t", path, s.timed, test.timed)
		}
		s.end()
	}
}

func TestServicesOfAStoreHaveOneClock(t *testing.T) {
	now := time.Unix(1e9, 0)
	o := Options{Now: func() time.Time { return now }, Began: now}
	first := New(o)
	now = now.Add(240 * time.Hour)
	if second := New(o); first.Clock() != second.Clock() || second.Clock() == 0 {
		t.Errorf("after ten days it is %v for one service and %v for the next", first.Clock(), second.Clock())
	}
}

func TestAdaptiveTakesWhateverBody(t *testing.T) {
	for name, text := range map[string]string{
		"raw": strings.Repeat("{not JSON", 500), "no text": `{"model":"llama","messages":[]}`, "nothing": "",
	} {
		t.Run(name, func(t *testing.T) {
			g := newLocal(t, adaptive(three...))
			first := g.stage(fullDuplex, none, text).end()
			if again := g.stage(fullDuplex, none, text).end(); name == "raw" && again != first {
				t.Errorf("one body went to %s and %s", first, again)
			}
			g.checkBalance()
		})
	}
}
