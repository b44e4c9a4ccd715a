package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/homing-dev/homing/pkg/endpoint"
	"github.com/homing-dev/homing/pkg/simulate"
)

// simulation are the flags of `homing simulate`.
type simulation struct {
	workload, trace, requests string
	part                      string
	strategies                []string
	lengths, thresholds       []int
	reject                    bool
	engines, replicas         int
	shared                    bool
	rate                      float64
	clients                   int
	events                    []string
	seeds                     int
	warmup                    time.Duration
	charsPerToken             int
	hardware                  string
	hardwareScale             float64
	kvTokens                  int
	frontend                  time.Duration
	sensitivity, json         bool
	plot                      string
	quiet                     bool
}

var defaultStrategies = []string{"Random", "LeastOutstandingRequests", "PrefixAware"}

func (s *simulation) register(set *pflag.FlagSet) {
	set.StringVar(&s.workload, "workload", "mooncake-conversation", "the `name` of a workload that comes with homing; see the list above")
	set.StringVar(&s.trace, "trace", "", "a `file` of your own traffic in Mooncake's format, instead of --workload")
	set.StringVar(&s.requests, "requests", "", "a `file` of your own request bodies, one JSON object a line, instead of --workload: as they are, or as \"body\" beside \"url\", \"timestamp\" in ms and \"output_tokens\"; without timestamps one comes every second, times --rate")
	set.StringVar(&s.part, "part", "all", "which `part` of the workload by time: all, first or second half, to tune on one and report the other")
	set.StringSliceVar(&s.strategies, "strategies", defaultStrategies, "the `names` of the strategies to compare, or all; see the list above")
	set.IntSliceVar(&s.lengths, "prefix-lengths", []int{endpoint.DefaultPrefixLength}, "the prefixLength of the policy, 1024..65536 `characters`; several are a sweep")
	set.IntSliceVar(&s.thresholds, "thresholds", []int{endpoint.DefaultConcurrencyThreshold}, "the concurrencyThreshold of the policy, 1..1024 `requests`; several are a sweep")
	set.BoolVar(&s.reject, "reject", false, "the policy's saturation is Reject: refuse requests while every engine is at the threshold")
	set.IntVar(&s.engines, "engines", 7, "how `many` engines serve at the start, 1..1000")
	set.IntVar(&s.replicas, "replicas", 1, "how `many` pickers take requests, 1..100")
	set.BoolVar(&s.shared, "shared", false, "replicas tell each other what they know: every 50 ms, or in no time where the strategy is not Homing's")
	set.Float64Var(&s.rate, "rate", 1, "how many `times` as fast requests come as the workload has them, in an open loop")
	set.IntVar(&s.clients, "clients", 0, "how many `requests` are under way at a time, in a closed loop (default: as the workload has it)")
	set.StringArrayVar(&s.events, "event", nil, "a `change` of the engines, TIME:add, TIME:remove:ENGINE, TIME:kill:ENGINE or TIME:slow:ENGINE:FACTOR, or of the pickers, TIME:restart or TIME:restart:PICKER, as 10m:kill:3; may be given again")
	set.IntVar(&s.seeds, "seeds", 1, "how `many` seeds to run; several give the mean and its 95 % interval")
	set.DurationVar(&s.warmup, "warmup", 0, "how `long` at the start of a run requests do not count")
	set.IntVar(&s.charsPerToken, "chars-per-token", simulate.DefaultCharsPerToken, "how many `characters` a token has, 1..16: prefixLength counts characters")
	set.StringVar(&s.hardware, "hardware", "h100x8-llama-70b", "the `name` of the engines' hardware and model: "+strings.Join(hardwareNames(), ", "))
	set.IntVar(&s.kvTokens, "kv-tokens", 0, "how many `tokens` an engine's KV cache holds (default: as the hardware has it)")
	set.DurationVar(&s.frontend, "frontend", 0, "how `long` a request takes before an engine schedules it: network, HTTP, tokenizer (0: as the hardware has it)")
	set.Float64Var(&s.hardwareScale, "hardware-scale", 1, "a `factor` on every step time of the engines, as 0.8 and 1.2 for a sensitivity run")
	set.BoolVar(&s.sensitivity, "sensitivity", false, "also run with each constant of the hardware 20% smaller and greater")
	set.BoolVar(&s.json, "json", false, "print JSON instead of a table")
	set.StringVar(&s.plot, "plot", "", "write curves of TTFT, hit rate and load to this `file`, an HTML page that needs nothing else")
	set.BoolVar(&s.quiet, "quiet", false, "show no progress on standard error")
}

