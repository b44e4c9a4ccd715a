package controller

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/homing-dev/homing/pkg/endpoint"
	"github.com/homing-dev/homing/pkg/picker"
)

const (
	benchPools     = 100
	benchEndpoints = 1000 // of all pools
	benchUnrelated = 5000 // pods of the namespace that no pool selects
)

// benchPod is a pod as clusters have them: eight labels, of which most pods of a Deployment share seven.
func benchPod(i int, app string, ready bool) *corev1.Pod {
	p := testPod(fmt.Sprintf("%s-5d4c8b9f7-%05d", app, i), withIP(fmt.Sprintf("10.%d.%d.%d", i>>16, i>>8&255, i&255)), withLabel("app", app),
		withLabel("app.kubernetes.io/name", app), withLabel("app.kubernetes.io/instance", app), withLabel("app.kubernetes.io/part-of", "serving"),
		withLabel("app.kubernetes.io/managed-by", "Helm"), withLabel("topology.kubernetes.io/zone", "eu-central-1a"), withLabel("apps.kubernetes.io/pod-index", fmt.Sprint(i)),
		onNode(fmt.Sprintf("ip-10-0-%d-%d.eu-central-1.compute.internal", i/16>>8, i/16&255)))
	p.Status.Conditions[1].Status = map[bool]corev1.ConditionStatus{true: corev1.ConditionTrue, false: corev1.ConditionFalse}[ready]
	return p
}

func benchApp(i int) string { return fmt.Sprintf("llama-%03d", i%benchPools) }

func benchWorld(b *testing.B) *world {
	w := testWorld()
	w.now = time.Now
	pods := make([]*corev1.Pod, 0, benchEndpoints+benchUnrelated)
	for i := range benchEndpoints {
		pods = append(pods, benchPod(i, benchApp(i), true))
	}
	for i := range benchUnrelated {
		pods = append(pods, benchPod(benchEndpoints+i, fmt.Sprintf("web-%d", i%50), true))
	}
	replace(b, &w.pods, pods...)
	for i := range benchPools {
		update(b, &w.pools, testPool(benchApp(i), int32(9100+i), selecting("app", benchApp(i))))
		update(b, &w.policies, testPolicy(benchApp(i), benchApp(i)))
	}
	return w
}

// change makes a pod of a pool, another each time, ready or not, and publishes what follows. It returns how
// long that took since the change came.
func change(b *testing.B, w *world, store *endpoint.Store, n int) time.Duration {
	start := time.Now()
	update(b, &w.pods, benchPod(n%benchEndpoints, benchApp(n%benchEndpoints), n/benchEndpoints%2 == 1))
	specs, _, since := w.build(nodesKnown)
	if since.IsZero() {
		b.Fatal("the change made no difference")
	}
	store.Publish(specs)
	return time.Since(start)
}

// BenchmarkPublication is from a pod's change to the snapshot that has it: 1,000 endpoints in 100 pools,
// beside 5,000 pods that are nobody's.
func BenchmarkPublication(b *testing.B) {
	w, store := benchWorld(b), endpoint.NewStore()
	specs, _, _ := w.build(nodesKnown)
	store.Publish(specs)
	var took []time.Duration
	b.ReportAllocs()
	for b.Loop() {
		took = append(took, change(b, w, store, len(took)))
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-us")
}

// BenchmarkPolicyChange is the same for a policy, which has everything resolved anew.
func BenchmarkPolicyChange(b *testing.B) {
	w, store := benchWorld(b), endpoint.NewStore()
	b.ReportAllocs()
	for n := 0; b.Loop(); n++ {
		p := testPolicy(benchApp(n), benchApp(n))
		p.Generation = int64(2 + n)
		p.Spec.ConcurrencyThreshold = new(int32(1 + n%1024))
		update(b, &w.policies, p)
		specs, _, _ := w.build(nodesKnown)
		store.Publish(specs)
	}
}

// BenchmarkPick picks from a pool of ten with and without 50 pods changing each second.
func BenchmarkPick(b *testing.B) {
	for _, churn := range []bool{false, true} {
		b.Run(fmt.Sprintf("churn=%t", churn), func(b *testing.B) {
			w, store := benchWorld(b), endpoint.NewStore()
			specs, _, _ := w.build(nodesKnown)
			store.Publish(specs)
			stop, done := make(chan struct{}), make(chan struct{})
			go func() {
				defer close(done)
				tick := time.NewTicker(time.Second / 50)
				defer tick.Stop()
				for n := 0; churn; n++ {
					select {
					case <-stop:
						return
					case <-tick.C:
						change(b, w, store, n)
					}
				}
			}()
			pickUntilDone(b, store)
			close(stop)
			<-done
		})
	}
}

func pickUntilDone(b *testing.B, store *endpoint.Store) {
	k := picker.New(rand.Uint64)
	name := endpoint.PoolName{Namespace: ns, Name: benchApp(0)}
	var p picker.Pick
	req := picker.Request{HasKey: true}
	took := make([]time.Duration, 0, 1<<16)
	b.ReportAllocs()
	for b.Loop() {
		req.Key++
		start := time.Now()
		if err := k.Pick(store.Snapshot().Pool(name), &req, &p); err != nil {
			b.Fatal(err)
		}
		p.Release()
		if len(took) < cap(took) {
			took = append(took, time.Since(start))
		} else {
			took[rand.IntN(len(took))] = time.Since(start)
		}
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)*999/1000].Nanoseconds()), "p99.9-ns")
}

// BenchmarkMemory says what 5,000 pods that no pool selects cost.
func BenchmarkMemory(b *testing.B) {
	heap := func() uint64 {
		runtime.GC()
		runtime.GC() // unique's strings go with the second
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	for b.Loop() {
		w, before := testWorld(), heap()
		for i := range benchUnrelated {
			update(b, &w.pods, benchPod(i, fmt.Sprintf("web-%d", i%50), true))
		}
		used := heap() - before
		runtime.KeepAlive(w)
		b.ReportMetric(float64(used)/benchUnrelated, "B/pod")
		b.ReportMetric(float64(used)/(1<<20), "MiB")
	}
}
