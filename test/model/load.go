package model

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/homing-dev/homing/test/env"
)

// Load is clients that ask, one question after the other, until the load ends.
type Load struct {
	*Client
	name    string
	ctx     context.Context
	stop    context.CancelFunc
	clients sync.WaitGroup

	mu       sync.Mutex // guards all below
	mayFail  bool       // requests, those under way included
	until    time.Time  // when they last might
	good     int
	streamed int
	bad      map[string]int // failures where none may be, by what they were
	excused  map[string]int // the others
	from, to time.Time      // the first and the last of the others
}

const (
	loadClients = 4
	loadPause   = 25 * time.Millisecond // between a client's requests, on average
	// loadJudged is how many requests are answered before a load is reported on.
	loadJudged = 150
)

// StartLoad has four clients ask until the test ends or the load does: for 200 prompts, some of them often. Every
// second answer is a stream of events.
func StartLoad(t testing.TB, name string, c *Client) *Load {
	ctx, cancel := context.WithCancel(context.Background())
	l := &Load{Client: c, name: name, ctx: ctx, stop: cancel, bad: map[string]int{}, excused: map[string]int{}}
	for i := range loadClients {
		l.clients.Go(func() { l.run(rand.New(rand.NewPCG(7, uint64(i)))) })
	}
	t.Cleanup(l.End)
	return l
}

func (l *Load) run(random *rand.Rand) {
	zipf := rand.NewZipf(random, 1.1, 5, 199)
	for n := 0; l.ctx.Err() == nil; n++ {
		var headers []string
		if n%2 == 0 {
			headers = []string{Events, "4"}
		}
		begun := time.Now()
		a := l.Ask(context.WithoutCancel(l.ctx), fmt.Sprintf("load %d", zipf.Uint64())+Filler(1200), headers...)
		l.note(a, begun, len(headers) > 0)
		time.Sleep(time.Duration(random.Int64N(int64(2 * loadPause))))
	}
}

// End has the clients stop, and waits for the answers that are under way.
func (l *Load) End() {
	l.stop()
	l.clients.Wait()
}

// MayFail says that requests may fail, those under way and those that begin before the result is called. What happens
// to a request may be known a second later: for as long Envoy keeps the connection on which it cut an answer.
func (l *Load) MayFail() (back func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mayFail = true
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.mayFail, l.until = false, time.Now()
	}
}

func (l *Load) note(a Answer, begun time.Time, streamed bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch why := a.Failure(); {
	case why == "":
		l.good++
		if streamed {
			l.streamed++
		}
	case l.mayFail || begun.Before(l.until):
		l.excused[why]++
		l.to = time.Now()
		if l.from.IsZero() {
			l.from = l.to
		}
	default:
		l.bad[why]++
	}
}

// Report waits until the load has had time to notice a step of a test, says how it has fared since the last report, and
// fails the test if a request failed that may not.
func (l *Load) Report(t testing.TB, step string) {
	t.Helper()
	env.Eventually(t, func(context.Context) error {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.good+sum(l.bad) < loadJudged && l.ctx.Err() == nil {
			return fmt.Errorf("%s: %d requests were answered well; failures: %v %v", l.name, l.good, l.bad, l.excused)
		}
		return nil
	})
	l.mu.Lock()
	defer l.mu.Unlock()
	t.Logf("%s: %s: %d requests answered, %d of them as streams; failures: %d", step, l.name, l.good, l.streamed, sum(l.bad))
	for _, why := range slices.Sorted(maps.Keys(l.bad)) {
		t.Errorf("%s: %s: %d times %s", step, l.name, l.bad[why], why)
	}
	for _, why := range slices.Sorted(maps.Keys(l.excused)) {
		t.Logf("%s: %s: while requests may fail, %d times %.150s", step, l.name, l.excused[why], why)
	}
	if len(l.excused) > 0 {
		t.Logf("%s: %s: %d requests failed, over %.1f s", step, l.name, sum(l.excused), l.to.Sub(l.from).Seconds())
	}
	l.good, l.streamed, l.from = 0, 0, time.Time{}
	clear(l.bad)
	clear(l.excused)
}

func sum(m map[string]int) (n int) {
	for _, v := range m {
		n += v
	}
	return n
}