func newSimulateCommand() *cobra.Command {
	var s simulation
	cmd := &cobra.Command{
		Use:   "simulate",
		Short: "Learn what a strategy or a setting would bring, before changing anything",
		Long:  simulateHelp(),
		Example: `  # What do three strategies make of an hour of a chat service, at one and a half times its rate?
  homing simulate --workload mooncake-conversation --rate 1.5

  # Which prefixLength and threshold would have been best? Tune on the first half, report the second.
  homing simulate --part first --strategies PrefixAware --prefix-lengths 1024,4096,16384,65536 --thresholds 4,16,64,256
  homing simulate --part second --strategies all --plot report.html

  # And for your own traffic: a file of request bodies, one a line.
  homing simulate --requests bodies.jsonl --engines 4 --rate 5 --prefix-lengths 1024,2048,4096,8192

  # What happens when one of seven engines dies, and is replaced?
  homing simulate --event 20m:kill:3 --event 25m:add

  # Three pickers that share nothing, five seeds, machine-readable.
  homing simulate --workload agents --replicas 3 --seeds 5 --json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return s.run(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	s.register(cmd.Flags())
	return cmd
}

func simulateHelp() string {
	var b strings.Builder
	b.WriteString(`Send a workload to simulated model servers under one strategy after the other, and compare.

Homing's strategies run as they are, the same code as in production, on a simulated clock; the engines
are simulated in the manner of vLLM. Nothing is sent anywhere. The same seed gives the same figures.

Workloads:
`)
	for _, w := range simulate.Builtins() {
		fmt.Fprintf(&b, "  %-24s %s\n", w.Name, w.About)
	}
	b.WriteString("\nStrategies:\n")
	for _, s := range simulate.Strategies() {
		fmt.Fprintf(&b, "  %-24s %s\n", s.Name, s.About)
	}
	return strings.TrimRight(b.String(), "\n")
}

// study is what the flags ask for.
func (s *simulation) study() (*simulate.Study, error) {
	if err := s.check(); err != nil {
		return nil, err
	}
	names := s.strategies
	if slices.Equal(names, []string{"all"}) {
		names = nil
		for _, known := range simulate.Strategies() {
			names = append(names, known.Name)
		}
	}
	strategies, err := simulate.FindStrategies(names)
	if err != nil {
		return nil, fmt.Errorf("--strategies: %w", err)
	}
	hardware, err := s.engine()
	if err != nil {
		return nil, err
	}
	study := &simulate.Study{
		Strategies: strategies, PrefixLengths: s.lengths, Thresholds: s.thresholds, Reject: s.reject,
		Hardware: hardware, Engines: s.engines, Replicas: s.replicas, Shared: s.shared,
		Warmup: s.warmup,
	}
	if study.Events, err = s.parseEvents(); err != nil {
		return nil, fmt.Errorf("--event: %w", err)
	}
	for i := range s.seeds {
		study.Seeds = append(study.Seeds, uint64(i+1)) //nolint:gosec // 1..1000
	}
	study.Workload, err = s.source()
	return study, err
}

func (s *simulation) parseEvents() (events []simulate.Event, err error) {
	engines := s.engines
	for _, text := range s.events {
		event, err := simulate.ParseEvent(text)
		if err != nil {
			return nil, err
		}
		if event.Kind == simulate.Add {
			engines++
		} else if event.Engine >= engines {
			return nil, fmt.Errorf("%s: there is no engine %d; they count from 0, and those added come after the %d at the start", text, event.Engine, s.engines)
		}
		events = append(events, event)
	}
	return events, nil
}

func hardwareNames() []string { return slices.Sorted(maps.Keys(simulate.Hardwares())) }

// engine is the hardware with what the flags change of it.
func (s *simulation) engine() (simulate.Hardware, error) {
	hardware, ok := simulate.Hardwares()[s.hardware]
	if !ok {
		return hardware, fmt.Errorf("--hardware %s: want one of %s", s.hardware, strings.Join(hardwareNames(), ", "))
	}
	hardware = hardware.Scale(s.hardwareScale)
	if s.kvTokens > 0 {
		hardware.KVTokens = s.kvTokens
	}
	if s.frontend > 0 {
		hardware.Frontend = s.frontend
	}
	return hardware, nil
}

func (s *simulation) check() error {
	type bound struct {
		flag            string
		value, min, max int
	}
	bounds := []bound{
		{"--engines", s.engines, 1, 1000},
		{"--replicas", s.replicas, 1, 100},
		{"--seeds", s.seeds, 1, 1000},
		{"--clients", s.clients, 0, 100_000},
		{"--chars-per-token", s.charsPerToken, 1, 16},
	}
	for _, n := range s.lengths {
		bounds = append(bounds, bound{"--prefix-lengths", n, endpoint.MinPrefixLength, endpoint.MaxPrefixLength})
	}
	for _, n := range s.thresholds {
		bounds = append(bounds, bound{"--thresholds", n, endpoint.MinConcurrencyThreshold, endpoint.MaxConcurrencyThreshold})
	}
	for _, b := range bounds {
		if b.value < b.min || b.value > b.max {
			return fmt.Errorf("%s %d: want %d..%d", b.flag, b.value, b.min, b.max)
		}
	}
	if !slices.Contains([]string{"all", "first", "second"}, s.part) {
		return fmt.Errorf("--part %s: want all, first or second", s.part)
	}
	if s.trace != "" && s.requests != "" {
		return errors.New("--trace and --requests: want one of them")
	}
	if s.rate <= 0 || s.hardwareScale <= 0 || s.warmup < 0 {
		return fmt.Errorf("--rate %g, --hardware-scale %g, --warmup %s: want more than 0, more than 0, and 0s or more", s.rate, s.hardwareScale, s.warmup)
	}
	return nil
}

// source makes the workload of a seed.
func (s *simulation) source() (func(uint64) (*simulate.Workload, error), error) {
	make, err := s.base()
	if err != nil {
		return nil, err
	}
	return func(seed uint64) (*simulate.Workload, error) {
		w, err := make(seed)
		if err != nil {
			return nil, err
		}
		w = w.Take(simulate.Part(s.part)).Faster(s.rate)
		if s.clients > 0 {
			w.Clients = s.clients
		}
		return w, nil
	}, nil
}

func (s *simulation) base() (func(uint64) (*simulate.Workload, error), error) {
	if s.trace != "" {
		w, err := s.read(s.trace, simulate.ReadMooncake)
		return func(uint64) (*simulate.Workload, error) { return w, err }, err
	}
	if s.requests != "" {
		w, err := s.read(s.requests, simulate.ReadBodies)
		return func(uint64) (*simulate.Workload, error) { return w, err }, err
	}
	b, err := simulate.FindBuiltin(s.workload)
	if err != nil {
		return nil, fmt.Errorf("--workload: %w", err)
	}
	return func(seed uint64) (*simulate.Workload, error) {
		return b.Make(simulate.WorkloadOptions{Seed: seed, Engines: s.engines, CharsPerToken: s.charsPerToken})
	}, nil
}

func (s *simulation) read(path string, reader func(io.Reader, string, int) (*simulate.Workload, error)) (*simulate.Workload, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	w, err := reader(file, filepath.Base(path), s.charsPerToken)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return w, nil
}

func (s *simulation) run(ctx context.Context, out, errOut io.Writer) error {
	study, err := s.study()
	if err != nil {
		return err
	}
	shown := newProgress(errOut)
	if !s.quiet {
		study.Progress = shown.show
	}
	report, err := study.Report(ctx)
	if err == nil && s.sensitivity {
		report.Sensitivity, err = study.Sensitivity(ctx)
	}
	shown.end()
	if err != nil {
		return err
	}
	if s.plot != "" {
		if err := s.writePlot(report); err != nil {
			return fmt.Errorf("--plot: %w", err)
		}
	}
	if s.json {
		return report.WriteJSON(out)
	}
	return report.WriteTable(out)
}

func (s *simulation) writePlot(report *simulate.Report) error {
	file, err := os.Create(s.plot)
	if err != nil {
		return err
	}
	return errors.Join(report.WritePlot(file), file.Close())
}

// progress shows how far a study is: on a terminal in one line that changes, elsewhere in a line a run.
type progress struct {
	to       io.Writer
	terminal bool
	shown    time.Time
	run      int
}

func newProgress(to io.Writer) *progress {
	p := &progress{to: to}
	if file, ok := to.(*os.File); ok {
		info, err := file.Stat()
		p.terminal = err == nil && info.Mode()&os.ModeCharDevice != 0
	}
	return p
}

func (p *progress) show(at simulate.Progress) {
	if p.terminal {
		if time.Since(p.shown) > 100*time.Millisecond {
			p.shown = time.Now()
			fmt.Fprintf(p.to, "\r\033[Krun %d of %d: %v, seed %d, %d%%", at.Run, at.Runs, at.Variant, at.Seed, 100*at.Ended/max(at.Requests, 1))
		}
	} else if at.Run != p.run {
		p.run = at.Run
		fmt.Fprintf(p.to, "run %d of %d: %v, seed %d\n", at.Run, at.Runs, at.Variant, at.Seed)
	}
}

func (p *progress) end() {
	if p.terminal {
		fmt.Fprint(p.to, "\r\033[K")
	}
}
