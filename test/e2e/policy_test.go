package e2e

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/homing-dev/homing/test/env"
	"github.com/homing-dev/homing/test/model"
)

// policy: each change acts on the next requests of every replica, and moves no home of a prompt whose key it leaves.
func (s *scenario) policy(t *testing.T) {
	s.scale(t, first, 4)
	s.last = s.homes(t, s.client, s.exact)

	alike := make([]string, 12) // for 1100 characters
	for i := range alike {
		alike[i] = filler(1100) + fmt.Sprint(" then different ", i) + filler(500)
	}
	equal := slices.Repeat([]string{"equal " + filler(1500)}, 12)
	ask := func(prompts []string) func(context.Context) ([]string, error) {
		return func(ctx context.Context) ([]string, error) { return servers(ctx, s.client, s.exact, prompts...) }
	}
	for _, change := range []struct {
		spec string
		ask  func(context.Context) ([]string, error)
		one  bool // pod serves all that is asked; otherwise several do
	}{
		{`{"prefixLength": 1024}`, ask(alike), true},
		{`{"prefixLength": 8192}`, ask(alike), false},
		{`{"concurrencyThreshold": 1}`, s.overlapping, false},
		{`{"concurrencyThreshold": 64}`, s.overlapping, true},
		{`{"strategy": "LeastOutstandingRequests"}`, ask(equal), false},
		{`{"strategy": "PrefixAware"}`, ask(equal), true},
	} {
		begun := time.Now()
		s.patch(t, "homing.dev/v1alpha1", "PrefixRoutingPolicy", first, `{"spec":`+change.spec+`}`)
		patched := time.Now()
		var effective time.Time
		env.Eventually(t, func(ctx context.Context) error {
			asked := time.Now()
			pods, err := change.ask(ctx)
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
		if late := effective.Sub(patched); late > 15*time.Second {
			t.Errorf("policy %s acted after %s", change.spec, late)
		}
	}
	s.next(t, "changes of policy")
}

// overlapping is who serves a prompt that is asked for twelve times, none of which ends before all have begun.
func (s *scenario) overlapping(ctx context.Context) ([]string, error) {
	hold := fmt.Sprint("overlap ", time.Now().UnixNano())
	defer s.models.Open(hold)
	var pods []string
	for range 12 {
		resp, err := begin(ctx, s.client, s.exact, "overlapping", model.Hold, hold)
		if err != nil {
			return nil, err
		}
		defer resp.Body.Close()
		pods = append(pods, resp.Header.Get(model.ServedBy))
	}
	slices.Sort(pods)
	return slices.Compact(pods), nil
}

// servers is who serves a prompt that is asked for n times at once.
func servers(ctx context.Context, client *http.Client, url string, prompts ...string) ([]string, error) {
	served := make([]string, len(prompts))
	failures := make([]error, len(prompts))
	var asking sync.WaitGroup
	for i, prompt := range prompts {
		asking.Go(func() {
			a := ask(ctx, client, url, prompt)
			served[i] = a.served
			if why := a.failure(); why != "" {
				failures[i] = fmt.Errorf("%.20s: %s", prompt, why)
			}
		})
	}
	asking.Wait()
	slices.Sort(served)
	for _, err := range failures {
		if err != nil {
			return nil, err
		}
	}
	return slices.Compact(served), nil
}
