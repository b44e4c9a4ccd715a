package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/homing-dev/homing/pkg/simulate"
	"github.com/homing-dev/homing/test/env"
)

// Measured is what is kept of real engines.
type Measured struct {
	// Share is how much of a processor each engine had.
	Share float64 `json:"processors_per_engine"`
	// Hardware is the constants of the engines' steps, measured before the runs.
	Hardware simulate.Hardware `json:"hardware"`
	Runs     []Real            `json:"runs"`
}

// measuredFile is where measured figures are kept.
func measuredFile() string { return filepath.Join(env.Root(), "docs/evaluation/real.json") }

// readMeasured reads the figures. If there are none yet, the simulator's own constants stand for the engines'.
func readMeasured() (*Measured, error) {
	m := &Measured{Hardware: simulate.CPU}
	text, err := os.ReadFile(measuredFile())
	if errors.Is(err, os.ErrNotExist) {
		return m, nil
	}
	if err != nil {
		return nil, err
	}
	return m, json.Unmarshal(text, m)
}

func (m *Measured) write() error {
	if err := os.MkdirAll(filepath.Dir(measuredFile()), 0o755); err != nil {
		return err
	}
	text, err := json.MarshalIndent(m, "", " ")
	if err != nil {
		return err
	}
	return os.WriteFile(measuredFile(), append(text, '\n'), 0o644)
}

// keep puts a run in the place of one before with the same workload, way and seed.
func (m *Measured) keep(r Real) {
	m.Runs = slices.DeleteFunc(m.Runs, func(old Real) bool {
		return old.Workload == r.Workload && old.Way == r.Way && old.Seed == r.Seed
	})
	m.Runs = append(m.Runs, r)
}

