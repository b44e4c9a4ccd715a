package simulate

import (
	"context"
	"fmt"
	"io"
	"text/tabwriter"
)

// Sensitivity is how much the answers depend on what is known of the hardware no better than by 20 %.
type Sensitivity struct {
	Variants []Variant `json:"variants"`
	Rows     []Row     `json:"rows"`
}

// Row is the study under one change of the hardware.
type Row struct {
	Change string `json:"change"`
	// MeanTTFT is in seconds, by variant.
	MeanTTFT []float64 `json:"ttft_mean_seconds"`
}

// change is one of the constants, scaled.
type change struct {
	name  string
	scale func(h *Hardware, f float64)
}

var changes = []change{
	{"every step cost", func(h *Hardware, f float64) { *h = h.Scale(f) }},
	{"cost of a step", func(h *Hardware, f float64) { h.Overhead *= f; h.Weights *= f; h.Reduce *= f }},
	{"cost of a token", func(h *Hardware, f float64) { h.PerToken *= f; h.ReducePerToken *= f }},
	{"cost of attention", func(h *Hardware, f float64) { h.PerAttention *= f }},
	{"cost of decoding", func(h *Hardware, f float64) { h.PerContext *= f; h.PerSequence *= f }},
	{"size of the KV cache", func(h *Hardware, f float64) { h.KVTokens = int(float64(h.KVTokens) * f) }},
	{"tokens in a step", func(h *Hardware, f float64) { h.StepTokens = int(float64(h.StepTokens) * f) }},
}

// Sensitivity runs the study with the first seed as it is, and with each constant of the hardware 20 %
// smaller and greater.
func (s *Study) Sensitivity(ctx context.Context) (*Sensitivity, error) {
	once := *s
	once.Seeds = s.Seeds[:1]
	out := &Sensitivity{}
	for _, v := range s.variants() {
		out.Variants = append(out.Variants, v.variant)
	}
	add := func(name string, h Hardware) error {
		once.Progress = s.further(len(out.Rows)*len(out.Variants), (1+2*len(changes))*len(out.Variants))
		once.Hardware = h
		outcomes, err := once.Run(ctx)
		row := Row{Change: name}
		for _, o := range outcomes {
			row.MeanTTFT = append(row.MeanTTFT, o.Mean.MeanTTFT)
		}
		out.Rows = append(out.Rows, row)
		return err
	}
	if err := add("as it is", s.Hardware); err != nil {
		return nil, err
	}
	for _, c := range changes {
		for _, f := range []float64{0.8, 1.2} {
			h := s.Hardware
			c.scale(&h, f)
			if err := add(fmt.Sprintf("%s %+.0f%%", c.name, 100*(f-1)), h); err != nil {
				return nil, err
			}
		}
	}
	return out, nil
}

// further reports progress as part of more runs.
func (s *Study) further(done, runs int) func(Progress) {
	if s.Progress == nil {
		return nil
	}
	return func(p Progress) {
		p.Run, p.Runs = done+p.Run, runs
		s.Progress(p)
	}
}

// WriteTable writes mean TTFT, and its ratio to that of the first variant.
func (s *Sensitivity) WriteTable(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(t, "\nTTFT mean s (of the first)\t")
	for _, v := range s.Variants {
		fmt.Fprintf(t, "%v\t", v)
	}
	fmt.Fprintln(t)
	for _, row := range s.Rows {
		fmt.Fprintf(t, "%s\t", row.Change)
		for _, v := range row.MeanTTFT {
			fmt.Fprintf(t, "%.3f (%.2f)\t", v, v/row.MeanTTFT[0])
		}
		fmt.Fprintln(t)
	}
	return t.Flush()
}
