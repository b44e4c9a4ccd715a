package dataplane

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/homing-dev/homing/test/env"
)

// TestDrain sends SIGTERM while responses are under way through Homing. They come to their end, the counts
// with them, and a successor takes over on the same ports.
func TestDrain(t *testing.T) {
	most, last := newGate(), newGate()
	r := newRig(t, setup{envoy: bothWays.apply, serve: func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.RawQuery {
		case "most":
			most.stream(w, r)
		case "last":
			last.stream(w, r)
		default:
			echo(w, r)
		}
	}})
	const n = 30
	var answers []<-chan answer
	for i := range n {
		client := []*http.Client{r.client, r.h2}[i%2]
		answers = append(answers, start(client, request(t, r.envoy.URL+"/v1/chat/completions?most", strings.NewReader(chat("most", 3000)))))
	}
	lastAnswer := start(r.client, request(t, r.envoy.URL+"/v1/chat/completions?last", strings.NewReader(chat("last", 3000))))
	r.wantStreaming(n + 1)

	if err := r.homing.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	eventually(t, "new requests", func() error {
		if got := post(t, r.client, r.envoy.URL+"/v1/chat/completions", chat("late", 500)); got.status != http.StatusInternalServerError {
			return fmt.Errorf("status %d, want 500 once the port is closed", got.status)
		}
		return nil
	})
	r.want(n+1, "homing_in_flight_requests")
	most.open()
	for _, answered := range answers {
		if got := await(t, "a response", answered); got.err != nil || got.body != whole {
			t.Errorf("a draining Homing cut a response: %q, %v", got.body, got.err)
		}
	}
	r.want(1, "homing_in_flight_requests")
	m := r.metrics()
	if picks, releases := m.Sum("homing_picks_total"), m.Sum("homing_releases_total"); picks != releases+1 {
		t.Errorf("%v picks, %v releases with one request in flight", picks, releases)
	}
	last.open()
	if got := await(t, "the last response", lastAnswer); got.err != nil || got.body != whole {
		t.Errorf("a draining Homing cut the last response: %q, %v", got.body, got.err)
	}
	await(t, "Homing's end", r.homing.Done())
	if err := r.homing.Err(); err != nil {
		t.Errorf("Homing ended with %v", err)
	}

	r.startHoming(setup{})
	eventually(t, "requests to the successor", func() error {
		got := post(t, r.client, r.envoy.URL+"/v1/chat/completions", chat("late", 500))
		if got.status != http.StatusOK {
			return fmt.Errorf("status %d", got.status)
		}
		return nil
	})
	r.settles()
}

// whole is what a gate's stream sends.
const whole = "data: first\n\ndata: [DONE]\n\n"

// TestDrainTimeout has responses outlast the drain: Homing ends nevertheless, and says so.
func TestDrainTimeout(t *testing.T) {
	gate := newGate()
	r := newRig(t, setup{envoy: bothWays.apply, serve: gate.stream, homing: []string{"--drain-timeout", "100ms"}})
	answered := start(r.client, request(t, r.envoy.URL+"/v1/chat/completions", strings.NewReader(chat("cut", 3000))))
	r.wantStreaming(1)
	if err := r.homing.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	await(t, "Homing's end", r.homing.Done())
	if err := r.homing.Err(); err != nil {
		t.Errorf("Homing ended with %v", err)
	}
	if log := r.homing.Log(); !strings.Contains(log, "Cutting the streams") {
		t.Error("Homing does not say that it cut streams")
	}
	// With failure_mode_allow off, Envoy ends the response too.
	if got := await(t, "the response", answered); got.err == nil {
		t.Errorf("the response ended well: %q", got.body)
	}
}

// TestSecondSignal: who does not want to wait sends it twice.
func TestSecondSignal(t *testing.T) {
	gate := newGate()
	r := newRig(t, setup{envoy: bothWays.apply, serve: gate.stream})
	start(r.client, request(t, r.envoy.URL+"/v1/chat/completions", strings.NewReader(chat("held", 3000))))
	r.wantStreaming(1)
	eventually(t, "Homing's end", func() error {
		if err := r.homing.Signal(syscall.SIGTERM); err != nil {
			return nil // it has ended
		}
		return errors.New("it has not come")
	})
	var exit *exec.ExitError
	if err := r.homing.Err(); !errors.As(err, &exit) {
		t.Errorf("Homing ended with %v, want the signal", err)
	}
}

