package gateways

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/homing-dev/homing/test/env"
	"github.com/homing-dev/homing/test/model"
)

// prompts are n that begin differently.
func prompts(name string, n int) []string {
	all := make([]string, n)
	for i := range all {
		all[i] = fmt.Sprint(name, " ", i, model.Filler(1500))
	}
	return all
}

// followsPicks asks for thirty prompts, three times. Each prompt must be served at one place and each model server serve
// some, which is what no round robin does. The pools keep to their own servers and count their own requests.
func (s *site) followsPicks(t *testing.T) {
	for pool, c := range map[string]*model.Client{large: s.large, small: s.small} {
		before, err := s.sum(t.Context(), "homing_picks_total", "pool_name", pool)
		env.Check(t, err)
		asked := prompts("prompt", 30)
		homes, err := c.AskAll(t.Context(), asked)
		env.Check(t, err)
		for range 2 {
			again, err := c.AskAll(t.Context(), asked)
			env.Check(t, err)
			for prompt, home := range homes {
				if again[prompt] != home {
					t.Errorf("%s: %.10s was served by %s, then by %s", pool, prompt, home, again[prompt])
				}
			}
		}
		if got := model.Distinct(homes); !slices.Equal(got, s.names(pool)) {
			t.Errorf("%s: served by %v, want all of %v", pool, got, s.names(pool))
		}
		s.want(t, before+90, "homing_picks_total", "pool_name", pool)
	}
	s.settles(t)
}

// names are those of a pool's servers, in order.
func (s *site) names(pool string) []string {
	var names []string
	for _, m := range s.servers[pool] {
		names = append(names, m.Name)
	}
	slices.Sort(names)
	return names
}

// hold begins n answers, each to a prompt of its own, that stay open.
func (s *site) hold(ctx context.Context, t *testing.T, hold string, n int) []*http.Response {
	t.Helper()
	var streams []*http.Response
	for _, prompt := range prompts(hold, n) {
		resp, err := s.large.Begin(ctx, prompt, model.Hold, hold)
		env.Check(t, err)
		if resp.StatusCode != http.StatusOK {
			t.Fatalf("status %s of a stream", resp.Status)
		}
		streams = append(streams, resp)
	}
	return streams
}

// countsStreams: a response in a stream is in flight at the endpoint that serves it, to its end.
func (s *site) countsStreams(t *testing.T) {
	const n = 12
	hold := t.Name() + " streams"
	streams := s.hold(t.Context(), t, hold, n)
	at := map[string]int{}
	for _, stream := range streams {
		at[stream.Header.Get(model.ServedBy)]++
	}
	s.want(t, n, "homing_in_flight_requests")
	for _, m := range s.servers[large] {
		s.want(t, float64(at[m.Name]), "homing_in_flight_requests", "endpoint", m.Name)
	}
	s.models.Open(hold)
	for _, stream := range streams {
		if a := model.End(stream); a.Err != nil || a.Body != model.First+model.Last {
			t.Errorf("a stream ended as %q, %v", a.Body, a.Err)
		}
	}
	s.settles(t)
}

// many is how many responses are under way at once in holdsMany: more than Envoy's defaults allow.
const many = 1500

// holdsMany has many responses under way, which end at the same moment. Neither may be too much for the gateway.
func (s *site) holdsMany(t *testing.T) {
	hold := t.Name() + " many"
	next := make(chan string)
	answers := make(chan model.Answer, many)
	var begun, ended sync.WaitGroup
	for range 16 {
		begun.Go(func() {
			for prompt := range next {
				resp, err := s.large.Begin(t.Context(), prompt, model.Hold, hold)
				if err != nil {
					answers <- model.Answer{Err: err}
					continue
				}
				ended.Go(func() { answers <- model.End(resp) })
			}
		})
	}
	for i := range many {
		next <- fmt.Sprint("many ", i)
	}
	close(next)
	begun.Wait()
	inFlight, err := s.sum(t.Context(), "homing_in_flight_requests")
	env.Check(t, err)
	s.models.Open(hold)
	ended.Wait()
	close(answers)
	failures := map[string]int{}
	for a := range answers {
		if why := a.Failure(); why != "" {
			failures[why]++
		}
	}
	t.Logf("%v requests in flight at once", inFlight)
	for why, n := range failures {
		t.Errorf("%d of %d times %s", n, many, why)
	}
	if inFlight != many {
		t.Errorf("%v requests were in flight, want %d", inFlight, many)
	}
	s.settles(t)
}

