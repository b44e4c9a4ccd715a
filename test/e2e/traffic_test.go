package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/homing-dev/homing/test/env"
	"github.com/homing-dev/homing/test/model"
)

// scenario is a rig under load, by way of two Envoys: one that follows pods and retries at fallbacks, one that goes
// where the header says and nowhere else.
type scenario struct {
	*rig
	t     *testing.T    // for what is to last longer than a step
	exact *model.Client // by way of the second
	loads []*model.Load
	last  homes
}

// TestTraffic takes an install under load through what happens to one. No step may cost a request, except those that
// leave nothing to send it to.
func TestTraffic(t *testing.T) {
	s := &scenario{rig: newRig(t), t: t}
	s.exact = model.NewClient(t, s.envoy(t, first, byHeader).URL, "")
	listed := model.NewClient(t, s.envoy(t, first, nil).URL, "")
	s.loads = []*model.Load{model.StartLoad(t, "fallbacks", listed), model.StartLoad(t, "by header", s.exact)}
	for _, step := range []struct {
		name string
		run  func(*testing.T)
	}{
		{"start", s.start},
		{"3 to 8", s.growth},
		{"8 to 3", s.shrinking},
		{"a pod is deleted", s.deletion},
		{"rollout of the model servers", s.rollout},
		{"policy", s.policy},
		{"rollout of Homing", s.upgrade},
		{"a second pool", s.secondPool},
		{"the pool is deleted and comes again", s.recreation},
		{"no endpoint", s.noEndpoint},
		{"a replica of Homing crashes", s.crash},
		{"end", s.end},
	} {
		begun := time.Now()
		t.Run(step.name, func(t *testing.T) {
			step.run(t)
			for _, l := range s.loads {
				l.Report(t, step.name)
			}
		})
		t.Logf("%s: %.1f s", step.name, time.Since(begun).Seconds())
	}
}

// mayFail says of loads that their requests may fail, until the result is called.
func mayFail(loads ...*model.Load) (back func()) {
	var backs []func()
	for _, l := range loads {
		backs = append(backs, l.MayFail())
	}
	return func() {
		for _, back := range backs {
			back()
		}
	}
}

// start: until pods, Homing and Envoys are ready, requests fail.
func (s *scenario) start(t *testing.T) {
	defer mayFail(s.loads...)()
	s.settles(t, first, 3)
	for _, l := range s.loads {
		s.answers(t, l.Client)
	}
	s.hear(t, 2)
	s.last = s.homes(t, s.exact)
	t.Logf("homes by pod: %v", s.last.byPod())
}

// answers waits until requests are answered, twenty in a row: by every worker of Envoy and every replica of Homing.
func (s *scenario) answers(t *testing.T, c *model.Client) {
	t.Helper()
	env.Eventually(t, func(ctx context.Context) error {
		for range 20 {
			if why := c.Ask(ctx, "is anybody there").Failure(); why != "" {
				return errors.New(why)
			}
		}
		return nil
	})
}

// next takes the homes after a step, and says how many moved in it.
func (s *scenario) next(t *testing.T, step string) {
	t.Helper()
	now := s.homes(t, s.exact)
	now.wantMoved(t, step, s.last)
	s.last = now
}

func (s *scenario) growth(t *testing.T) {
	s.scale(t, first, 8)
	s.next(t, "3 to 8 pods")
}

func (s *scenario) shrinking(t *testing.T) {
	s.scale(t, first, 3)
	s.next(t, "8 to 3 pods")
}

// deletion: a pod that is deleted serves what it has begun, and another takes its place.
func (s *scenario) deletion(t *testing.T) {
	victim, streams := s.hold(t, "deletion", 4)
	env.Check(t, s.Client.Delete(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: victim}}))
	env.Eventually(t, func(ctx context.Context) error {
		pods, err := s.pods(ctx, "app", first)
		if err != nil {
			return err
		}
		if names := podNames(pods); len(names) != 3 || slices.Contains(names, victim) {
			return fmt.Errorf("pods %v, want three without %s", names, victim)
		}
		return s.known(ctx, first, podNames(pods))
	})
	s.release(t, "deletion", streams)
	s.settles(t, first, 3)
	s.next(t, "one of 3 pods is replaced")
}

// hold begins n answers at one pod, which stay open until they are released, and gives the pod's name.
func (s *scenario) hold(t *testing.T, hold string, n int) (string, []*http.Response) {
	t.Helper()
	var streams []*http.Response
	for range n {
		resp, err := s.exact.Begin(t.Context(), "held", model.Hold, hold)
		env.Check(t, err)
		if resp.StatusCode != http.StatusOK {
			t.Fatalf("status %s of a stream", resp.Status)
		}
		streams = append(streams, resp)
	}
	pod := streams[0].Header.Get(model.ServedBy)
	for _, stream := range streams {
		if other := stream.Header.Get(model.ServedBy); other != pod {
			t.Errorf("equal prompts are served by %s and %s", pod, other)
		}
	}
	return pod, streams
}

