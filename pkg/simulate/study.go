package simulate

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/homing-dev/homing/pkg/endpoint"
)

// Study is a comparison: every strategy, with every setting, on the same workload, for several seeds.
type Study struct {
	// Workload makes the workload of a seed. Traces are the same for all.
	Workload   func(seed uint64) (*Workload, error)
	Strategies []Strategy
	// PrefixLengths and Thresholds are settings to try; a strategy is run once for each pair it has a use
	// for. One value each is no sweep.
	PrefixLengths, Thresholds []int
	Reject                    bool
	Hardware                  Hardware
	Engines, Replicas         int
	Shared                    bool
	Events                    []Event
	Seeds                     []uint64
	// Warmup is how much of the start of each run does not count.
	Warmup time.Duration
	// Progress, unless nil, is called as requests end.
	Progress func(Progress)
}

// Progress says how far a study is.
type Progress struct {
	Run, Runs       int // the run under way, from 1
	Ended, Requests int // of that run
	Variant         Variant
	Seed            uint64
}

// Variant is a strategy with its settings. Settings that it has no use for are 0.
type Variant struct {
	Strategy     string `json:"strategy"`
	PrefixLength int    `json:"prefixLength,omitempty"`
	Threshold    int    `json:"concurrencyThreshold,omitempty"`
}

func (v Variant) String() string {
	switch {
	case v.PrefixLength > 0 && v.Threshold > 0:
		return fmt.Sprintf("%s(%d,%d)", v.Strategy, v.PrefixLength, v.Threshold)
	case v.PrefixLength > 0:
		return fmt.Sprintf("%s(%d)", v.Strategy, v.PrefixLength)
	case v.Threshold > 0:
		return fmt.Sprintf("%s(threshold %d)", v.Strategy, v.Threshold)
	}
	return v.Strategy
}

// Outcome is what a variant did.
type Outcome struct {
	Variant
	// Oracle says that no picker could do this.
	Oracle bool `json:"oracle,omitempty"`
	// Mean and Interval are over seeds: the mean, and half the width of its 95 % confidence interval, which
	// is 0 for one seed.
	Mean     Metrics `json:"mean"`
	Interval Metrics `json:"ci95"`
	// PerSeed are the metrics of each seed, in the study's order.
	PerSeed []Metrics `json:"seeds"`
	// First is the run of the first seed, for plots.
	First *Result `json:"-"`
	// Events says what each change of the engines did, in the first seed's run.
	Events []EventEffect `json:"events,omitempty"`
}

// Run runs every variant with every seed, one after the other.
func (s *Study) Run(ctx context.Context) ([]Outcome, error) {
	runs := s.variants()
	outcomes := make([]Outcome, len(runs))
	for i := range runs {
		outcomes[i].Variant, outcomes[i].Oracle = runs[i].variant, runs[i].strategy.Oracle
	}
	for n, seed := range s.Seeds {
		w, err := s.Workload(seed)
		if err != nil {
			return nil, err
		}
		for i, v := range runs {
			p := Progress{
				Run: n*len(runs) + i + 1, Runs: len(runs) * len(s.Seeds), Requests: w.Requests(), Variant: v.variant, Seed: seed,
			}
			result, err := Run(ctx, s.config(v, w, seed, p))
			if err != nil {
				return nil, fmt.Errorf("%v: %w", v.variant, err)
			}
			outcomes[i].PerSeed = append(outcomes[i].PerSeed, result.Metrics(s.Warmup))
			if n == 0 {
				outcomes[i].First = result
				if outcomes[i].Events, err = s.effects(ctx, s.config(v, w, seed, p), result); err != nil {
					return nil, err
				}
			}
		}
	}
	for i := range outcomes {
		outcomes[i].Mean, outcomes[i].Interval = summary(outcomes[i].PerSeed)
	}
	return outcomes, nil
}

// effects compares a run with one in which nothing happens to the engines.
func (s *Study) effects(ctx context.Context, c Config, result *Result) ([]EventEffect, error) {
	if len(s.Events) == 0 {
		return nil, nil
	}
	c.Events = nil
	quiet, err := Run(ctx, c)
	if err != nil {
		return nil, err
	}
	return result.effects(s.Events, quiet), nil
}

func (s *Study) config(v run, w *Workload, seed uint64, p Progress) Config {
	c := Config{
		Workload: w, Strategy: v.strategy, Policy: v.policy, Hardware: s.Hardware, Engines: s.Engines,
		Replicas: s.Replicas, Shared: s.Shared, Events: s.Events, Seed: seed,
	}
	if s.Progress != nil {
		c.Progress = func(ended int) {
			p.Ended = ended
			s.Progress(p)
		}
	}
	return c
}

type run struct {
	variant  Variant
	strategy Strategy
	policy   endpoint.Policy
}

// variants are the strategies times the settings that each has a use for.
func (s *Study) variants() (runs []run) {
	for _, strategy := range s.Strategies {
		lengths, thresholds := s.PrefixLengths, s.Thresholds
		if !strategy.UsesLength {
			lengths = lengths[:1]
		}
		if !strategy.UsesThreshold {
			thresholds = thresholds[:1]
		}
		for _, length := range lengths {
			for _, threshold := range thresholds {
				v := Variant{Strategy: strategy.Name}
				if strategy.UsesLength {
					v.PrefixLength = length
				}
				if strategy.UsesThreshold {
					v.Threshold = threshold
				}
				policy := endpoint.Policy{PrefixLength: length, ConcurrencyThreshold: threshold, Reject: s.Reject}
				runs = append(runs, run{v, strategy, policy})
			}
		}
	}
	return runs
}

// summary is the mean of each metric, and half the width of its 95 % confidence interval by Student's t.
func summary(seeds []Metrics) (mean, interval Metrics) {
	means, halves := mean.fields(), interval.fields()
	for i := range means {
		column := make([]float64, len(seeds))
		for j := range seeds {
			column[j] = *seeds[j].fields()[i]
		}
		*means[i], *halves[i] = meanAndInterval(column)
	}
	return mean, interval
}

// students is the 97.5 % quantile of Student's t for 1, 2, ... degrees of freedom.
var students = []float64{12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093}

func meanAndInterval(v []float64) (m, half float64) {
	m = mean(v)
	if len(v) < 2 {
		return m, 0
	}
	var squares float64
	for _, x := range v {
		squares += (x - m) * (x - m)
	}
	t := 1.96
	if len(v)-2 < len(students) {
		t = students[len(v)-2]
	}
	return m, t * math.Sqrt(squares/float64(len(v)-1)/float64(len(v)))
}
