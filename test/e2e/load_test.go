package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/homing-dev/homing/test/env"
	"github.com/homing-dev/homing/test/model"
)

// answer is what a client got.
type answer struct {
	status   int // 0 when there was no response
	served   string
	upstream string
	body     string
	err      error
}

// ask sends a chat and reads the answer to its end.
func ask(ctx context.Context, client *http.Client, url, prompt string, headers ...string) (a answer) {
	resp, err := begin(ctx, client, url, prompt, headers...)
	if err != nil {
		return answer{err: err}
	}
	defer resp.Body.Close()
	a.status, a.served, a.upstream = resp.StatusCode, resp.Header.Get(model.ServedBy), resp.Header.Get(upstream)
	body, err := io.ReadAll(resp.Body)
	a.body, a.err = string(body), err
	return a
}

// begin sends a chat and gives the answer once its headers have come.
func begin(ctx context.Context, client *http.Client, url, prompt string, headers ...string) (*http.Response, error) {
	body, err := json.Marshal(map[string]any{"model": "tiny", "max_tokens": 4, "messages": []any{map[string]any{"role": "user", "content": prompt}}})
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(string(body)))
	if err != nil {
		return nil, err
	}
	req.Header.Set("content-type", "application/json")
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	return client.Do(req)
}

// failure is a description of an answer that is not a good one, empty for a good one.
func (a answer) failure() string {
	switch {
	case a.err != nil:
		return fmt.Sprintf("status %d: %v", a.status, a.err)
	case a.status != http.StatusOK:
		return fmt.Sprintf("status %d: %s", a.status, a.body)
	default:
		return ""
	}
}

// load is clients that ask, one question after the other, until they are stopped.
type load struct {
	name    string
	url     string
	ctx     context.Context
	stop    context.CancelFunc
	clients sync.WaitGroup
	// away says that requests may fail, because there is no pool or no endpoint.
	away atomic.Bool

	mu       sync.Mutex // guards all below
	good     int
	bad      map[string]int // failures where none may be, by what they were
	excused  map[string]int // failures while away
	streamed int
}

const (
	loadClients = 4
	loadPause   = 25 * time.Millisecond // between a client's requests, on average
)

// startLoad has clients ask at a URL until the test ends or the load is ended. Every second answer is a stream of
// events.
func startLoad(t *testing.T, name, url string) *load {
	ctx, cancel := context.WithCancel(context.Background())
	l := &load{name: name, url: url, ctx: ctx, stop: cancel, bad: map[string]int{}, excused: map[string]int{}}
	client := httpClient(t)
	for i := range loadClients {
		random := rand.New(rand.NewPCG(7, uint64(i)))
		zipf := rand.NewZipf(random, 1.1, 5, 199)
		l.clients.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				prompt := fmt.Sprintf("load %d", zipf.Uint64()) + filler(1200)
				headers := []string{}
				if n%2 == 0 {
					headers = []string{model.Events, "4"}
				}
				excused := l.away.Load()
				a := ask(context.WithoutCancel(ctx), client, url, prompt, headers...)
				l.note(a, excused || l.away.Load(), len(headers) > 0)
				time.Sleep(time.Duration(random.Int64N(int64(2 * loadPause))))
			}
		})
	}
	t.Cleanup(l.end)
	return l
}

func (l *load) end() {
	l.stop()
	l.clients.Wait()
}

func (l *load) note(a answer, excused, streamed bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch why := a.failure(); {
	case why == "" && streamed && !strings.HasSuffix(a.body, model.Last) && a.served != "":
		l.bad["cut short: "+a.body]++
	case why == "":
		l.good++
		if streamed {
			l.streamed++
		}
	case excused:
		l.excused[why]++
	default:
		l.bad[why]++
	}
}

// atLeast is how many requests are answered in a step before it is judged.
const atLeast = 150

// report says how the load has fared since the last report, and fails the test if a request failed that may not.
func (l *load) report(t *testing.T, step string) {
	t.Helper()
	env.Eventually(t, func(context.Context) error {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.good+sum(l.bad) < atLeast && l.ctx.Err() == nil {
			return fmt.Errorf("%s: only %d requests were answered", l.name, l.good)
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
		t.Logf("%s: %s: while requests may fail, %d times %.120s", step, l.name, l.excused[why], why)
	}
	l.good, l.streamed = 0, 0
	clear(l.bad)
	clear(l.excused)
}

func sum(m map[string]int) (n int) {
	for _, v := range m {
		n += v
	}
	return n
}

// filler is a text of n characters.
func filler(n int) string { return strings.Repeat(" all happy families are alike", n/29+1)[:n] }

func httpClient(t *testing.T) *http.Client {
	transport := &http.Transport{MaxIdleConnsPerHost: 100}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, Timeout: time.Minute}
}