// TestStorm has clients and model servers fail in every way at once, while the pool and its policy
// change under them.
func TestStorm(t *testing.T) {
	r := newRig(t, setup{policy: env.Policy{PrefixLength: 1024, ConcurrencyThreshold: 3}, serve: stormy})
	var clients sync.WaitGroup
	for client := range 24 {
		random := rand.New(rand.NewPCG(1, uint64(client)))
		clients.Go(func() {
			for i := range 25 {
				r.stormyRequest(random, fmt.Sprint(client, i))
			}
		})
	}
	over := make(chan struct{})
	go func() { clients.Wait(); close(over) }()
	for i := 0; ; i++ {
		pool := r.pool
		pool.Endpoints = pool.Endpoints[:1+i%len(pool.Endpoints)]
		r.check(r.files.WritePool(pool))
		r.check(r.files.WritePolicy(r.pool.Name, env.Policy{
			PrefixLength: 1024, ConcurrencyThreshold: 3,
			Strategy:   []string{"PrefixAware", "LeastOutstandingRequests", "Random"}[i%3],
			Saturation: []string{"Overflow", "Reject"}[i%2],
		}))
		select {
		case <-over:
			r.check(r.files.WritePool(r.pool)) // so that every endpoint is seen to be at zero
			eventually(t, "endpoints", func() error {
				if n := len(r.metrics()["homing_in_flight_requests"].GetMetric()); n != len(r.backends) {
					return fmt.Errorf("%d, want %d", n, len(r.backends))
				}
				return nil
			})
			picks := r.settles()
			t.Logf("%v picks over %d changes of the pool", picks, i)
			r.wantStreams(0, "end", "panic")
			r.wantStreams(0, "end", "failed")
			return
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// stormyRequest sends a request of random size, and may leave at some point of it.
func (r *rig) stormyRequest(random *rand.Rand, seed string) {
	path := []string{"/v1/chat/completions", "/invocations", "/v1/models"}[random.IntN(3)]
	body := io.Reader(unsized{strings.NewReader(chat(seed, 100+random.IntN(20_000)))})
	if random.IntN(4) == 0 {
		body = &dribble{rest: body, pause: time.Duration(random.IntN(3)) * time.Millisecond}
	}
	ctx, cancel := context.WithCancel(r.t.Context())
	defer cancel()
	if random.IntN(3) == 0 {
		time.AfterFunc(time.Duration(random.IntN(30))*time.Millisecond, cancel)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, fmt.Sprintf("%s%s?storm=%d", r.envoy.URL, path, random.IntN(8)), body)
	if err != nil {
		panic(err)
	}
	do([]*http.Client{r.client, r.h2}[random.IntN(2)], req) // whatever comes of it
}

// stormy is a model server that fails as its query says.
func stormy(w http.ResponseWriter, r *http.Request) {
	switch r.URL.Query().Get("storm") {
	case "0":
		reset(w) // before it has read
	case "1":
		_, _ = take(r)
		reset(w)
	case "2":
		_, _ = take(r)
		_, _ = io.WriteString(w, "half")
		_ = http.NewResponseController(w).Flush()
		reset(w)
	case "3":
		w.WriteHeader(http.StatusServiceUnavailable) // which Envoy retries elsewhere
	case "4":
		_, _ = take(r)
		for range 5 {
			_, _ = io.WriteString(w, "data: x\n\n")
			_ = http.NewResponseController(w).Flush()
			time.Sleep(3 * time.Millisecond)
		}
	default:
		echo(w, r)
	}
}

// dribble is a reader with pauses.
type dribble struct {
	rest  io.Reader
	pause time.Duration
}

func (d *dribble) Read(p []byte) (int, error) {
	time.Sleep(d.pause)
	return d.rest.Read(p[:min(len(p), 1000)])
}