// releasesAborted: a client that leaves during its response ends it everywhere.
func (s *site) releasesAborted(t *testing.T) {
	const n = 12
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	left := func() (sum int64) {
		for _, m := range s.servers[large] {
			sum += m.Left.Load()
		}
		return sum
	}
	before := left()
	streams := s.hold(ctx, t, t.Name()+" aborts", n)
	s.want(t, n, "homing_in_flight_requests")
	leave()
	for _, stream := range streams {
		_ = stream.Body.Close()
	}
	s.settles(t)
	env.Eventually(t, func(context.Context) error {
		if got := left() - before; got != n {
			return fmt.Errorf("%d clients left their model servers, want %d", got, n)
		}
		return nil
	})
}

// takesSecondChoice has a model server fall silent whose end nobody has noticed: its requests go to the second of
// Homing's list, which the endpoint header carries here for the test to see. told says that the gateway tells Homing
// who served.
func (s *site) takesSecondChoice(t *testing.T, told bool) {
	before, err := s.sum(t.Context(), "homing_served_elsewhere_total")
	env.Check(t, err)
	asked := prompts("choice", 30)
	victim := s.servers[large][0]
	victim.Silence()
	second := 0
	for _, prompt := range asked {
		a := s.large.Ask(t.Context(), prompt)
		if why := a.Failure(); why != "" {
			t.Fatal(why)
		}
		choices := strings.Split(a.Header.Get(model.Picked), ",")
		if len(choices) != 3 {
			t.Fatalf("the endpoint header is %q, want three endpoints", choices)
		}
		want := choices[0]
		if want == victim.Address {
			want = choices[1]
			second++
		}
		if served := a.Header.Get(model.Address); served != want {
			t.Errorf("%.10s: served at %s, want %s of %v; silent is %s", prompt, served, want, choices, victim.Address)
		}
	}
	if second == 0 {
		t.Errorf("no prompt is at home at %s", victim.Name)
	}
	t.Logf("%d of %d prompts were at home at the silent server, and went to their second choice", second, len(asked))
	if told {
		s.want(t, before+float64(second), "homing_served_elsewhere_total")
	}
	env.Check(t, victim.Again())
	s.answers(t)
	s.settles(t)
}

// survives takes the site through something under load. harmless says that no request may fail of it; otherwise those
// may that are under way or asked before it is over.
func (s *site) survives(t *testing.T, harmless bool, what func(*testing.T)) {
	loads := []*model.Load{model.StartLoad(t, large, s.large), model.StartLoad(t, small, s.small)}
	func() {
		for _, l := range loads {
			if !harmless {
				defer l.MayFail()()
			}
		}
		what(t)
		s.answers(t)
	}()
	for _, l := range loads {
		l.Report(t, t.Name())
		l.End()
	}
	s.settles(t)
}

// doublesBody: a request by HTTP/2 that ends in trailers reaches the model server with its body twice, because the route
// has a retry policy: envoyproxy/envoy#45470. When a newer Envoy does better, the warnings in docs/gateways can go.
func (s *site) doublesBody(t *testing.T) {
	transport := &http.Transport{Protocols: &http.Protocols{}}
	transport.Protocols.SetUnencryptedHTTP2(true)
	defer transport.CloseIdleConnections()
	body := `{"messages":[{"role":"user","content":"` + model.Filler(2000) + `"}]}`
	for trailers, copies := range map[bool]int{false: 1, true: 2} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.large.URL+"/v1/chat/completions", io.NopCloser(strings.NewReader(body)))
		env.Check(t, err)
		req.Host = s.large.Host
		req.Header.Set("content-type", "application/json")
		if trailers {
			req.Trailer = http.Header{"X-Sum": {"1"}}
		}
		resp, err := transport.RoundTrip(req)
		env.Check(t, err)
		a := model.End(resp)
		if why := a.Failure(); why != "" {
			t.Fatal(why)
		}
		if got := a.Header.Get(model.Received); got != strconv.Itoa(copies*len(body)) {
			t.Errorf("with trailers %t: of %d bytes %s were received, want %d times as many", trailers, len(body), got, copies)
		}
	}
	s.settles(t)
}

// statuses is how requests with and without a body are answered, ten of each.
func statuses(ctx context.Context, c *model.Client) (post, get map[int]int) {
	post, get = map[int]int{}, map[int]int{}
	for range 10 {
		post[c.Ask(ctx, "is anybody there").Status]++
		get[c.Get(ctx, "/v1/models").Status]++
	}
	return post, get
}
