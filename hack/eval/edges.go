package main

import (
	"context"
	"fmt"

	"github.com/homing-dev/homing/pkg/simulate"
)

// edges sweeps PrefixAware's two settings.
func edges(p *page) (list []job) {
	for _, l := range []load{conversation, tenChats} {
		list = append(
			list,
			p.sweep(l, "length", gridLengths, []int{64}, "PrefixAware", "BoundedHash", "AdaptivePrefix", "LeastOutstandingRequests"),
			p.sweep(l, "threshold", []int{4096}, []int{1, 2, 4, 8, 16, 32, 64, 256, 1024}, "PrefixAware", "AdaptivePrefix", "LeastOutstandingRequests"),
		)
	}
	return list
}

// sweep draws hit rate and P90 over a setting.
func (p *page) sweep(l load, setting string, lengths, thresholds []int, strategies ...string) job {
	return job{fmt.Sprintf("%v over %s", l, setting), func(ctx context.Context) (string, error) {
		s, err := l.study(simulate.Second, 3, strategies...)
		if err != nil {
			return "", err
		}
		s.PrefixLengths, s.Thresholds = lengths, thresholds
		r, err := s.Report(ctx)
		if err != nil {
			return "", err
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		for i, svg := range r.SweepSVGs() {
			p.files[fmt.Sprintf("%s-%s-%s.svg", l.name, setting, []string{"hits", "p90"}[i])] = svg
		}
		return "drawn", nil
	}}
}
