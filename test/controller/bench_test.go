package controller

import (
	"context"
	"fmt"
	"math"
	"net/http"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/homing-dev/homing/test/cluster"
	"github.com/homing-dev/homing/test/env"
)

const (
	benchPools     = 100
	benchEndpoints = 1000
	benchUnrelated = 5000
	benchRate      = 50 // pod changes each second
	benchChanges   = 500
)

// BenchmarkChurn runs the program on a real API server: 1,000 endpoints in 100 pools, 50 pods changing each
// second, and 5,000 pods that are nobody's. It reports how long publications took, from a bucket of the program's own
// histogram, and what those pods cost in memory.
func BenchmarkChurn(b *testing.B) {
	if testing.Short() {
		b.Skip("makes 6,000 pods; not with -short")
	}
	const ns = "churn"
	r := newRig(b)
	r.InstallCRDs(b, cluster.InferenceCRDs(b), cluster.HomingCRDs())
	r.namespace(b, ns)
	ports, err := env.FreePorts(benchPools + 2)
	env.Check(b, err)
	var manifests strings.Builder
	for i := range benchPools {
		manifests.WriteString(pool(ns, benchApp(i), ports[i], "") + policy(ns, benchApp(i), benchApp(i), ""))
	}
	r.apply(b, manifests.String())
	r.pods(b, ns, benchEndpoints, benchApp)
	e := env.For(b)
	binary, err := e.HomingBinary()
	env.Check(b, err)
	web := fmt.Sprintf("http://127.0.0.1:%d", ports[benchPools])
	e.StartReady(b, "homing", exec.Command(binary, "serve", "--kubeconfig", r.Kubeconfig(b, r.ServiceAccount(b, ns, "homing")), "--namespace", ns,
		"--bind-address", "127.0.0.1", "--metrics-port", fmt.Sprint(ports[benchPools]), "--grpc-health-port", fmt.Sprint(ports[benchPools+1]), "--peer-port", "0", "--pprof"),
		func(ctx context.Context) error { return page(ctx, web+"/readyz", http.StatusOK, "ok") })

	for b.Loop() {
		before := heap(b, web)
		r.pods(b, ns, benchUnrelated, func(i int) string { return fmt.Sprintf("web-%d", i%50) })
		time.Sleep(2 * time.Second) // for the watch to bring them
		b.ReportMetric((heap(b, web)-before)/(1<<20), "MiB/5000-unrelated-pods")

		tick := time.NewTicker(time.Second / benchRate)
		for n := range benchChanges {
			<-tick.C
			status := map[bool]string{true: "True", false: "False"}[n/benchEndpoints%2 == 1]
			patch := fmt.Appendf(nil, `{"status":{"conditions":[{"type":"Ready","status":%q}]}}`, status)
			p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: podName(benchApp(n), n%benchEndpoints)}}
			env.Check(b, r.api.Status().Patch(b.Context(), p, client.RawPatch(types.StrategicMergePatchType, patch)))
		}
		tick.Stop()
		b.ReportMetric(publications(b, web, 0.5)*1000, "p50-ms-at-most")
		b.ReportMetric(publications(b, web, 0.99)*1000, "p99-ms-at-most")
	}
}

func benchApp(i int) string { return fmt.Sprintf("llama-%03d", i%benchPools) }

func podName(app string, i int) string { return fmt.Sprintf("%s-%04d", app, i) }

// pods makes n Ready pods.
func (r *rig) pods(b *testing.B, namespace string, n int, app func(int) string) {
	b.Helper()
	next, failed := make(chan int), make(chan error, 1)
	for range 2 * runtime.NumCPU() {
		go func() {
			for i := range next {
				if _, err := r.tryPod(b.Context(), namespace, podName(app(i), i), app(i), "", fmt.Sprintf("10.1.%d.%d", i>>8, i&255)); err != nil {
					select {
					case failed <- err:
					default:
					}
				}
			}
			failed <- nil
		}()
	}
	for i := range n {
		next <- i
	}
	close(next)
	for range 2 * runtime.NumCPU() {
		env.Check(b, <-failed)
	}
}

// heap is what the program holds after a collection, in bytes.
func heap(b *testing.B, web string) float64 {
	b.Helper()
	env.Check(b, page(b.Context(), web+"/debug/pprof/heap?gc=1&debug=1", http.StatusOK, ""))
	m, err := env.Scrape(b.Context(), web+"/metrics")
	env.Check(b, err)
	return m.Sum("go_memstats_heap_alloc_bytes")
}

// publications says below what a share of the publications took, in seconds.
func publications(b *testing.B, web string, share float64) float64 {
	b.Helper()
	m, err := env.Scrape(b.Context(), web+"/metrics")
	env.Check(b, err)
	h := m["homing_publication_seconds"].GetMetric()[0].GetHistogram()
	for _, bucket := range h.GetBucket() {
		if float64(bucket.GetCumulativeCount()) >= share*float64(h.GetSampleCount()) {
			return bucket.GetUpperBound()
		}
	}
	return math.Inf(1)
}
