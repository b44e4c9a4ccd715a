package e2e

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/homing-dev/homing/test/env"
	"github.com/homing-dev/homing/test/model"
)

// policy: each change acts on the next requests of every replica, and moves no home of a prompt whose key it leaves.
func (s *scenario) policy(t *testing.T) {
	s.scale(t, first, 4)
	s.last = s.homes(t, s.exact)

	alike := make([]string, 12) // for 1100 characters
	for i := range alike {
		alike[i] = model.Filler(1100) + fmt.Sprint(" then different ", i) + model.Filler(500)
	}
	equal := slices.Repeat([]string{"equal"}, len(alike))
	for _, change := range []struct {
		spec string
		asks []string
		one  bool // pod serves all that is asked; otherwise several do
	}{
		{`{"prefixLength": 1024}`, alike, true},
		{`{"prefixLength": 8192}`, alike, false},
		{`{"concurrencyThreshold": 1}`, equal, false},
		{`{"concurrencyThreshold": 64}`, equal, true},
		{`{"strategy": "LeastOutstandingRequests"}`, equal, false},
		{`{"strategy": "PrefixAware"}`, equal, true},
	} {
		begun := time.Now()
		s.patch(t, "homing.dev/v1alpha1", "PrefixRoutingPolicy", first, `{"spec":`+change.spec+`}`)
		patched := time.Now()
		var effective time.Time
		env.Eventually(t, func(ctx context.Context) error {
			asked := time.Now()
			pods, err := s.overlapping(ctx, change.asks)
			if err != nil {
				return err
			}
			if (len(pods) == 1) != change.one {
				return fmt.Errorf("served by %v; by one pod: want %t", pods, change.one)
			}
			effective = asked // these requests were asked after it
			return nil
		})
		t.Logf("policy %s: the API server took %.0f ms, requests asked %.0f ms later went by it",
			change.spec, patched.Sub(begun).Seconds()*1000, max(0, effective.Sub(patched).Seconds()*1000))
	}
	s.next(t, "changes of policy")

	// A list is no address: who goes where the header says and nowhere else turns it away.
	defer s.loads[1].MayFail()()
	s.patch(t, "homing.dev/v1alpha1", "PrefixRoutingPolicy", first, `{"spec":{"fallbackHeader":true}}`)
	env.Eventually(t, func(ctx context.Context) error {
		if a := s.exact.Ask(ctx, "a list"); a.Status != http.StatusServiceUnavailable {
			return fmt.Errorf("with a list in the header: status %d, want 503", a.Status)
		}
		return nil
	})
	s.patch(t, "homing.dev/v1alpha1", "PrefixRoutingPolicy", first, `{"spec":{"fallbackHeader":false}}`)
	s.answers(t, s.exact)
}

// overlapping is who serves prompts that are asked for one after the other, none of which ends before all have begun.
func (s *scenario) overlapping(ctx context.Context, prompts []string) ([]string, error) {
	hold := fmt.Sprint("overlap ", time.Now().UnixNano())
	defer s.models.Open(hold)
	var pods []string
	for _, prompt := range prompts {
		resp, err := s.exact.Begin(ctx, prompt, model.Hold, hold)
		if err != nil {
			return nil, err
		}
		defer resp.Body.Close()
		pods = append(pods, resp.Header.Get(model.ServedBy))
	}
	slices.Sort(pods)
	return slices.Compact(pods), nil
}