// release lets held answers end, which must come whole.
func (s *scenario) release(t *testing.T, hold string, streams []*http.Response) {
	t.Helper()
	s.models.Open(hold)
	for _, stream := range streams {
		if a := model.End(stream); a.Err != nil || a.Body != model.First+model.Last {
			t.Errorf("a stream that was under way ended as %q, %v", a.Body, a.Err)
		}
	}
	t.Logf("%d streams that were under way came to their end", len(streams))
}

// rollout replaces one pod after the other, and looks where homes are each time that the pods are others.
func (s *scenario) rollout(t *testing.T) {
	old := s.podsOf(t, first)
	s.patch(t, "apps/v1", "Deployment", first, `{"spec":{"template":{"metadata":{"annotations":{"rolled":"once"}}}}}`)
	for over := false; !over; {
		env.Eventually(t, func(ctx context.Context) error {
			pods, err := s.pods(ctx, "app", first)
			if err != nil {
				return err
			}
			if slices.Equal(podNames(pods), s.last.after) {
				return fmt.Errorf("the pods are still %v", s.last.after)
			}
			return s.known(ctx, first, podNames(pods))
		})
		now := s.homes(t, s.exact)
		if !slices.Equal(now.before, now.after) {
			now.moved(t, s.last)
			continue // too fast to say how many should have moved
		}
		now.wantMoved(t, "rollout", s.last)
		s.last = now
		over = len(now.after) == 3 && !slices.ContainsFunc(now.after, func(p string) bool { return slices.Contains(old, p) })
	}
	s.settles(t, first, 3)
	s.next(t, "after the rollout")
}

// upgrade replaces Homing's replicas, one after the other, as helm upgrade does.
func (s *scenario) upgrade(t *testing.T) {
	before, err := s.replicas(t.Context())
	env.Check(t, err)
	var processes []*env.Process
	for _, replica := range before {
		processes = append(processes, s.kubelet.Container(namespace, replica.Name).(*env.Process))
	}
	_, streams := s.hold(t, "upgrade", 4)
	s.runHelm(t, "upgrade", "homing", filepath.Join(env.Root(), "charts/homing"), "-n", namespace, "--reuse-values",
		"--set", "podAnnotations.upgraded=once", "--wait", "--timeout", "3m")
	s.release(t, "upgrade", streams)
	for _, p := range processes {
		if err := p.Err(); err != nil {
			t.Errorf("%s ended with %v", p.Name, err)
		}
	}
	s.settles(t, first, 4)
	s.hear(t, 2)
	after, err := s.replicas(t.Context())
	env.Check(t, err)
	t.Logf("replicas of Homing %v, before %v", podNames(after), podNames(before))
	s.next(t, "rollout of Homing")
}

// secondPool comes on a port of its own, with engines that have a prefix cache.
func (s *scenario) secondPool(t *testing.T) {
	s.patch(t, "apps/v1", "Deployment", second, `{"spec":{"replicas":3}}`)
	s.runHelm(t, "upgrade", "homing", filepath.Join(env.Root(), "charts/homing"), "-n", namespace, "--reuse-values",
		"--values", "testdata/second.values.yaml", "--wait", "--timeout", "3m")
	envoy := s.envoy(t, second, nil)
	c := model.NewClient(s.t, envoy.URL, "")
	l := model.StartLoad(s.t, second, c)
	back := mayFail(l)
	s.loads = append(s.loads, l)
	s.settles(t, second, 3)
	s.answers(t, c)
	back()

	pods, err := s.pods(t.Context(), "app", second)
	env.Check(t, err)
	addresses := map[string]bool{}
	for _, p := range pods {
		addresses[p.Status.PodIP+":8000"] = true
	}
	known, cached := map[int]string{}, 0
	for i := range 60 {
		prompt := fmt.Sprint("document ", i%20, model.Filler(1500), " question ", i)
		a := c.Ask(t.Context(), prompt)
		if why := a.Failure(); why != "" {
			t.Fatal(why)
		}
		went := a.Header.Get(upstream)
		if !addresses[went] {
			t.Errorf("a request for %s went to %s, which is not one of %v", second, went, addresses)
		}
		if was := known[i%20]; was != "" && was != went {
			t.Errorf("document %d is read by %s and by %s", i%20, was, went)
		}
		known[i%20] = went
		if strings.Contains(a.Body, `"cached_tokens":`) && !strings.Contains(a.Body, `"cached_tokens":0`) {
			cached++
		}
	}
	t.Logf("%d of 60 requests, which ask for 20 documents, found theirs in the engine's cache", cached)
	if cached < 40 {
		t.Errorf("%d requests found their document in the engine's cache, want the second and third for each: 40", cached)
	}
	s.next(t, "a second pool")
}

