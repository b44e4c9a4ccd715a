package simulate

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"text/tabwriter"
)

// Report is a study and what came of it.
type Report struct {
	Workload string    `json:"workload"`
	About    string    `json:"about"`
	Hardware string    `json:"hardware"`
	Settings string    `json:"settings"`
	Outcomes []Outcome `json:"outcomes"`
	// Sensitivity is nil unless it was asked for.
	Sensitivity *Sensitivity `json:"sensitivity,omitempty"`
}

// WriteTable writes the report for people: a line for each variant, the mean over seeds and, for the mean
// TTFT, half the width of its 95 % interval.
func (r *Report) WriteTable(w io.Writer) error {
	fmt.Fprintf(w, "%s: %s\n%s\n%s\n\n", r.Workload, r.About, r.Hardware, r.Settings)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "strategy\tTTFT mean s\t±95%\tof first\tP50\tP90\tP99\thit rate\twithin 2 s\tgood/s\ttokens/s\tspread\tfailed\t")
	for _, o := range r.Outcomes {
		m, interval := o.Mean, "-"
		if len(o.PerSeed) > 1 {
			interval = fmt.Sprintf("%.3f", o.Interval.MeanTTFT)
		}
		fmt.Fprintf(t, "%v\t%.3f\t%s\t%.0f%%\t%.3f\t%.3f\t%.3f\t%.1f%%\t%.1f%%\t%.2f\t%.0f\t%.2f\t%.0f\t\n",
			o.Variant, m.MeanTTFT, interval, 100*m.MeanTTFT/r.Outcomes[0].Mean.MeanTTFT, m.P50TTFT, m.P90TTFT, m.P99TTFT,
			100*m.HitRate, 100*m.Goodput, m.GoodPerSecond, m.Throughput, m.Spread, m.Failed)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	if best := r.best(); best != nil {
		fmt.Fprintf(w, "\nLowest mean TTFT, oracles aside: %v, %.3f s.\n", best.Variant, best.Mean.MeanTTFT)
	}
	if err := r.writeEvents(w); err != nil {
		return err
	}
	if r.Sensitivity != nil {
		return r.Sensitivity.WriteTable(w)
	}
	return nil
}

// best is the variant with the lowest mean TTFT, oracles aside; nil if there is but one.
func (r *Report) best() (best *Outcome) {
	if len(r.Outcomes) < 2 {
		return nil
	}
	for i, o := range r.Outcomes {
		if !o.Oracle && (best == nil || o.Mean.MeanTTFT < best.Mean.MeanTTFT) {
			best = &r.Outcomes[i]
		}
	}
	return best
}

func (r *Report) writeEvents(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	head := false
	for _, o := range r.Outcomes {
		for _, e := range o.Events {
			if !head {
				head = true
				fmt.Fprintln(t, "\nevent\tstrategy\tgroups moved\tmoved anyway\tof\thit rate without\tdip depth\tdip s\t")
			}
			fmt.Fprintf(t, "%s\t%v\t%.1f%%\t%.1f%%\t%d\t%.1f%%\t%.1f%%\t%.0f\t\n",
				e.Event, o.Variant, 100*e.Moved, 100*e.MovedAnyway, e.Groups, 100*e.HitWithout, 100*e.Depth, e.Dip)
		}
	}
	return t.Flush()
}

// WriteJSON writes the report for programs.
func (r *Report) WriteJSON(w io.Writer) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(r)
}

// Report runs the study.
func (s *Study) Report(ctx context.Context) (*Report, error) {
	w, err := s.Workload(s.Seeds[0])
	if err != nil {
		return nil, err
	}
	outcomes, err := s.Run(ctx)
	if err != nil {
		return nil, err
	}
	return &Report{
		Workload: w.Name, About: w.About, Hardware: s.Hardware.Name, Settings: s.settings(w), Outcomes: outcomes,
	}, nil
}

// settings are the rest of a study, for its report.
func (s *Study) settings(w *Workload) string {
	loop := "open loop"
	if w.Clients > 0 {
		loop = count(w.Clients, "client")
	}
	text := count(s.Engines, "engine") + ", " + count(s.Replicas, "picker")
	switch {
	case s.Replicas > 1 && s.Shared:
		text += " that share their state"
	case s.Replicas > 1:
		text += " that share nothing"
	}
	text += ", " + loop + ", " + count(w.Requests(), "request") + ", " + count(len(s.Seeds), "seed")
	for _, e := range s.Events {
		text += ", " + e.String()
	}
	return text
}

func count(n int, what string) string {
	if n != 1 {
		what += "s"
	}
	return strconv.Itoa(n) + " " + what
}
