// Package clients tests Homing, behind a real Envoy, with the clients that people use, unchanged: curl, the
// openai, anthropic and langchain-openai Python packages against real vLLM engines, and the AWS SDK's
// SageMaker runtime.
//
// Which endpoint served a call is read from Envoy's access log: clients make their calls one after the
// other, so its lines are theirs, in order.
package clients

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/homing-dev/homing/test/env"
)

func TestMain(m *testing.M) { env.Main(m) }

// prefixLength is less than what every prompt here begins with.
const prefixLength = 1024

// gateway is an Envoy with Homing in front of model servers.
type gateway struct {
	t      testing.TB
	env    *env.Env
	homing *env.Homing
	envoy  *env.Envoy
	read   int // lines of the access log that were read
}

func newGateway(t testing.TB, endpoints []string, policy env.Policy) *gateway {
	t.Helper()
	g := &gateway{t: t, env: env.For(t)}
	files, err := g.env.Files()
	if err != nil {
		t.Fatal(err)
	}
	port := env.Port(t)
	if err := files.WritePool(env.Pool{Name: "pool", Port: port, Endpoints: endpoints}); err != nil {
		t.Fatal(err)
	}
	if err := files.WritePolicy("pool", policy); err != nil {
		t.Fatal(err)
	}
	g.homing, err = g.env.Homing(t.Context(), files)
	env.Check(t, err)
	g.envoy, err = g.env.Envoy(t.Context(), env.EnvoyOptions{
		Picker: net.JoinHostPort("127.0.0.1", fmt.Sprint(port)), Endpoints: endpoints,
	})
	env.Check(t, err)
	return g
}

// run runs a client to its end and decodes the JSON lines that it prints.
func run[Line any](t testing.TB, command string, args ...string) (lines []Line) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), command, args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		t.Fatalf("%s %v: %v\n%s\n%s", filepath.Base(command), args, err, stdout.String(), stderr.String())
	}
	for text := range strings.Lines(stdout.String()) {
		var line Line
		if err := json.Unmarshal([]byte(text), &line); err != nil {
			t.Fatalf("%s printed %q: %v", filepath.Base(command), text, err)
		}
		lines = append(lines, line)
	}
	return lines
}

// served waits for the access log's next n lines.
func (g *gateway) served(n int) []env.Access {
	g.t.Helper()
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		log, err := g.envoy.AccessLog()
		if err != nil {
			g.t.Fatal(err)
		}
		if log = log[g.read:]; len(log) >= n || time.Now().After(deadline) {
			if len(log) != n {
				g.t.Fatalf("Envoy's access log has %d requests, the client made %d calls: %+v", len(log), n, log)
			}
			g.read += n
			return log
		}
	}
}

// homes notes which endpoints served each group of calls.
type homes map[string]map[string]bool

func (h homes) add(group, endpoint string) {
	if h[group] == nil {
		h[group] = map[string]bool{}
	}
	h[group][endpoint] = true
}

// check fails the test unless each group has one home, and the groups whose names begin so have several.
func (h homes) check(t testing.TB, spread ...string) {
	t.Helper()
	for group, endpoints := range h {
		if len(endpoints) != 1 {
			t.Errorf("%s was served by %d endpoints: %v", group, len(endpoints), endpoints)
		}
	}
	for _, prefix := range spread {
		all, groups := map[string]bool{}, 0
		for group, endpoints := range h {
			if strings.HasPrefix(group, prefix) {
				groups++
				for endpoint := range endpoints {
					all[endpoint] = true
				}
			}
		}
		if len(all) < 2 {
			t.Errorf("%d groups %q have the same home, %v", groups, prefix, all)
		}
	}
}

// settled checks that nothing is counted in flight when the clients are through.
func (g *gateway) settled(picks int) {
	g.t.Helper()
	var state string
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		m, err := g.homing.Metrics(g.t.Context())
		if err != nil {
			g.t.Fatal(err)
		}
		inFlight, picked, released := m.Sum("homing_in_flight_requests"), m.Sum("homing_picks_total"), m.Sum("homing_releases_total")
		if inFlight == 0 && picked == float64(picks) && released == picked {
			return
		}
		state = fmt.Sprintf("%v in flight, %v picks, %v releases", inFlight, picked, released)
	}
	g.t.Errorf("%s; want %d picks, all released", state, picks)
}
