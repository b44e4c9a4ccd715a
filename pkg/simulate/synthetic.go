package simulate

import (
	"math"
	"math/rand/v2"
	"sort"
	"time"
)

// maker makes up a workload: all its text is new, unless it is used again.
type maker struct {
	rand *rand.Rand
	ids  uint64
	WorkloadOptions
}

func newMaker(o WorkloadOptions) *maker {
	return &maker{rand: rand.New(rand.NewPCG(o.Seed, 0x5eed)), WorkloadOptions: o}
}

// text is a message of that many tokens which no other has.
func (m *maker) text(tokens int) Span {
	m.ids++
	return Span{ID: m.ids, Tokens: max(tokens, 1), EndsMessage: true}
}

// ask is a request of that group whose answer, output tokens long, is the span returned.
func (m *maker) ask(group uint64, prompt []Span, output int) (*Request, Span) {
	answer := m.text(output)
	r := NewRequest(prompt, answer.ID, answer.Tokens, m.CharsPerToken)
	r.Group = group
	return r, answer
}

// length draws from a log-normal distribution with that median and shape, at most limit.
func (m *maker) length(median, sigma float64, limit int) int {
	return min(max(int(median*math.Exp(sigma*m.rand.NormFloat64())), 1), limit)
}

// pause draws from an exponential distribution with that mean.
func (m *maker) pause(mean time.Duration) time.Duration {
	return time.Duration(m.rand.ExpFloat64() * float64(mean))
}

// gap draws the time to the next session, if seven engines would get perSecond and those at hand their share.
func (m *maker) gap(perSecond float64) time.Duration {
	return m.pause(time.Duration(float64(time.Second) * 7 / perSecond / float64(m.Engines)))
}

// conversation is turns that each hold all that was said before.
type conversation struct {
	turns    int
	opening  []Span // what all conversations of its kind begin with
	first    int    // tokens that the first question has more than others
	question func() int
	answer   func() int
	think    time.Duration // mean, between an answer and the next question
	longest  int           // tokens of a prompt, at which it ends
	group    uint64
}

func (m *maker) converse(c conversation) (turns []Turn) {
	history := append([]Span(nil), c.opening...)
	length := 0
	for _, s := range history {
		length += s.Tokens
	}
	for i := range c.turns {
		n := c.question()
		if i == 0 {
			n += c.first
		}
		history = append(history, m.text(n))
		request, answer := m.ask(c.group, history, c.answer())
		turn := Turn{Request: request}
		if i > 0 && c.think > 0 {
			turn.After = m.pause(c.think)
		}
		turns = append(turns, turn)
		history = append(history, answer)
		if length += n + answer.Tokens; length > c.longest {
			break
		}
	}
	return turns
}

// sharedSystem is chats under one system prompt: a key within it is the same for all.
func sharedSystem(o WorkloadOptions) (*Workload, error) {
	m, w := newMaker(o), &Workload{}
	system := []Span{m.text(2000)}
	for at := time.Duration(0); at < 10*time.Minute; at += m.gap(5) {
		w.Sessions = append(w.Sessions, Session{Start: at, Turns: m.converse(conversation{
			turns: 1 + int(m.rand.ExpFloat64()*5), opening: system, group: m.rand.Uint64(),
			question: func() int { return m.length(60, 1, 4000) }, answer: func() int { return m.length(200, .7, 1500) },
			think: 20 * time.Second, longest: 32_000,
		})})
	}
	return w, nil
}

// prefixes is requests with one of n prefixes each, and a question of their own.
type prefixes struct {
	prefixTokens, questionTokens, outputTokens int
	choose                                     func(at time.Duration) uint64
	made                                       map[uint64]Span
}

func (m *maker) withPrefix(p *prefixes, at time.Duration) Session {
	group := p.choose(at)
	prefix, ok := p.made[group]
	if !ok {
		prefix = m.text(p.prefixTokens)
		p.made[group] = prefix
	}
	question := m.text(m.length(float64(p.questionTokens), .5, 10*p.questionTokens))
	r, _ := m.ask(group, []Span{prefix, question}, m.length(float64(p.outputTokens), .5, 10*p.outputTokens))
	return Session{Start: at, Turns: []Turn{{Request: r}}}
}

// zipfPrefixes is 3,000 prefixes of 4,000 tokens, more than all caches hold, the i-th asked for in
// proportion to 1/i.
func zipfPrefixes(o WorkloadOptions) (*Workload, error) {
	m, w := newMaker(o), &Workload{}
	zipf := newZipf(3000, 1)
	p := &prefixes{
		prefixTokens: 4000, questionTokens: 150, outputTokens: 120, made: map[uint64]Span{},
		choose: func(time.Duration) uint64 { return zipf.draw(m.rand) },
	}
	for at := time.Duration(0); at < 10*time.Minute; at += m.gap(30) {
		w.Sessions = append(w.Sessions, m.withPrefix(p, at))
	}
	return w, nil
}

// flashHot is 400 prefixes asked for alike, until one of them gets two requests in three for a while.
func flashHot(o WorkloadOptions) (*Workload, error) {
	m, w := newMaker(o), &Workload{}
	p := &prefixes{
		prefixTokens: 6000, questionTokens: 150, outputTokens: 150, made: map[uint64]Span{},
		choose: func(at time.Duration) uint64 {
			if at >= 3*time.Minute && at < 6*time.Minute && m.rand.IntN(3) > 0 {
				return 0
			}
			return 1 + m.rand.Uint64N(400)
		},
	}
	for at := time.Duration(0); at < 9*time.Minute; at += m.gap(35) {
		w.Sessions = append(w.Sessions, m.withPrefix(p, at))
	}
	return w, nil
}

