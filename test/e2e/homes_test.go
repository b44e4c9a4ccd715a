package e2e

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/homing-dev/homing/test/env"
	"github.com/homing-dev/homing/test/model"
)

// probes is how many prompts are asked for to see where homes are. Their text is shorter than every prefixLength, so
// that their keys never change.
const probes = 250

// homes is who serves each probe, and which pods served when that was asked, at its beginning and its end.
type homes struct {
	of            map[string]string // prompt -> pod
	before, after []string
}

// homes asks for every probe.
func (r *rig) homes(t *testing.T, c *model.Client) homes {
	t.Helper()
	prompts := make([]string, probes)
	for i := range prompts {
		prompts[i] = fmt.Sprintf("probe %d", i)
	}
	h := homes{before: r.podsOf(t, first)}
	var err error
	h.of, err = c.AskAll(t.Context(), prompts)
	env.Check(t, err)
	h.after = r.podsOf(t, first)
	return h
}

func (r *rig) podsOf(t *testing.T, app string) []string {
	t.Helper()
	pods, err := r.pods(t.Context(), "app", app)
	env.Check(t, err)
	return podNames(pods)
}

// moved says how many homes are elsewhere than they were, and fails the test if any moved between two pods that both
// were there all the time: a pod that joins may take homes, and one that leaves gives up its own.
func (h homes) moved(t *testing.T, since homes) int {
	t.Helper()
	n := 0
	for prompt, was := range since.of {
		is := h.of[prompt]
		if is == was {
			continue
		}
		n++
		if joined, left := !slices.Contains(since.before, is), !slices.Contains(h.after, was); !joined && !left {
			t.Errorf("%s moved from %s to %s, and both served all along", prompt, was, is)
		}
	}
	return n
}

// wantMoved says how many homes moved, and fails the test if that is not about the share that rendezvous hashing moves:
// a home stays if the pod with the highest score, of all that were there before or are now, is one that was and is.
func (h homes) wantMoved(t *testing.T, step string, since homes) {
	t.Helper()
	n := h.moved(t, since)
	both := 0
	for _, pod := range h.after {
		if slices.Contains(since.after, pod) {
			both++
		}
	}
	share := 1 - float64(both)/float64(len(h.after)+len(since.after)-both)
	t.Logf("%s: %d pods, %d of the %d before: %d of %d homes moved, %.0f%%, expected %.0f%%; homes by pod: %v",
		step, len(h.after), both, len(since.after), n, probes, 100*float64(n)/probes, 100*share, h.byPod())
	// Five standard deviations of as many coins: less than one in a million runs is further off by chance.
	if off, far := math.Abs(float64(n)/probes-share), 5*math.Sqrt(share*(1-share)/probes); off > far {
		t.Errorf("%s: %d of %d homes moved, which is %.0f points from the expected %.0f%%", step, n, probes, 100*off, 100*share)
	}
}

// byPod is how many homes each pod has, from the most to the least.
func (h homes) byPod() []int {
	counts := map[string]int{}
	for _, pod := range h.of {
		counts[pod]++
	}
	var all []int
	for _, n := range counts {
		all = append(all, n)
	}
	slices.Sort(all)
	slices.Reverse(all)
	return all
}
