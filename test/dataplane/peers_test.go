package dataplane

import (
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"syscall"
	"testing"

	"github.com/homing-dev/homing/test/env"
)

// replicas are two Homings that are told of each other, each behind an Envoy of its own, with the same backends.
func replicas(t *testing.T, s setup) (a, b *rig) {
	t.Helper()
	ports := [2]int{env.Port(t), env.Port(t)}
	var peers []string // the same for both: each leaves itself out
	for _, port := range ports {
		peers = append(peers, fmt.Sprintf("--peer=127.0.0.1:%d", port))
	}
	s.homing = append(peers, "--peer-port", strconv.Itoa(ports[0]))
	a = newRig(t, s)
	s.homing = append(peers, "--peer-port", strconv.Itoa(ports[1]))
	b = a.replica(s)
	for _, r := range []*rig{a, b} {
		r.hears()
	}
	return a, b
}

// replica is another Homing for the pool, on another port.
func (r *rig) replica(s setup) *rig {
	r.t.Helper()
	c := *r
	c.pool.Port = env.Port(r.t)
	var err error
	c.files, err = c.env.Files()
	c.check(err)
	c.check(c.files.WritePool(c.pool))
	c.check(c.files.WritePolicy(c.pool.Name, s.policy))
	c.startHoming(s)
	c.envoy, err = c.env.Envoy(r.t.Context(), env.EnvoyOptions{
		Picker: fmt.Sprintf("127.0.0.1:%d", c.pool.Port), Endpoints: c.pool.Endpoints, Edit: s.envoy, PickerTLS: s.tls,
	})
	env.Check(r.t, err)
	return &c
}

// hears waits until the other replica is heard.
func (r *rig) hears() {
	r.t.Helper()
	r.want(1, "homing_peers_heard")
	r.want(0, "homing_peers_unheard")
}

// TestThresholdsCountAllReplicas fills a prefix's home through one replica, and asks the other.
func TestThresholdsCountAllReplicas(t *testing.T) {
	const threshold = 4
	gate := newGate()
	a, b := replicas(t, setup{
		policy: env.Policy{Strategy: "PrefixAware", ConcurrencyThreshold: threshold}, tls: true,
		serve: func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Query().Has("hold") {
				gate.hold(w, r)
			} else {
				echo(w, r)
			}
		},
	})
	body := chat("shared", 5000)
	ask := func(r *rig) string {
		got := post(t, r.client, r.envoy.URL+"/v1/chat/completions", body)
		got.passed(t, body)
		return got.Backend
	}
	home := ask(a)
	if got := ask(b); got != home {
		t.Fatalf("home is %s for one replica and %s for the other", home, got)
	}
	held := make(chan answer, threshold)
	for range threshold {
		go func() { held <- post(t, a.client, a.envoy.URL+"/v1/chat/completions?hold", body) }()
		if got := await(t, "a request", gate.arrived).addr; got != home {
			t.Fatalf("a request went to %s, home is %s", got, home)
		}
	}
	eventually(t, "the other replica", func() error {
		if ask(b) == home {
			return errors.New("goes home, which is at its threshold")
		}
		return nil
	})
	gate.open()
	for range threshold {
		await(t, "an answer", held).passed(t, body)
	}
	eventually(t, "the other replica", func() error {
		if got := ask(b); got != home {
			return fmt.Errorf("goes to %s, and home is free again", got)
		}
		return nil
	})
}

// TestReplicasFindEachOthersHomes begins conversations at one replica and goes on at the other, and at its successor.
func TestReplicasFindEachOthersHomes(t *testing.T) {
	s := setup{policy: env.Policy{Strategy: "AdaptivePrefix"}}
	a, b := replicas(t, s)
	const conversations = 9
	homes := map[int]string{}
	turn := func(r *rig, turn, c int) string {
		body := conversation(fmt.Sprint("conversation ", c), turn)
		got := post(t, r.client, r.envoy.URL+"/v1/chat/completions", body)
		got.passed(t, body)
		r.settles()
		return got.Backend
	}
	for c := range conversations {
		homes[c] = turn(a, 0, c)
	}
	// What comes from now on was told after the last of them.
	received := b.metrics().Sum("homing_peer_messages_total", "direction", "received")
	eventually(t, "messages", func() error {
		if n := b.metrics().Sum("homing_peer_messages_total", "direction", "received") - received; n < 4 {
			return fmt.Errorf("%v came", n)
		}
		return nil
	})
	find := func(who string, at int) {
		t.Helper()
		for c := conversations - 1; c >= 0; c-- { // by load, they would be placed the other way around
			if got := turn(b, at, c); got != homes[c] {
				t.Errorf("%s: turn %d of conversation %d went to %s, home is %s", who, at, c, got, homes[c])
			}
		}
	}
	find("the other replica", 1)

	b.check(b.homing.Signal(syscall.SIGTERM))
	await(t, "Homing's end", b.homing.Done())
	a.want(1, "homing_peers_unheard")
	s.homing = b.flags
	b.startHoming(s)
	a.hears()
	b.hears()
	find("its successor", 2)
}
