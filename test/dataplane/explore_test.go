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

// uploads half sent at SIGTERM
func TestExploreUploads(t *testing.T) {
	for _, m := range []modes{
		{"FULL_DUPLEX_STREAMED", "SEND", "NONE", "SEND", false},
		{"FULL_DUPLEX_STREAMED", "SEND", "STREAMED", "SEND", false},
		{"FULL_DUPLEX_STREAMED", "SEND", "FULL_DUPLEX_STREAMED", "SEND", false},
		{"STREAMED", "SEND", "NONE", "SEND", false},
		{"BUFFERED", "SEND", "NONE", "SEND", false},
	} {
		t.Run(m.String(), func(t *testing.T) {
			flow := newGate()
			r := newRig(t, setup{envoy: m.apply, serve: func(w http.ResponseWriter, r *http.Request) {
				flow.flow(w, r)
			}})
			const n = 40
			var flows []<-chan answer
			var ws []*io.PipeWriter
			bodies := []string{chat("a", 3000), chat("b", 3<<20), chat("b", 5<<20)}
			if m.requestBody == "BUFFERED" {
				bodies[1], bodies[2] = chat("b", 500_000), chat("b", 800_000)
			}
			for i := range n {
				client := []*http.Client{r.client, r.h2}[i%2]
				body := bodies[i/2%3]
				pr, pw := io.Pipe()
				path := []string{"/v1/chat/completions", "/invocations"}[i/6%2]
				req := request(t, r.envoy.URL+path, pr)
				flows = append(flows, start(client, req))
				go io.WriteString(pw, body[:len(body)/3])
				ws = append(ws, pw)
			}
			time.Sleep(500 * time.Millisecond)
			t.Log(r.metrics().Sum("homing_in_flight_requests"))
			r.check(r.homing.Signal(syscall.SIGTERM))
			time.Sleep(300 * time.Millisecond)
			t.Log(nonzero(r.metrics()["homing_streams_total"]))
			for i, pw := range ws {
				body := bodies[i/2%3]
				go func() { io.WriteString(pw, body[len(body)/3:]); pw.Close() }()
			}
			for range n {
				await(t, "arrival", flow.arrived)
			}
			if m.responseBody != "FULL_DUPLEX_STREAMED" {
				select {
				case <-r.homing.Done():
				case <-time.After(10 * time.Second):
					t.Log(nonzero(r.metrics()["homing_streams_total"]), r.metrics().Sum("homing_in_flight_requests"))
					t.Fatal("stuck")
				}
			}
			time.Sleep(300 * time.Millisecond)
			flow.open()
			for i := range n {
				got := await(t, "flow", flows[i])
				if got.err != nil || got.status != 200 || got.header.Get("X-Body") != digest(bodies[i/2%3]) {
					t.Errorf("flow %d: %v %v", i, got.err, got.status)
				}
				c := strings.Count(got.body, "\n\n")
				if got.body != events(c) {
					t.Errorf("flow %d: not whole", i)
				}
			}
			await(t, "Homing's end", r.homing.Done())
			if err := r.homing.Err(); err != nil {
				t.Error(err)
			}
			_ = os.WriteFile("/tmp/shutdown.work/envoy.log", []byte(r.envoy.Log()), 0o644)
			if l := r.envoy.Log(); strings.Contains(l, "UPE") || strings.Contains(l, "[error]") {
				t.Error(l)
			}
			// reuse of upstream connections
			r.startHoming(setup{})
			for i := range 30 {
				eventually(t, "again", func() error {
					got := post(t, r.client, r.envoy.URL+"/v1/models", chat(fmt.Sprint(i), 500))
					if got.status != 200 {
						return fmt.Errorf("%d", got.status)
					}
					return nil
				})
			}
			m2, _ := http.Get(r.envoy.Admin + "/stats?filter=protocol_error|rx_reset|tx_reset|ext_proc|upstream_rq_5xx|cx_destroy_remote")
			bb, _ := io.ReadAll(m2.Body)
			for _, l := range strings.Split(string(bb), "\n") {
				if !strings.HasSuffix(l, ": 0") && !strings.Contains(l, "istogram") {
					t.Log(l)
				}
			}
		})
	}
}
