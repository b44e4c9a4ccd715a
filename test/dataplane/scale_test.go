package dataplane

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/homing-dev/homing/test/env"
)

// TestManyStreams holds 2,000 requests at once, and lets them go.
func TestManyStreams(t *testing.T) {
	const streams = 2000
	gate := newGate()
	r := newRig(t, setup{serve: gate.stream, policy: env.Policy{ConcurrencyThreshold: 1000}, envoy: func(c env.EnvoyConfig) {
		speakHTTP2(c) // here and at the client, to do with few file descriptors
	}})
	idle, known := residentBytes(t, r.homing.Pid())
	var answers []<-chan answer
	for i := range streams {
		answers = append(answers, start(r.h2, request(t, r.envoy.URL+"/v1/chat/completions", strings.NewReader(chat(fmt.Sprint(i), 4000)))))
	}
	r.want(streams, "homing_in_flight_requests")
	for range streams {
		await(t, "the requests at the model servers", gate.arrived)
	}
	if busy, _ := residentBytes(t, r.homing.Pid()); known {
		t.Logf("%d streams: %d KiB each", streams, (busy-idle)/streams>>10)
	}
	gate.open()
	for _, answered := range answers {
		if got := await(t, "the response", answered); got.body != whole {
			t.Errorf("status %d %q, %v", got.status, got.body, got.err)
		}
	}
	if n := r.settles(); n != streams {
		t.Errorf("%v picks of %d requests", n, streams)
	}
}

// TestManyEndAtOnce has a model server die under 1,500 responses. Envoy then ends as many streams to Homing in
// one moment, and must not take that for a flood: it would drop the connection, and what else is on it.
func TestManyEndAtOnce(t *testing.T) {
	const streams = 1500
	gate := newGate()
	r := newRig(t, setup{backends: 2, serve: gate.stream, workers: 1, envoy: func(c env.EnvoyConfig) {
		speakHTTP2(c)
		withSubsets(c)
	}})
	begin := func(client *http.Client, endpoint string) <-chan answer {
		req := request(t, r.envoy.URL+"/v1/chat/completions", strings.NewReader(chat("at once", 4000)))
		req.Header.Set("X-Subset", endpoint)
		return start(client, req)
	}
	survivor := begin(r.client, r.pool.Endpoints[1]) // on a connection of its own
	var doomed []<-chan answer
	for range streams {
		doomed = append(doomed, begin(r.h2, r.pool.Endpoints[0]))
	}
	r.wantStreaming(streams + 1)
	r.backends[0].server.CloseClientConnections()
	for _, answered := range doomed {
		if got := await(t, "the end of a response", answered); got.err == nil {
			t.Fatalf("a dead model server finished its response: %q", got.body)
		}
	}
	gate.open()
	if got := await(t, "the other server's response", survivor); got.body != whole {
		t.Errorf("the response of the server that lives: status %d %q, %v", got.status, got.body, got.err)
	}
	r.settles()
}

// TestLargeBodiesTakeNoMemory sends bodies of 16 MiB, as JSON and raw, one after the other and side by
// side. What Homing holds of one is bounded by what it inspects, not by the body.
func TestLargeBodiesTakeNoMemory(t *testing.T) {
	const size, together, rounds = 16 << 20, 4, 4
	r := newRig(t, setup{policy: env.Policy{PrefixLength: 65536}})
	bodies := map[string]string{"/v1/chat/completions": chat("large", size), "/invocations": noise(size)}
	round := func() {
		var clients sync.WaitGroup
		for range together {
			for path, body := range bodies {
				clients.Go(func() { do(r.client, request(t, r.envoy.URL+path, strings.NewReader(body))).passed(t, body) })
			}
		}
		clients.Wait()
	}
	round()
	first, known := residentBytes(t, r.homing.Pid())
	if !known {
		t.Skip("this system does not say how much memory Homing holds")
	}
	for range rounds {
		round()
	}
	// The first round made what streams share: gRPC's windows, and the heap's headroom. Half a gigabyte of
	// bodies later there may be no more than a few bodies' worth above that.
	last, _ := residentBytes(t, r.homing.Pid())
	t.Logf("%d MiB resident after %d MiB of bodies, %d MiB after %d more", first>>20, 2*together*size>>20, last>>20, 2*together*rounds*size>>20)
	if limit := int64(3 * size); last-first > limit {
		t.Errorf("%d MiB more resident after %d MiB of bodies: want no more than %d", (last-first)>>20, 2*together*rounds*size>>20, limit>>20)
	}
	if n := r.settles(); n != 2*together*(rounds+1) {
		t.Errorf("%v picks", n)
	}
}

// TestLongPrefix: with the longest prefix, prompts part where their 65,536th character does.
func TestLongPrefix(t *testing.T) {
	const longest = 65536
	r := newRig(t, setup{backends: 8, policy: env.Policy{PrefixLength: longest}})
	// A multi-byte character counts once, and raw bodies count bytes.
	for path, one := range map[string]func(differs int, tail string) string{
		"/v1/chat/completions": func(differs int, tail string) string {
			text := strings.Repeat("é", differs) + tail + strings.Repeat("é", 1000)
			return `{"model":"tiny","messages":[{"role":"user","content":"` + text + `"}]}`
		},
		"/invocations": func(differs int, tail string) string {
			return strings.Repeat("x", differs) + tail + strings.Repeat("x", 1000)
		},
	} {
		homes := func(differs int) map[string]bool {
			homes := map[string]bool{}
			for i := range 26 {
				body := one(differs, string(rune('a'+i)))
				for _, client := range []*http.Client{r.client, r.h2} {
					got := post(t, client, r.envoy.URL+path, body)
					got.passed(t, body)
					homes[got.Backend] = true
				}
			}
			return homes
		}
		if n := len(homes(longest)); n != 1 {
			t.Errorf("%s: differing after the prefix they have %d homes, want 1", path, n)
		}
		if n := len(homes(longest - 1)); n < 2 {
			t.Errorf("%s: differing in the prefix's last character they have one home", path)
		}
	}
	r.settles()
}
