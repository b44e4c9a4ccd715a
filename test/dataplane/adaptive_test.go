package dataplane

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/homing-dev/homing/test/env"
)

// conversation is the body of a chat with so many turns behind it, under a system prompt that all share.
func conversation(name string, turns int) string {
	type message struct {
		Role    string `json:"role"`
		Content string `json:"content"`
	}
	messages := []message{{"system", strings.Repeat("You are a careful assistant. ", 50)}}
	for i := range turns + 1 {
		if i > 0 {
			messages = append(messages, message{"assistant", fmt.Sprintf("answer %d to %s", i, name)})
		}
		messages = append(messages, message{"user", strings.Repeat(fmt.Sprintf("question %d of %s; ", i, name), 60)})
	}
	body, err := json.Marshal(map[string]any{"model": "tiny", "messages": messages})
	if err != nil {
		panic(err) // strings marshal
	}
	return string(body)
}

// TestAdaptivePrefix: conversations under one system prompt spread, and each stays where it is, with the
// response's body shown to Homing and without.
func TestAdaptivePrefix(t *testing.T) {
	for _, m := range []modes{{duplex, "SEND", "NONE", "SEND", false}, {duplex, "SEND", duplex, "SEND", false}} {
		t.Run(m.String(), func(t *testing.T) {
			r := newRig(t, setup{policy: env.Policy{Strategy: "AdaptivePrefix"}, envoy: m.apply})
			homes, used := map[int]string{}, map[string]int{}
			const turns = 4
			for turn := range turns {
				for c := range 9 {
					body := conversation(fmt.Sprint("conversation ", c), turn)
					a := post(t, r.client, r.envoy.URL+"/v1/chat/completions", body)
					a.passed(t, body)
					if turn == 0 {
						homes[c] = a.Backend
						used[a.Backend]++
					} else if a.Backend != homes[c] {
						t.Errorf("turn %d of conversation %d went to %s, home is %s", turn, c, a.Backend, homes[c])
					}
					r.settles() // before the next is picked
				}
			}
			for _, e := range r.pool.Endpoints {
				if used[e] != 3 {
					t.Errorf("conversations at each endpoint: %v, want 3", used)
				}
			}
			// The second and the third are placed elsewhere, and go where the prompt that all share has been computed:
			// that all share it shows with the fourth.
			const early = 2
			r.want(early, "homing_picks_total", "strategy", "AdaptivePrefix", "outcome", "spill")
			r.want(9*turns-early, "homing_picks_total", "strategy", "AdaptivePrefix", "outcome", "home")
		})
	}
}
