package main

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/homing-dev/homing/pkg/simulate"
)

// published is what Amazon says that PREFIX_AWARE brings against random routing, on seven p5.48xlarge with
// Llama 3.1 70B: the least and the most.
type published struct {
	workload, figure string
	least, most      float64 // percent
	of               func(m simulate.Metrics) float64
}

func publishedFigures() []published {
	p50 := func(m simulate.Metrics) float64 { return m.P50TTFT }
	p90 := func(m simulate.Metrics) float64 { return m.P90TTFT }
	throughput := func(m simulate.Metrics) float64 { return m.Throughput }
	return []published{
		{"sagemaker-long", "P50 TTFT", -77, -71, p50},
		{"sagemaker-long", "P90 TTFT", -37, -33, p90},
		{"sagemaker-long", "throughput", 15, 16, throughput},
		{"sagemaker-short", "P50 TTFT", -16, -13, p50},
		{"sagemaker-short", "P90 TTFT", -37, -24, p90},
		{"sagemaker-short", "throughput", 1.7, 2, throughput},
	}
}

// aboutHits is how far from "about 25 %" and "82 %" hit rates are taken to be those.
const aboutHits = .03

// sageMaker sets the published figures beside the simulated ones.
func sageMaker(p *page) []job {
	return []job{{"SageMaker's figures", func(ctx context.Context) (string, error) {
		t := newTable("against random routing", "published", "PrefixAware(1024, 64)", "in the band", "least outstanding", "AdaptivePrefix")
		outcomes := map[string][]simulate.Outcome{}
		outside := 0
		verdict := func(in bool) string {
			if in {
				return "yes"
			}
			outside++
			return "**no**"
		}
		for _, f := range publishedFigures() {
			all := outcomes[f.workload]
			if all == nil {
				var err error
				if all, err = fitted(ctx, f.workload); err != nil {
					return "", err
				}
				outcomes[f.workload] = all
			}
			t.row(fmt.Sprintf("%s: %s", f.workload, f.figure))
			t.cellf("%+g..%+g %%", f.least, f.most)
			for i, o := range all[1:] {
				percent := 100 * (f.of(o.Mean)/f.of(all[0].Mean) - 1)
				t.cellf("%+.1f %%", percent)
				if i == 0 {
					rounded := math.Round(percent*10) / 10
					t.cell(verdict(rounded >= f.least && rounded <= f.most))
				}
			}
		}
		long := outcomes["sagemaker-long"]
		t.row("sagemaker-long: token hit rate")
		t.cell("about 25 -> 82 %")
		for i, o := range long[1:] {
			t.cellf("%.0f -> %.0f %%", 100*long[0].Mean.HitRate, 100*o.Mean.HitRate)
			if i == 0 {
				t.cell(verdict(math.Abs(long[0].Mean.HitRate-.25) < aboutHits && math.Abs(o.Mean.HitRate-.82) < aboutHits))
			}
		}
		p.section("sagemaker", t.String())
		return fmt.Sprintf("%d of %d figures out of their bands", outside, len(publishedFigures())+1), nil
	}}}
}

// fitted runs a fitted workload with what was fitted for it.
func fitted(ctx context.Context, name string) ([]simulate.Outcome, error) {
	s, err := load{name: name, rate: 1, engines: 7}.study(simulate.All, 5, "Random", "PrefixAware", "LeastOutstandingRequests", "AdaptivePrefix")
	if err != nil {
		return nil, err
	}
	s.Seeds, s.PrefixLengths = []uint64{1, 2, 3, 4, 5}, []int{1024}
	s.Hardware.Frontend = 80 * time.Millisecond
	return s.Run(ctx)
}