// recreation: while the pool is not there its requests fail, but what was under way ends well, the other pool notices
// nothing, and homes are where they were.
func (s *scenario) recreation(t *testing.T) {
	_, streams := s.hold(t, "recreation", 4)
	back := mayFail(s.loads[:2]...)
	env.Check(t, s.Client.Delete(t.Context(), object("inference.networking.k8s.io/v1", "InferencePool", first)))
	var status int
	env.Eventually(t, func(ctx context.Context) error {
		if status = s.exact.Ask(ctx, "no pool").Status; status < 500 {
			return fmt.Errorf("status %d after the pool was deleted", status)
		}
		return nil
	})
	t.Logf("without the pool the status is %d", status)
	s.release(t, "recreation", streams)
	s.ApplyFiles(t, filepath.Join(env.Root(), "config/samples/kubernetes/llama-70b.yaml"))
	s.settles(t, first, 4)
	for _, l := range s.loads[:2] {
		s.answers(t, l.Client)
	}
	back()
	s.next(t, "the pool is deleted and comes again")
}

// noEndpoint: a pool without a pod says so, and serves again when one comes.
func (s *scenario) noEndpoint(t *testing.T) {
	l := s.loads[2]
	back := mayFail(l)
	s.scale(t, second, 0)
	if a := l.Ask(t.Context(), "nobody"); a.Status != http.StatusServiceUnavailable || !strings.Contains(a.Body, `"code":"no_ready_endpoint"`) {
		t.Errorf("without endpoints: %d %s, want 503 and no_ready_endpoint", a.Status, a.Body)
	}
	s.scale(t, second, 2)
	s.answers(t, l.Client)
	back()
}

// crash: what is under way at a replica that crashes fails with it, as the pool's failureMode has it; what comes after
// is the other's, until the replica is started again.
func (s *scenario) crash(t *testing.T) {
	replicas, err := s.replicas(t.Context())
	env.Check(t, err)
	victim := s.kubelet.Container(namespace, replicas[0].Name).(*env.Process)
	back := mayFail(s.loads...)
	crashed := time.Now()
	env.Check(t, victim.Signal(syscall.SIGKILL))
	<-victim.Done()
	s.ready(t, 1)
	s.answers(t, s.exact)
	t.Logf("every request is answered again %.1f s after a replica of Homing crashed", time.Since(crashed).Seconds())
	s.hear(t, 2)
	s.settles(t, first, 4)
	for _, l := range s.loads {
		s.answers(t, l.Client)
	}
	back()
	s.next(t, "a replica of Homing crashes")
}

// ready waits until n replicas of Homing are.
func (s *scenario) ready(t *testing.T, n int) {
	t.Helper()
	env.Eventually(t, func(ctx context.Context) error {
		replicas, err := s.replicas(ctx)
		if err == nil && len(replicas) != n {
			err = fmt.Errorf("%d replicas are Ready, want %d", len(replicas), n)
		}
		return err
	})
}

// end: without load, nothing is in flight, and every pick was released.
func (s *scenario) end(t *testing.T) {
	for _, l := range s.loads {
		l.End()
	}
	replicas, err := s.replicas(t.Context())
	env.Check(t, err)
	for _, replica := range replicas {
		var m env.Metrics
		env.Eventually(t, func(ctx context.Context) (err error) {
			if m, err = metrics(ctx, &replica); err != nil {
				return err
			}
			picks, releases, inFlight := m.Sum("homing_picks_total"), m.Sum("homing_releases_total"), m.Sum("homing_in_flight_requests")
			if picks != releases || inFlight != 0 {
				return fmt.Errorf("%v picks, %v releases, %v in flight", picks, releases, inFlight)
			}
			return nil
		})
		for _, end := range []string{"failed", "panic"} {
			if n := m.Sum("homing_streams_total", "end", end); n != 0 {
				t.Errorf("%s: %v streams ended so: %s", replica.Name, n, end)
			}
		}
		t.Logf("%s: %v picks, as many releases, nothing in flight; %v served elsewhere, %v streams closed early; publications: %v",
			replica.Name, m.Sum("homing_picks_total"), m.Sum("homing_served_elsewhere_total"),
			m.Sum("homing_streams_closed_early_total"), m.Sum("homing_publication_seconds"))
	}
}
