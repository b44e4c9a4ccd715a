package simulate

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"text/tabwriter"
)

// Report is a study and what came of it.
type Report struct {
	Workload string    `json:"workload"`
	About    string    `json:"about"`
	Hardware string    `json:"hardware"`
	Settings string    `json:"settings"`
	Outcomes []Outcome `json:"outcomes"`
}

// WriteTable writes the report for people: a line for each variant, the mean over seeds and, for the mean
// TTFT, half the width of its 95 % interval.
func (r *Report) WriteTable(w io.Writer) error {
	fmt.Fprintf(w, "%s: %s\n%s\n%s\n\n", r.Workload, r.About, r.Hardware, r.Settings)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "strategy\tTTFT mean s\t±95%\tP50\tP90\tP99\thit rate\twithin 2 s\tgood/s\ttokens/s\tspread\tfailed\t")
	for _, o := range r.Outcomes {
		m := o.Mean
		fmt.Fprintf(t, "%v\t%.3f\t%.3f\t%.3f\t%.3f\t%.3f\t%.1f%%\t%.1f%%\t%.2f\t%.0f\t%.2f\t%.0f\t\n",
			o.Variant, m.MeanTTFT, o.Interval.MeanTTFT, m.P50TTFT, m.P90TTFT, m.P99TTFT, 100*m.HitRate, 100*m.Goodput,
			m.GoodPerSecond, m.Throughput, m.Spread, m.Failed)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	return r.writeEvents(w)
}

func (r *Report) writeEvents(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	any := false
	for _, o := range r.Outcomes {
		for _, e := range o.Events {
			if !any {
				any = true
				fmt.Fprintln(t, "\nevent\tstrategy\tgroups moved\tmoved anyway\tof\thit rate before\tlowest\tdip s\t")
			}
			fmt.Fprintf(t, "%s\t%v\t%.1f%%\t%.1f%%\t%d\t%.1f%%\t%.1f%%\t%.0f\t\n",
				e.Event, o.Variant, 100*e.Moved, 100*e.MovedAnyway, e.Groups, 100*e.HitBefore, 100*e.HitLowest, e.Dip)
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
	state := "one picker"
	if s.Replicas > 1 {
		state = fmt.Sprintf("%d pickers that share nothing", s.Replicas)
		if s.Shared {
			state = fmt.Sprintf("%d pickers that share their state", s.Replicas)
		}
	}
	loop := "open loop"
	if w.Clients > 0 {
		loop = fmt.Sprintf("%d clients", w.Clients)
	}
	return &Report{
		Workload: w.Name, About: w.About, Hardware: s.Hardware.Name,
		Settings: fmt.Sprintf("%d engines, %s, %s, %d requests, %d seeds", s.Engines, state, loop, w.Requests(), len(s.Seeds)),
		Outcomes: outcomes,
	}, nil
}
