package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/homing-dev/homing/pkg/simulate"
)

// The settings of PrefixAware that the best is chosen from.
var (
	gridLengths    = []int{1024, 2048, 4096, 8192, 16384, 32768, 65536}
	gridThresholds = []int{1, 4, 16, 64, 256, 1024}
)

var compared = []string{
	"Random", "RoundRobin", "LeastOutstandingRequests", "BoundedHash", "PrefixScorer", "RadixRouter", "RadixLeastLoad",
	"PrefixAware", "AdaptivePrefix", "AdaptivePrefixSeeing", "KnownGroups", "OracleGreedy", "OracleWork",
}

// crowd is how many pickers there are, and whether they tell each other what they know.
type crowd struct {
	replicas int
	shared   bool
}

func (c crowd) String() string {
	switch {
	case c.replicas == 1:
		return "one picker"
	case c.shared:
		return fmt.Sprintf("%d pickers that share", c.replicas)
	default:
		return fmt.Sprintf("%d pickers that share nothing", c.replicas)
	}
}

// name is what the crowd's tables are called in the page.
func (c crowd) name() string {
	if c.shared {
		return fmt.Sprintf("%d-shared", c.replicas)
	}
	return fmt.Sprint(c.replicas)
}

var crowds = []crowd{{1, false}, {3, true}, {3, false}}

// figures are what came of a load.
type figures struct {
	load   load
	crowd  crowd
	report *simulate.Report
	best   simulate.Outcome // of PrefixAware's settings, chosen with hindsight
}

// compare runs every strategy under a load, and PrefixAware with every setting.
func compare(ctx context.Context, l load, c crowd) (*figures, error) {
	s, err := l.study(simulate.Second, 5, compared...)
	if err != nil {
		return nil, err
	}
	s.Replicas, s.Shared = c.replicas, c.shared
	f := &figures{load: l, crowd: c}
	if f.report, err = s.Report(ctx); err != nil {
		return nil, fmt.Errorf("%v: %w", l, err)
	}
	for i := range f.report.Outcomes {
		f.report.Outcomes[i].First = nil // records of all requests: not needed any more
	}
	f.best, err = best(ctx, l, c)
	return f, err
}

// best is PrefixAware with the length and threshold that turn out best for just this load.
func best(ctx context.Context, l load, c crowd) (simulate.Outcome, error) {
	s, err := l.study(simulate.Second, 2, "PrefixAware")
	if err != nil {
		return simulate.Outcome{}, err
	}
	s.Replicas, s.Shared = c.replicas, c.shared
	s.PrefixLengths, s.Thresholds = gridLengths, gridThresholds
	all, err := s.Run(ctx)
	if err != nil {
		return simulate.Outcome{}, fmt.Errorf("%v: %w", l, err)
	}
	return slices.MinFunc(all, func(a, b simulate.Outcome) int { return cmp.Compare(a.Mean.MeanTTFT, b.Mean.MeanTTFT) }), nil
}

// of is a strategy's outcome. It must have been compared.
func (f *figures) of(name string) *simulate.Outcome {
	i := slices.IndexFunc(f.report.Outcomes, func(o simulate.Outcome) bool { return o.Strategy == name })
	return &f.report.Outcomes[i]
}

// mean is a strategy's mean TTFT in seconds.
func (f *figures) mean(name string) float64 { return f.of(name).Mean.MeanTTFT }

// oracle is the lower mean TTFT of the two that see the engines' true caches and queues.
func (f *figures) oracle() float64 { return min(f.mean("OracleGreedy"), f.mean("OracleWork")) }

// comparison is a job for each load under each crowd; the tables are made when all have ended.
func comparison(p *page) (list []job) {
	for _, c := range crowds {
		all := make([]*figures, len(loads()))
		left := len(all)
		for i, l := range loads() {
			list = append(list, job{fmt.Sprintf("%v, %v", l, c), func(ctx context.Context) (string, error) {
				f, err := compare(ctx, l, c)
				if err != nil {
					return "", err
				}
				p.mu.Lock()
				defer p.mu.Unlock()
				all[i] = f
				if left--; left == 0 {
					p.text["means-"+c.name()], p.text["aims-"+c.name()] = meansTable(all), aimsTable(all)
					p.files["simulated-"+c.name()+".md"] = details(all)
				}
				return fmt.Sprintf("AdaptivePrefix %.3f s, oracle %.3f s", f.mean("AdaptivePrefix"), f.oracle()), nil
			}})
		}
	}
	return list
}

// meansTable is mean TTFT in seconds, a row for each load.
func meansTable(all []*figures) string {
	columns := []struct{ title, strategy string }{
		{"random", "Random"},
		{"round robin", "RoundRobin"},
		{"least outstanding", "LeastOutstandingRequests"},
		{"bounded hash", "BoundedHash"},
		{"prefix scorer", "PrefixScorer"},
		{"radix router", "RadixRouter"},
		{"radix, least load", "RadixLeastLoad"},
		{"PrefixAware (4096, 64)", "PrefixAware"},
		{"**AdaptivePrefix**", "AdaptivePrefix"},
		{"the same, first tokens seen", "AdaptivePrefixSeeing"},
		{"known groups", "KnownGroups"},
	}
	titles := []string{"workload"}
	for _, c := range columns {
		titles = append(titles, c.title)
	}
	t := newTable(append(titles, "PrefixAware, best setting", "true-cache oracle")...)
	for _, f := range all {
		t.row(f.load.String())
		for _, c := range columns {
			t.cell(seconds(f.mean(c.strategy)))
		}
		t.cellf("%s (%d, %d)", seconds(f.best.Mean.MeanTTFT), f.best.PrefixLength, f.best.Threshold)
		t.cell(seconds(f.oracle()))
	}
	return t.String()
}

// aimsTable holds AdaptivePrefix against what it should be.
func aimsTable(all []*figures) string {
	t := newTable("workload", "to the oracle", "to PrefixAware's best setting",
		"to the better of PrefixAware (4096, 64) and least outstanding", "first tokens seen: to the oracle")
	for _, f := range all {
		own := f.mean("AdaptivePrefix")
		t.row(f.load.String())
		t.cell(change(own, f.oracle()))
		t.cell(change(own, f.best.Mean.MeanTTFT))
		t.cell(change(own, min(f.mean("PrefixAware"), f.mean("LeastOutstandingRequests"))))
		t.cell(change(f.mean("AdaptivePrefixSeeing"), f.oracle()))
	}
	return t.String()
}

// details is every figure of every strategy.
func details(all []*figures) string {
	var b strings.Builder
	fmt.Fprintf(&b, "# Simulated figures in full: %v\n\nMade by `make eval`; [the evaluation](../evaluation.md) says what they are of.\n", all[0].crowd)
	for _, f := range all {
		fmt.Fprintf(&b, "\n## %v\n```\n", f.load)
		_ = f.report.WriteTable(&b) // to memory
		b.WriteString("```\n")
	}
	return b.String()
}
