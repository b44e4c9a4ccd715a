package dataplane

import (
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

const (
	benchBatch    = 400 // requests by one way before the other's turn
	benchPrefixes = 64
)

// BenchmarkEnvoy sends chats through the same Envoy with Homing as its picker and to a plain cluster, in
// turns, so that both ways see the same machine. Everything - clients, Envoy, Homing, model servers - shares its
// cores. homing-cpu-us/req is what Homing alone spent.
func BenchmarkEnvoy(b *testing.B) {
	r := newRig(b, setup{backends: 4, plain: true, serve: func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"object":"chat.completion"}`)
	}})
	for _, test := range []struct{ size, clients int }{{1 << 10, 1}, {32 << 10, 1}, {1 << 10, 8}, {32 << 10, 8}} {
		b.Run(fmt.Sprintf("chat=%dKiB/clients=%d", test.size>>10, test.clients), func(b *testing.B) {
			var bodies []string
			for i := range benchPrefixes {
				bodies = append(bodies, chat(fmt.Sprint(i), test.size))
			}
			plain := &way{url: r.envoy.Plain + "/v1/chat/completions", bodies: bodies, client: r.client, clients: test.clients}
			homing := &way{url: r.envoy.URL + "/v1/chat/completions", bodies: bodies, client: r.client, clients: test.clients}
			for _, w := range []*way{plain, homing} {
				w.send(b, 2*test.clients) // connections, and code that runs for the first time
				w.forget()
			}
			cpu := r.metrics().Sum("process_cpu_seconds_total")
			b.ResetTimer()
			for done := 0; done < b.N; done += benchBatch {
				n := min(benchBatch, b.N-done)
				plain.send(b, n)
				homing.send(b, n)
			}
			b.StopTimer()
			cpu = r.metrics().Sum("process_cpu_seconds_total") - cpu
			b.ReportMetric(0, "ns/op") // it would add up both ways
			plain.report(b, "plain")
			homing.report(b, "homing")
			b.ReportMetric(homing.rate()/plain.rate(), "rate-ratio")
			b.ReportMetric(milliseconds(homing.quantile(0.5)-plain.quantile(0.5)), "added-p50-ms")
			b.ReportMetric(cpu*1e6/float64(b.N), "homing-cpu-us/req")
		})
	}
	r.settles()
}

// way is one way through Envoy, and how long requests took on it.
type way struct {
	url     string
	bodies  []string
	client  *http.Client
	clients int // at a time, each with a connection of its own

	mu      sync.Mutex
	times   []time.Duration // guarded by mu
	elapsed time.Duration
}

// send sends n requests.
func (w *way) send(b *testing.B, n int) {
	b.Helper()
	var next atomic.Int64
	var clients sync.WaitGroup
	begun := time.Now()
	for range min(w.clients, n) {
		clients.Go(func() {
			var times []time.Duration
			for i := next.Add(1); i <= int64(n); i = next.Add(1) {
				sent := time.Now()
				got := do(w.client, request(b, w.url, strings.NewReader(w.bodies[int(i)%len(w.bodies)])))
				if got.err != nil || got.status != http.StatusOK {
					b.Errorf("status %d, %v", got.status, got.err)
					return
				}
				times = append(times, time.Since(sent))
			}
			w.mu.Lock()
			defer w.mu.Unlock()
			w.times = append(w.times, times...)
		})
	}
	clients.Wait()
	w.elapsed += time.Since(begun)
}

func (w *way) forget() { w.times, w.elapsed = nil, 0 }

// rate is in requests per second.
func (w *way) rate() float64 { return float64(len(w.times)) / w.elapsed.Seconds() }

func (w *way) quantile(q float64) time.Duration {
	if len(w.times) == 0 {
		return 0
	}
	slices.Sort(w.times)
	return w.times[int(q*float64(len(w.times)-1))]
}

func (w *way) report(b *testing.B, name string) {
	b.ReportMetric(w.rate(), name+"-req/s")
	b.ReportMetric(milliseconds(w.quantile(0.5)), name+"-p50-ms")
	b.ReportMetric(milliseconds(w.quantile(0.99)), name+"-p99-ms")
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