// agents is loops of a few kinds, each with its instructions and tools, that call a tool and read its
// answer until their task is done.
func agents(o WorkloadOptions) (*Workload, error) {
	m, w := newMaker(o), &Workload{}
	var kinds [][]Span
	for range 5 {
		kinds = append(kinds, []Span{m.text(3000)})
	}
	for at := time.Duration(0); at < 10*time.Minute; at += m.gap(1.2) {
		w.Sessions = append(w.Sessions, Session{Start: at, Turns: m.converse(conversation{
			turns: 5 + m.rand.IntN(26), opening: kinds[m.rand.IntN(len(kinds))], first: 500, group: m.rand.Uint64(),
			question: func() int { return m.length(500, 1, 8000) }, answer: func() int { return m.length(100, .6, 800) },
			think: 2 * time.Second, longest: 64_000,
		})})
	}
	return w, nil
}

// tenChats is ten conversations of ten turns under one system prompt of so many tokens, taken up in turn by
// some clients. With 270 tokens, 200 words, and four clients it is after a run on three real engines with KV for
// 17,000 tokens each. The questions' length was not recorded: of medians of 300 to 600 tokens, 400 came nearest
// to the mean TTFT measured there, so that likeness shows nothing by itself.
func tenChats(system, clients int) func(WorkloadOptions) (*Workload, error) {
	return func(o WorkloadOptions) (*Workload, error) {
		m, w := newMaker(o), &Workload{Clients: clients, Interleave: true}
		opening := []Span{m.text(system)}
		for i := range uint64(10) {
			w.Sessions = append(w.Sessions, Session{Turns: m.converse(conversation{
				turns: 10, opening: opening, group: i, question: func() int { return m.length(400, .4, 1500) },
				answer: func() int { return 16 }, longest: 1 << 20,
			})})
		}
		return w, nil
	}
}

// fewAgents is agents scaled down as tenChats is: tools answer at once, and four loops go on at a time.
func fewAgents(o WorkloadOptions) (*Workload, error) {
	m, w := newMaker(o), &Workload{Clients: 4}
	kinds := [][]Span{{m.text(800)}, {m.text(800)}, {m.text(800)}}
	for i := range uint64(9) {
		w.Sessions = append(w.Sessions, Session{Turns: m.converse(conversation{
			turns: 5 + m.rand.IntN(6), opening: kinds[i%3], first: 200, group: i,
			question: func() int { return m.length(250, .7, 1500) }, answer: func() int { return m.length(24, .4, 80) },
			longest: 8_000,
		})})
	}
	return w, nil
}

// zipf draws 0..n-1, i in proportion to 1/(i+1)^s.
type zipf struct{ sums []float64 }

func newZipf(n int, s float64) *zipf {
	z := &zipf{}
	sum := 0.
	for i := range n {
		sum += math.Pow(float64(i+1), -s)
		z.sums = append(z.sums, sum)
	}
	return z
}

func (z *zipf) draw(r *rand.Rand) uint64 {
	at := r.Float64() * z.sums[len(z.sums)-1]
	return uint64(sort.SearchFloat64s(z.sums, at)) //nolint:gosec // an index
}

// sagemakerLong stands for the long run that Amazon published figures of for SageMaker's PREFIX_AWARE
// strategy: seven engines, prefixes of 8,000 tokens. The rest was fitted to those figures, among some 30
// settings tried, and a front end of 80 ms with it: 3,700 requests, 28 clients, questions of about 200 tokens
// and answers of about 400. There are 550 prefixes because random routing then hits as published.
func sagemakerLong(o WorkloadOptions) (*Workload, error) {
	m := newMaker(o)
	w := &Workload{Clients: 4 * o.Engines}
	p := &prefixes{
		prefixTokens: 8000, questionTokens: 200, outputTokens: 400, made: map[uint64]Span{},
		choose: func(time.Duration) uint64 { return m.rand.Uint64N(550) },
	}
	for range 3700 {
		w.Sessions = append(w.Sessions, m.withPrefix(p, 0))
	}
	return w, nil
}

// sagemakerShort stands for the short run, conversations in the manner of ShareGPT. All of it was fitted,
// among some 240 settings tried: 1,000 conversations with 4 to 6 turns, 17 clients, questions of about 100
// tokens and answers of about 300, and prefixLength 1024.
func sagemakerShort(o WorkloadOptions) (*Workload, error) {
	m := newMaker(o)
	w := &Workload{Clients: 5 * o.Engines / 2, Interleave: true}
	for i := range uint64(1000) {
		w.Sessions = append(w.Sessions, Session{Turns: m.converse(conversation{
			turns: 4 + m.rand.IntN(3), group: i, question: func() int { return m.length(100, 1, 3000) },
			answer: func() int { return m.length(300, .5, 1500) }, longest: 16_000,
		})})
	}
	return w, nil
}

// groupsOf is requests for groups of the same opening, drawn by Zipf's law with that exponent: scaled down
// for real engines on the CPU, as tenChats is.
func groupsOf(groups, tokens, requests, clients int, exponent float64) func(WorkloadOptions) (*Workload, error) {
	return func(o WorkloadOptions) (*Workload, error) {
		m, w := newMaker(o), &Workload{Clients: clients}
		draw := newZipf(groups, exponent)
		p := &prefixes{
			prefixTokens: tokens, questionTokens: 40, outputTokens: 16, made: map[uint64]Span{},
			choose: func(time.Duration) uint64 { return draw.draw(m.rand) },
		}
		for range requests {
			w.Sessions = append(w.Sessions, m.withPrefix(p, 0))
		}
		return w, nil
	}
}
