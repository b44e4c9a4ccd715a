package simulate

import (
	"context"
	"testing"
	"time"
)

// TestSageMakerFit holds the fitted workloads to the figures that they were fitted to: PrefixAware against
// random on seven engines, in percent.
func TestSageMakerFit(t *testing.T) {
	type band struct{ from, to float64 }
	for name, want := range map[string]struct{ p50, p90, throughput band }{
		"sagemaker-long":  {band{-77, -71}, band{-37, -33}, band{15, 16}},
		"sagemaker-short": {band{-16, -13}, band{-37, -24}, band{1.7, 2}},
	} {
		b, err := FindBuiltin(name)
		if err != nil {
			t.Fatal(err)
		}
		s := newStudy(t, "Random", "PrefixAware")
		s.Workload = func(seed uint64) (*Workload, error) { return b.Make(WorkloadOptions{Seed: seed, Engines: 7}) }
		s.Engines, s.PrefixLengths, s.Thresholds = 7, []int{1024}, []int{64}
		s.Hardware.Frontend = 80 * time.Millisecond
		outcomes, err := s.Run(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		random, aware := outcomes[0].Mean, outcomes[1].Mean
		for _, c := range []struct {
			what          string
			before, after float64
			band          band
		}{
			{"P50", random.P50TTFT, aware.P50TTFT, want.p50},
			{"P90", random.P90TTFT, aware.P90TTFT, want.p90},
			{"throughput", random.Throughput, aware.Throughput, want.throughput},
		} {
			if got := 100 * (c.after/c.before - 1); got < c.band.from || got > c.band.to {
				t.Errorf("%s: %s %+.1f%%, want %v..%v", name, c.what, got, c.band.from, c.band.to)
			}
		}
		if name == "sagemaker-long" && (random.HitRate > .27 || random.HitRate < .2 || aware.HitRate < .8 || aware.HitRate > .85) {
			t.Errorf("%s: hit rates %.3f and %.3f, want about .25 and .82", name, random.HitRate, aware.HitRate)
		}
	}
}
