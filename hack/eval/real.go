package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/homing-dev/homing/pkg/simulate"
	"github.com/homing-dev/homing/test/env"
)

const (
	realEngines  = 3
	realReplicas = 2
	poolName     = "eval"
	// realShare is how much of a processor each engine gets, so that on two processors all engines can work
	// at once and none is the faster because another is idle: GPU engines lend each other nothing.
	realShare = 0.55
)

// realWorkloads are what is played on real engines, scaled down to them.
var realWorkloads = []string{"ten-chats", "skewed-prefixes", "twelve-prefixes", "few-agents", "kv-pressure"}

// way is a way to route on real engines, and what simulates it.
type way struct {
	name string
	// policy is Homing's; without one Homing is not asked.
	policy   env.Policy
	replicas int // of Homing, 1 unless said
	shared   bool
	// known says that the client names the engine, which it keeps each group at; past that it goes there by itself,
	// without Envoy.
	known, past bool
	// simulated is the strategy's name in the simulator.
	simulated string
}

func ways() []way {
	all := []way{
		{name: "Random", policy: env.Policy{Strategy: "Random"}, simulated: "Random"},
		{name: "RoundRobin", simulated: "RoundRobin"},
		{name: "LeastOutstandingRequests", policy: env.Policy{Strategy: "LeastOutstandingRequests"}, simulated: "LeastOutstandingRequests"},
	}
	for _, length := range []int{1024, 2048, 4096, 16384} {
		all = append(all, way{
			name:   fmt.Sprintf("PrefixAware(%d)", length),
			policy: env.Policy{Strategy: "PrefixAware", PrefixLength: length}, simulated: "PrefixAware",
		})
	}
	adaptive := way{name: "AdaptivePrefix", policy: env.Policy{Strategy: "AdaptivePrefix"}, simulated: "AdaptivePrefix"}
	sharing, alone := adaptive, adaptive
	sharing.name, sharing.replicas, sharing.shared = "AdaptivePrefix, two replicas", realReplicas, true
	alone.name, alone.replicas = "AdaptivePrefix, two that share nothing", realReplicas
	return append(all,
		way{name: "known groups", known: true, simulated: "KnownGroups"},
		way{name: "known groups, past the gateway", known: true, past: true, simulated: "KnownGroups"},
		adaptive, sharing, alone)
}

// stage is the running parts: engines, and for each replica of Homing an Envoy that asks it.
type stage struct {
	env     *env.Env
	engines []*env.Engine
	fronts  []*front
}

// front is an Envoy, and where its Homing is to be.
type front struct {
	files  *env.Files
	envoy  *env.Envoy
	peers  int         // the port where other replicas listen to it
	homing *env.Homing // the one of the present run, if any
}

func build(ctx context.Context, e *env.Env) (*stage, error) {
	// In a cluster the gateway does not share the engines' processors.
	engines, err := e.VLLM(ctx, realEngines, env.VLLMOptions{Nice: 10})
	if err != nil {
		return nil, err
	}
	for _, engine := range engines {
		if err := e.Limit(engine.Process, realShare); err != nil {
			return nil, err
		}
	}
	s := &stage{env: e, engines: engines}
	for range realReplicas {
		f, err := s.front(ctx)
		if err != nil {
			return nil, err
		}
		s.fronts = append(s.fronts, f)
	}
	return s, nil
}

func (s *stage) front(ctx context.Context) (*front, error) {
	files, err := s.env.Files()
	if err != nil {
		return nil, err
	}
	ports, err := env.FreePorts(2)
	if err != nil {
		return nil, err
	}
	if err := files.WritePool(env.Pool{Name: poolName, Port: ports[0], Endpoints: env.Addrs(s.engines)}); err != nil {
		return nil, err
	}
	envoy, err := s.env.Envoy(ctx, env.EnvoyOptions{
		Picker: fmt.Sprintf("127.0.0.1:%d", ports[0]), Endpoints: env.Addrs(s.engines), Plain: true, Concurrency: 1,
		Edit: func(c env.EnvoyConfig) { // without a picker a client may name the engine
			c.Cluster("plain")["load_balancing_policy"] = c.Cluster("pool")["load_balancing_policy"]
		},
	})
	return &front{files: files, envoy: envoy, peers: ports[1]}, err
}

