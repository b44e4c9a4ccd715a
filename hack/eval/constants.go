package main

import (
	"context"
	"fmt"
	"math"
	"strings"

	"github.com/homing-dev/homing/pkg/picker"
	"github.com/homing-dev/homing/pkg/simulate"
)

// trial is a constant of AdaptivePrefix and values that it was tried with.
type trial struct {
	constant string
	values   []float64
	set      func(*picker.Tuning, float64)
}

func trials() []trial {
	return []trial{
		{"Replication", []float64{1, 1.3, 3}, func(t *picker.Tuning, v float64) { t.Replication = v }},
		{"HalfLife, s", []float64{15, 240}, func(t *picker.Tuning, v float64) { t.HalfLife = v }},
		{"Recent, s", []float64{1, 20, 60}, func(t *picker.Tuning, v float64) { t.Recent = v }},
		{"Doubt, requests", []float64{0, 1, 5}, func(t *picker.Tuning, v float64) { t.Doubt = v }},
		{"Leave", []float64{1.25, 2.25, 3, 4}, func(t *picker.Tuning, v float64) { t.Leave = v }},
		{"Base, requests", []float64{1, 2, 4.5, 7}, func(t *picker.Tuning, v float64) { t.Base = v }},
		{"Uncached", []float64{1, 2, 3, 5}, func(t *picker.Tuning, v float64) { t.Uncached = v }},
		{"Beyond", []float64{0, 1}, func(t *picker.Tuning, v float64) { t.Beyond = v }},
		{"Forget, s", []float64{60, 1800}, func(t *picker.Tuning, v float64) { t.Forget = v }},
		{"Rungs, log2", []float64{10, 13, 18}, func(t *picker.Tuning, v float64) { t.Rungs = 1 << int(v) }},
		{"ByRendezvous", []float64{1}, func(t *picker.Tuning, v float64) { t.ByRendezvous = v == 1 }},
		{"Presumed", []float64{0.25, 0.75}, func(t *picker.Tuning, v float64) { t.Presumed = v }},
		{"Alike", []float64{0, 0.3, 1}, func(t *picker.Tuning, v float64) { t.Alike = v }},
	}
}

// constants changes one constant at a time, on first halves.
func constants(p *page) []job {
	var parts []part
	for _, trial := range trials() {
		for _, value := range trial.values {
			parts = append(parts, part{fmt.Sprintf("%s %g", trial.constant, value), func(ctx context.Context) (string, error) {
				tuning := picker.DefaultTuning()
				trial.set(&tuning, value)
				return ablate(ctx, fmt.Sprintf("%s | %g", trial.constant, value), tuning)
			}})
		}
	}
	head := newTable("constant", "value", "one picker", "worst workload", "three that share nothing", "worst workload")
	return append(p.tableOf("constants", head, parts), sensitivity(p))
}

// ablate is a row: how mean TTFT changes with other constants.
func ablate(ctx context.Context, name string, tuning picker.Tuning) (string, error) {
	t := &table{}
	t.row(name)
	for _, c := range []crowd{{1, false}, {3, false}} {
		sum, worst, at := 0., 0., ""
		for _, l := range loads() {
			s, err := l.study(simulate.First, 2)
			if err != nil {
				return "", err
			}
			s.Replicas = c.replicas
			s.Strategies = []simulate.Strategy{
				simulate.Adaptive("as it is", picker.DefaultTuning(), false), simulate.Adaptive("changed", tuning, false),
			}
			o, err := s.Run(ctx)
			if err != nil {
				return "", err
			}
			ratio := o[1].Mean.MeanTTFT / o[0].Mean.MeanTTFT
			sum += math.Log(ratio)
			if ratio > worst {
				worst, at = ratio, l.String()
			}
		}
		t.cell(change(math.Exp(sum/float64(len(loads()))), 1))
		t.cellf("%s %s", at, change(worst, 1))
	}
	return t.String(), nil
}

// sensitivity is how much the answer depends on what is known of the hardware.
func sensitivity(p *page) job {
	return job{"sensitivity to the hardware", func(ctx context.Context) (string, error) {
		s, err := conversation.study(simulate.Second, 1, "LeastOutstandingRequests", "PrefixAware", "PrefixScorer", "AdaptivePrefix", "OracleWork")
		if err != nil {
			return "", err
		}
		r, err := s.Sensitivity(ctx)
		if err != nil {
			return "", err
		}
		var b strings.Builder
		b.WriteString("```\n")
		_ = r.WriteTable(&b) // to memory
		b.WriteString("```\n")
		p.section("sensitivity", b.String())
		return "done", nil
	}}
}
