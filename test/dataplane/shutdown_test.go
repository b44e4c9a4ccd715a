package dataplane

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"
)

// events are the first n of a long response.
func events(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "data: {\"id\":\"chatcmpl-1\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\" token %d\"}}]}\n\n", i)
	}
	return b.String()
}

// flow is a model server that generates without a pause until the gate is open, and then says in a trailer
// how much it was.
func (g *gate) flow(w http.ResponseWriter, r *http.Request) {
	got, err := take(r)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("X-Body", got.SHA256)
	w.Header().Set("Trailer", "X-Events")
	g.arrived <- self(r)
	one := http.NewResponseController(w)
	for n := 0; ; n++ {
		select {
		case <-g.opened:
			w.Header().Set("X-Events", fmt.Sprint(n))
			return
		case <-r.Context().Done():
			panic(http.ErrAbortHandler)
		case <-time.After(time.Millisecond):
			_, _ = io.WriteString(w, strings.TrimPrefix(events(n+1), events(n)))
			_ = one.Flush()
		}
	}
}

func TestExplore(t *testing.T) {
	for _, m := range []modes{
		{"FULL_DUPLEX_STREAMED", "SEND", "NONE", "SEND", false},
		{"FULL_DUPLEX_STREAMED", "SEND", "STREAMED", "SEND", false},
		{"FULL_DUPLEX_STREAMED", "SEND", "FULL_DUPLEX_STREAMED", "SEND", false},
		{"STREAMED", "SEND", "STREAMED", "SEND", false},
		{"BUFFERED", "SEND", "STREAMED", "SEND", true},
		{"NONE", "SEND", "NONE", "SEND", false},
	} {
		t.Run(m.String(), func(t *testing.T) {
			flow, before := newGate(), newGate()
			r := newRig(t, setup{envoy: m.apply, serve: func(w http.ResponseWriter, r *http.Request) {
				if r.URL.RawQuery == "hold" {
					before.hold(w, r)
				} else {
					flow.flow(w, r)
				}
			}})
			const n = 40
			var flows, holds []<-chan answer
			bodies := []string{chat("a", 3000), chat("b", 3<<20)}
			if m.requestBody == "BUFFERED" {
				bodies[1] = chat("b", 500_000)
			}
			for i := range n {
				client := []*http.Client{r.client, r.h2}[i%2]
				body := bodies[i/2%2]
				flows = append(flows, start(client, request(t, r.envoy.URL+"/v1/chat/completions", strings.NewReader(body))))
				holds = append(holds, start(client, request(t, r.envoy.URL+"/v1/chat/completions?hold", strings.NewReader(body))))
			}
			for range n {
				await(t, "arrival", flow.arrived)
				await(t, "arrival", before.arrived)
			}
			r.want(2*n, "homing_in_flight_requests")
			begun := time.Now()
			r.check(r.homing.Signal(syscall.SIGTERM))
			if m.responseBody != "FULL_DUPLEX_STREAMED" {
				select {
				case <-r.homing.Done():
				case <-time.After(5 * time.Second):
					t.Log(nonzero(r.metrics()["homing_streams_total"]), r.metrics().Sum("homing_in_flight_requests"))
					r.check(r.homing.Signal(syscall.SIGQUIT))
					time.Sleep(time.Second)
					_ = os.WriteFile("/tmp/stuck.log", []byte(r.homing.Log()), 0o644)
					t.Fatal("stuck")
				}
				await(t, "Homing's end", r.homing.Done())
				t.Log("ended after", time.Since(begun))
			} else {
				time.Sleep(time.Second)
			}
			time.Sleep(300 * time.Millisecond)
			flow.open()
			before.open()
			for i := range n {
				got := await(t, "flow", flows[i])
				if got.err != nil || got.status != 200 || got.header.Get("X-Body") != digest(bodies[i/2%2]) {
					t.Errorf("flow %d: %v %v", i, got.err, got.status)
				}
				c := strings.Count(got.body, "\n\n")
				if got.body != events(c) {
					t.Errorf("flow %d: not whole", i)
				}
				await(t, "hold", holds[i]).passed(t, bodies[i/2%2])
			}
			await(t, "Homing's end", r.homing.Done())
			if err := r.homing.Err(); err != nil {
				t.Error(err)
			}
			if l := r.envoy.Log(); strings.Contains(l, "[warning]") || strings.Contains(l, "[error]") {
				t.Log(l)
			}
		})
	}
}
