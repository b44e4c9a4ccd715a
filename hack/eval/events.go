package main

import (
	"context"
	"fmt"

	"github.com/homing-dev/homing/pkg/simulate"
)

// happening is something that happens to a cluster.
type happening struct {
	title, event string
	crowd        crowd
	strategies   []string
}

func happenings() []happening {
	all := []string{"PrefixAware", "AdaptivePrefix", "RadixRouter", "KnownGroups"}
	own := all[:2] // others are not simulated to forget
	return []happening{
		{"an eighth engine comes", "3m:add", crowd{1, false}, all},
		{"one of seven is drained", "3m:remove:2", crowd{1, false}, all},
		{"one of seven dies", "3m:kill:2", crowd{1, false}, all},
		{"the only picker restarts", "3m:restart", crowd{1, false}, own},
		{"one of three pickers restarts", "3m:restart:1", crowd{3, true}, own},
		{"all three pickers restart at once", "3m:restart", crowd{3, true}, own},
	}
}

// events has engines come and go, and pickers forget, under prefixes, chats and agents.
func events(p *page) []job {
	var parts []part
	for _, name := range []string{"zipf-prefixes", "shared-system", "agents"} {
		for _, h := range happenings() {
			parts = append(parts, part{fmt.Sprintf("%s, %s", name, h.title), func(ctx context.Context) (string, error) {
				return h.rows(ctx, load{name: name, rate: 1, engines: 7})
			}})
		}
	}
	return p.tableOf("events", newTable("workload", "event", "strategy", "groups moved", "moved anyway", "of",
		"depth of the dip", "length of the dip", "mean TTFT", "failed"), parts)
}

// rows are what came of it, for each strategy.
func (h happening) rows(ctx context.Context, l load) (string, error) {
	s, err := l.study(simulate.All, 3, h.strategies...)
	if err != nil {
		return "", err
	}
	e, err := simulate.ParseEvent(h.event)
	if err != nil {
		return "", err
	}
	s.Events, s.Replicas, s.Shared = []simulate.Event{e}, h.crowd.replicas, h.crowd.shared
	outcomes, err := s.Run(ctx)
	if err != nil {
		return "", err
	}
	t := &table{}
	for _, o := range outcomes {
		for _, effect := range o.Events {
			t.row(l.name)
			t.cell(h.title)
			t.cell(o.Strategy)
			t.cellf("%.1f %%", 100*effect.Moved)
			t.cellf("%.1f %%", 100*effect.MovedAnyway)
			t.cellf("%d", effect.Groups)
			t.cellf("%.1f points", 100*effect.Depth)
			t.cellf("%.0f s", effect.Dip)
			t.cellf("%s s", seconds(o.Mean.MeanTTFT))
			t.cellf("%.0f", o.Mean.Failed)
		}
	}
	return t.String(), nil
}