// start starts Homings that know nothing yet, as many as the way has, and waits until Envoys reach them and they
// hear each other.
func (s *stage) start(ctx context.Context, way way) error {
	replicas := max(way.replicas, 1)
	args := []string{"--replicas", strconv.Itoa(replicas)}
	fronts := s.fronts[:replicas]
	if way.shared {
		for _, f := range fronts {
			args = append(args, "--peer", fmt.Sprintf("127.0.0.1:%d", f.peers))
		}
	}
	for _, f := range fronts {
		if err := f.files.WritePolicy(poolName, way.policy); err != nil {
			return err
		}
		own := args
		if way.shared {
			own = slices.Concat(args, []string{"--peer-port", strconv.Itoa(f.peers)})
		}
		var err error
		if f.homing, err = s.env.Homing(ctx, f.files, own...); err != nil {
			return err
		}
	}
	for _, f := range fronts {
		if err := f.reached(ctx, way.shared); err != nil {
			return err
		}
	}
	return nil
}

func (s *stage) stop() {
	for _, f := range s.fronts {
		if f.homing != nil {
			f.homing.Stop()
			f.homing = nil
		}
	}
}

// reached waits until a request for a model that no engine has is routed, and refused, and where replicas share,
// until this one hears another.
func (f *front) reached(ctx context.Context, shared bool) error {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	for {
		err := env.Probe(ctx, f.envoy.URL+"/v1/chat/completions", absent)
		if err == nil && shared {
			err = f.hears(ctx)
		}
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("through Envoy: %w", err)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// absent is a chat for a model that no engine has.
var absent = chat{Model: "absent", Messages: []message{{"user", "hello"}}, MaxTokens: 1}

// hears says nil once the replica hears another.
func (f *front) hears(ctx context.Context) error {
	m, err := f.homing.Metrics(ctx)
	if err == nil && m.Sum("homing_peers_heard") == 0 {
		err = errors.New("the replicas do not hear each other")
	}
	return err
}

// Real is what one way came to on real engines, with one seed.
type Real struct {
	Workload string  `json:"workload"`
	Way      string  `json:"way"`
	Seed     uint64  `json:"seed"`
	Mean     float64 `json:"ttft_mean_seconds"`
	P50      float64 `json:"ttft_p50_seconds"`
	P90      float64 `json:"ttft_p90_seconds"`
	HitRate  float64 `json:"token_hit_rate"`
	// Shares are each engine's share of the requests.
	Shares []float64 `json:"request_shares"`
	Took   float64   `json:"seconds"`
}

func (r *Real) String() string {
	return fmt.Sprintf("%-16s seed %d  %-30s TTFT mean %.3f s, P50 %.3f, P90 %.3f, hit rate %.1f %%, shares %.2f, %.0f s",
		r.Workload, r.Seed, r.Way, r.Mean, r.P50, r.P90, 100*r.HitRate, r.Shares, r.Took)
}

// play sends a workload one way.
func (s *stage) play(ctx context.Context, name string, way way, seed uint64) (*Real, error) {
	w, err := load{name: name, rate: 1, engines: realEngines}.workload(simulate.All, seed)
	if err != nil {
		return nil, err
	}
	urls, err := s.urls(ctx, way)
	if err != nil {
		return nil, err
	}
	defer s.stop()
	before, err := env.CountAll(ctx, s.engines)
	if err != nil {
		return nil, err
	}
	p := &player{workload: w, salt: fmt.Sprintf("%s %s %d.", name, way.name, seed), urls: urls, rand: rand.New(rand.NewPCG(seed, 9))}
	if way.known {
		p.homes, p.engines, p.past = map[uint64]int{}, s.engines, way.past
	}
	begun := time.Now()
	if err := p.run(ctx); err != nil {
		return nil, err
	}
	r := &Real{Workload: name, Way: way.name, Seed: seed, Took: time.Since(begun).Seconds()}
	slices.Sort(p.ttft)
	for _, t := range p.ttft {
		r.Mean += t / float64(len(p.ttft))
	}
	r.P50, r.P90 = p.ttft[len(p.ttft)/2], p.ttft[len(p.ttft)*9/10]
	return r, s.settle(ctx, before, w.Requests(), r)
}

// urls is where requests go, each to one of them by chance.
func (s *stage) urls(ctx context.Context, way way) (urls []string, err error) {
	if way.policy.Strategy == "" {
		return []string{s.fronts[0].envoy.Plain}, nil
	}
	if err := s.start(ctx, way); err != nil {
		return nil, err
	}
	for _, f := range s.fronts {
		if f.homing != nil {
			urls = append(urls, f.envoy.URL)
		}
	}
	return urls, nil
}

// settle waits until the engines have counted all requests, a moment after they answered.
func (s *stage) settle(ctx context.Context, before []env.Counts, requests int, r *Real) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	for {
		after, err := env.CountAll(ctx, s.engines)
		if err != nil {
			return err
		}
		var sum env.Counts
		r.Shares = nil
		for i := range after {
			sum.Hits += after[i].Hits - before[i].Hits
			sum.Queries += after[i].Queries - before[i].Queries
			sum.Finished += after[i].Finished - before[i].Finished
			r.Shares = append(r.Shares, (after[i].Finished-before[i].Finished)/float64(requests))
		}
		if sum.Finished >= float64(requests) {
			r.HitRate = sum.Hits / sum.Queries
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the engines count %.0f requests of %d: %w", sum.Finished, requests, ctx.Err())
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// player plays a workload's sessions in a closed loop, as the simulator does.
type player struct {
	workload *simulate.Workload
	salt     string // makes the text one that no other run had
	urls     []string
	engines  []*env.Engine // where the client knows which it wants
	past     bool          // it goes there by itself

	mu    sync.Mutex
	rand  *rand.Rand     // guarded by mu
	ready []*session     // guarded by mu; those that no client works on, the longest idle first
	homes map[uint64]int // guarded by mu; of groups, if they are known: which of the engines
	ttft  []float64      // guarded by mu; seconds
}

type chat struct {
	Model     string    `json:"model"`
	Messages  []message `json:"messages"`
	MaxTokens int       `json:"max_tokens"`
	Stream    bool      `json:"stream"`
	IgnoreEOS bool      `json:"ignore_eos,omitempty"`
}

type message struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

// stream sends a request, reads the answer's stream to its end, and returns the time to its first token. Headers
// are names and values in turn.
func stream(ctx context.Context, url string, body any, headers ...string) (time.Duration, error) {
	begun := time.Now()
	resp, err := env.Post(ctx, url, body, headers...)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	first, err := env.ReadStream(resp)
	return first.Sub(begun), err
}

type session struct {
	turns []simulate.Turn
	next  int
}

func (p *player) run(ctx context.Context) error {
	for _, s := range p.workload.Sessions {
		p.ready = append(p.ready, &session{turns: s.Turns})
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var clients sync.WaitGroup
	for range p.workload.Clients {
		clients.Go(func() {
			for s := p.take(); s != nil && ctx.Err() == nil; {
				turn := s.turns[s.next]
				s.next++
				if err := p.ask(ctx, turn.Request); err != nil {
					cancel(err)
					return
				}
				more := s.next < len(s.turns)
				switch {
				case more && p.workload.Interleave:
					p.mu.Lock()
					p.ready = append(p.ready, s)
					p.mu.Unlock()
					s = p.take()
				case !more:
					s = p.take()
				}
			}
		})
	}
	clients.Wait()
	return context.Cause(ctx)
}

// take is the session that has been idle the longest, nil if there is none.
func (p *player) take() *session {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.ready) == 0 {
		return nil
	}
	s := p.ready[0]
	p.ready = p.ready[1:]
	return s
}

// to is where a request goes, and the header that names the engine to a gateway without a picker, if the client
// does. A client that knows the groups gives a new one to the engine with the fewest.
func (p *player) to(r *simulate.Request) (url string, headers []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	url = p.urls[p.rand.IntN(len(p.urls))]
	if p.homes == nil {
		return url, nil
	}
	home, seen := p.homes[r.Group]
	if !seen {
		counts := make([]int, len(p.engines))
		for _, h := range p.homes {
			counts[h]++
		}
		home = slices.Index(counts, slices.Min(counts))
		p.homes[r.Group] = home
	}
	if p.past {
		return p.engines[home].URL, nil
	}
	return url, []string{"x-gateway-destination-endpoint", p.engines[home].Addr}
}

func (p *player) ask(ctx context.Context, r *simulate.Request) error {
	c := chat{Model: env.Model, MaxTokens: r.Output, Stream: true, IgnoreEOS: true}
	for i, m := range r.Messages() {
		role := "system"
		if i > 0 {
			role = []string{"assistant", "user"}[i%2]
		}
		c.Messages = append(c.Messages, message{role, p.text(m)})
	}
	url, headers := p.to(r)
	first, err := stream(ctx, url+"/v1/chat/completions", c, headers...)
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ttft = append(p.ttft, first.Seconds())
	return nil
}

// vocabulary is words that are one token each, near enough, for the tiny model.
var vocabulary = strings.Fields(`careful assistant support desk answer question user words endpoint picker
	sends request replica whose cache holds longest prefix prompt gateway reads body model name messages
	tools headers when two replicas hold same prefix one with shorter queue wins none does any may serve
	weather take city unit give back temperature wind speed short description`)

// text is a message's text: about as many tokens as it has, the template's among them.
func (p *player) text(m simulate.Message) string {
	r := rand.New(rand.NewPCG(m.ID, 5))
	words := []string{p.salt}
	for range max(m.Tokens*95/100-2-len(p.salt)/3, 1) {
		words = append(words, vocabulary[r.IntN(len(vocabulary))])
	}
	return strings.Join(words, " ")
}
