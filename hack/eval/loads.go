package main

import (
	"fmt"
	"slices"

	"github.com/homing-dev/homing/pkg/endpoint"
	"github.com/homing-dev/homing/pkg/simulate"
)

// load is a workload as it is simulated. Constants were tuned on first halves and seeds from 1 on; what is
// reported is second halves, and seeds from 11 on.
type load struct {
	name    string
	rate    float64
	engines int
	tiny    bool // on the hardware of the real engines
}

func (l load) String() string {
	if l.rate != 1 {
		return fmt.Sprintf("%s x%g", l.name, l.rate)
	}
	return l.name
}

var (
	conversation = load{name: "mooncake-conversation", rate: 1.5, engines: 7}
	tenChats     = load{name: "ten-chats", rate: 1, engines: realEngines, tiny: true}
)

// loads are all that strategies are compared under.
func loads() []load {
	all := []load{{name: "mooncake-conversation", rate: 1, engines: 7}, conversation}
	for _, name := range []string{
		"mooncake-synthetic", "shared-system", "zipf-prefixes", "flash-hot", "agents", "sagemaker-long", "sagemaker-short",
	} {
		all = append(all, load{name: name, rate: 1, engines: 7})
	}
	for _, name := range append(slices.Clone(realWorkloads), "quiet-chats") {
		all = append(all, load{name: name, rate: 1, engines: realEngines, tiny: true})
	}
	return all
}

// workload makes the load's workload, or a part of it.
func (l load) workload(part simulate.Part, seed uint64) (*simulate.Workload, error) {
	b, err := simulate.FindBuiltin(l.name)
	if err != nil {
		return nil, err
	}
	w, err := b.Make(simulate.WorkloadOptions{Seed: seed, Engines: l.engines})
	if err != nil {
		return nil, err
	}
	return w.Take(part).Faster(l.rate), nil
}

// study compares strategies under the load: its first part to tune on, its second to report.
func (l load) study(part simulate.Part, seeds int, strategies ...string) (*simulate.Study, error) {
	first, hardware := uint64(11), simulate.Llama70B
	if part == simulate.First {
		first = 1
	}
	if l.tiny { // runs are short: they count whole, and there are more of them
		kept, err := readMeasured()
		if err != nil {
			return nil, err
		}
		part, seeds, hardware = simulate.All, 4*seeds, kept.Hardware
	}
	s := &simulate.Study{
		PrefixLengths: []int{endpoint.DefaultPrefixLength}, Thresholds: []int{endpoint.DefaultConcurrencyThreshold},
		Hardware: hardware, Engines: l.engines, Replicas: 1,
		Workload: func(seed uint64) (*simulate.Workload, error) { return l.workload(part, seed) },
	}
	for i := range uint64(seeds) { //nolint:gosec // a few
		s.Seeds = append(s.Seeds, first+i)
	}
	var err error
	s.Strategies, err = simulate.FindStrategies(strategies)
	return s, err
}