// measure plays each workload each way, once for each seed, and keeps the figures after each run.
func measure(ctx context.Context, from uint64, seeds int, workloads []string, only string) error {
	e, err := env.New(os.Stdout)
	if err != nil {
		return err
	}
	defer e.Close()
	s, err := build(ctx, e)
	if err != nil {
		return err
	}
	kept, err := readMeasured()
	if err != nil {
		return err
	}
	if kept.Share != realShare { // those runs are not to be compared with these
		kept.Share, kept.Runs = realShare, nil
	}
	if kept.Hardware, err = calibrate(ctx, s.engines); err != nil {
		return fmt.Errorf("measuring the engines: %w", err)
	}
	fmt.Println(kept.describe())
	for seed := from; seed < from+uint64(seeds); seed++ { //nolint:gosec // a few
		for _, name := range workloads {
			for _, way := range ways() {
				if !wanted(way.name, only) {
					continue
				}
				r, err := s.play(ctx, name, way, seed)
				if err != nil {
					return fmt.Errorf("%s, %s: %w\n%s", name, way.name, err, e.Logs())
				}
				fmt.Println(time.Now().Format(time.TimeOnly), "", r)
				kept.keep(*r)
				if err := kept.write(); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

func wanted(name, only string) bool {
	return slices.ContainsFunc(strings.Split(only, ";"), func(p string) bool { return strings.HasPrefix(name, p) })
}

// sideBySide sets each workload on real engines beside what the simulator makes of it.
func sideBySide(p *page) (list []job) {
	for _, name := range realWorkloads {
		list = append(list, job{"real and simulated: " + name, func(ctx context.Context) (string, error) {
			kept, err := readMeasured()
			if err != nil {
				return "", err
			}
			c, err := kept.compare(ctx, name)
			if err != nil {
				return "", err
			}
			p.section("real-"+name, c.table()+"\n"+c.verdict()+"\n")
			p.section("engines", kept.describe()+".\n")
			return c.verdict(), nil
		}})
	}
	return list
}

// both is a way on real engines and as simulated.
type both struct {
	way             way
	real, simulated medians
	least, most     float64 // real mean TTFT
	share           float64 // of the requests, that the busiest engine got, median
	seeds           int
}

// medians are over seeds; times in seconds.
type medians struct{ mean, p50, p90, hits float64 }

type sides []both

// compare simulates what was measured.
func (m *Measured) compare(ctx context.Context, name string) (all sides, err error) {
	for _, way := range ways() {
		b := both{way: way}
		var mean, p50, p90, hits, share []float64
		for _, r := range m.Runs {
			if r.Workload == name && r.Way == way.name {
				mean, p50, p90 = append(mean, r.Mean), append(p50, r.P50), append(p90, r.P90)
				hits, share = append(hits, r.HitRate), append(share, slices.Max(r.Shares))
			}
		}
		if len(mean) == 0 {
			continue
		}
		b.real, b.share = medians{median(mean), median(p50), median(p90), median(hits)}, median(share)
		b.least, b.most, b.seeds = slices.Min(mean), slices.Max(mean), len(mean)
		if b.simulated, err = simulated(ctx, name, way); err != nil {
			return nil, err
		}
		all = append(all, b)
	}
	return all, nil
}

// simulated is the median over 41 seeds, the measured ones among them: hashing has luck, and more seeds level it.
func simulated(ctx context.Context, name string, way way) (m medians, err error) {
	s, err := load{name: name, rate: 1, engines: realEngines, tiny: true}.study(simulate.All, 1, way.simulated)
	if err != nil {
		return m, err
	}
	s.Seeds = nil
	for seed := range uint64(41) {
		s.Seeds = append(s.Seeds, seed+1)
	}
	s.Replicas, s.Shared = max(way.replicas, 1), way.shared
	if way.policy.PrefixLength > 0 {
		s.PrefixLengths = []int{way.policy.PrefixLength}
	}
	o, err := s.Run(ctx)
	if err != nil {
		return m, err
	}
	over := func(of func(simulate.Metrics) float64) float64 {
		var all []float64
		for _, m := range o[0].PerSeed {
			all = append(all, of(m))
		}
		return median(all)
	}
	return medians{
		over(func(m simulate.Metrics) float64 { return m.MeanTTFT }), over(func(m simulate.Metrics) float64 { return m.P50TTFT }),
		over(func(m simulate.Metrics) float64 { return m.P90TTFT }), over(func(m simulate.Metrics) float64 { return m.HitRate }),
	}, nil
}

func (all sides) table() string {
	t := newTable("",
		"measured: mean TTFT", "of random", "P50", "P90", "token hit rate", "busiest engine's share",
		"simulated: mean TTFT", "of random", "P50", "P90", "token hit rate")
	for _, b := range all {
		t.row(b.way.name)
		t.cellf("**%s s** (%s-%s)", seconds(b.real.mean), seconds(b.least), seconds(b.most))
		t.cellf("%.2f", b.real.mean/all[0].real.mean)
		t.cell(seconds(b.real.p50))
		t.cell(seconds(b.real.p90))
		t.cellf("%.0f %%", 100*b.real.hits)
		t.cellf("%.0f %%", 100*b.share)
		t.cellf("%s s", seconds(b.simulated.mean))
		t.cellf("%.2f", b.simulated.mean/all[0].simulated.mean)
		t.cell(seconds(b.simulated.p50))
		t.cell(seconds(b.simulated.p90))
		t.cellf("%.0f %%", 100*b.simulated.hits)
	}
	return t.String()
}

// verdict says in how far the two agree.
func (all sides) verdict() string {
	if len(all) == 0 {
		return "Not measured."
	}
	var hits, ratio float64
	var hitsAt, ratioAt string
	same, pairs := 0, 0
	for i, b := range all {
		if d := math.Abs(b.real.hits - b.simulated.hits); d >= hits {
			hits, hitsAt = d, b.way.name
		}
		if d := math.Abs(b.simulated.mean/all[0].simulated.mean/(b.real.mean/all[0].real.mean) - 1); d >= ratio {
			ratio, ratioAt = d, b.way.name
		}
		for _, c := range all[:i] {
			if math.Abs(b.real.mean/c.real.mean-1) < 0.1 {
				continue // too near to tell
			}
			pairs++
			if (b.real.mean < c.real.mean) == (b.simulated.mean < c.simulated.mean) {
				same++
			}
		}
	}
	return fmt.Sprintf("%s. Measured and simulated hit rates differ by %.1f points at most (%s), mean TTFT against random by %.0f %% (%s); "+
		"of %d pairs of ways that measured 10 %% or more apart, %d are in the same order.", all.seeds(), 100*hits, hitsAt, 100*ratio, ratioAt, pairs, same)
}

// seeds says how many were measured.
func (all sides) seeds() string {
	fewest, most := all[0].seeds, all[0].seeds
	for _, b := range all {
		fewest, most = min(fewest, b.seeds), max(most, b.seeds)
	}
	switch {
	case most == 1:
		return "One seed"
	case fewest == most:
		return fmt.Sprintf("%d seeds", most)
	default:
		return fmt.Sprintf("%d to %d seeds", fewest, most)
	}
}

func median(v []float64) float64 {
	v = slices.Sorted(slices.Values(v))
	n := len(v)
	return (v[(n-1)/2] + v[n/2]) / 2
}
