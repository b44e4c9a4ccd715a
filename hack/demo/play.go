package main

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/homing-dev/homing/test/env"
)

// result is what one strategy came to.
type result struct {
	strategy      string
	hits, queries float64         // tokens: found in the engines' caches, and looked for
	perEngine     []float64       // requests that each engine finished
	ttft          []time.Duration // sorted
	added         []time.Duration // what routing added to each probe, sorted
}

// play sends the work under one strategy.
func (s *stage) play(ctx context.Context, screen *screen, strategy string, seed uint64) (result, error) {
	r, begun := result{strategy: strategy}, time.Now()
	if err := s.switchTo(ctx, strategy); err != nil {
		return r, err
	}
	before, err := env.CountAll(ctx, s.engines)
	if err != nil {
		return r, err
	}
	if r.ttft, err = s.send(ctx, screen, strategy, seed); err != nil {
		return r, err
	}
	after, err := s.settled(ctx, before)
	if err != nil {
		return r, err
	}
	for i := range after {
		r.hits += after[i].Hits - before[i].Hits
		r.queries += after[i].Queries - before[i].Queries
		r.perEngine = append(r.perEngine, after[i].Finished-before[i].Finished)
	}
	screen.status("%s: measuring what routing adds", strategy)
	r.added, err = s.measureAdded(ctx)
	screen.say("%-25s done in %.0f s", strategy, time.Since(begun).Seconds())
	return r, err
}

// send has the clients play all conversations, and returns the times to the first token, sorted.
func (s *stage) send(ctx context.Context, screen *screen, strategy string, seed uint64) ([]time.Duration, error) {
	work := s.kind.work
	todo := make(chan conversation, work.documents*work.conversations)
	for _, c := range work.conversationsFor(strategy, seed) {
		todo <- c
	}
	close(todo)

	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var mu sync.Mutex
	var ttft []time.Duration
	done := 0
	turn := func(c conversation, i int) error {
		mu.Lock()
		n := done
		done++
		screen.status("%-25s %s %d of %d requests", strategy, bar(n, work.requests()), n, work.requests())
		mu.Unlock()
		first, err := ask(ctx, s.envoy.URL, chat{env.Model, c.history(i), work.answer, n%4 != 3})
		mu.Lock()
		defer mu.Unlock()
		if first > 0 {
			ttft = append(ttft, first)
		}
		return err
	}
	var clients sync.WaitGroup
	for range work.clients {
		clients.Go(func() {
			for c := range todo {
				for i := range c.turns {
					if ctx.Err() != nil {
						return
					}
					if err := turn(c, i); err != nil {
						cancel(err)
					}
				}
			}
		})
	}
	clients.Wait()
	slices.Sort(ttft)
	return ttft, context.Cause(ctx)
}

// settled waits until the engines have counted all the work: they do so a moment after they answered.
func (s *stage) settled(ctx context.Context, before []env.Counts) ([]env.Counts, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	for {
		after, err := env.CountAll(ctx, s.engines)
		if err != nil {
			return nil, err
		}
		finished := 0.0
		for i := range after {
			finished += after[i].Finished - before[i].Finished
		}
		if finished >= float64(s.kind.work.requests()) {
			return after, nil
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("the engines count %.0f requests of %d: %w", finished, s.kind.work.requests(), ctx.Err())
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// measureAdded sends the probe in turn by way of the picker and without it, one at a time, and returns
// the differences of neighbours, sorted.
func (s *stage) measureAdded(ctx context.Context) ([]time.Duration, error) {
	timed := func(url string) (time.Duration, error) {
		begun := time.Now()
		err := probe(ctx, url)
		return time.Since(begun), err
	}
	const warmUp = 20
	var added []time.Duration
	for i := range warmUp + s.kind.probes {
		plain, err := timed(s.envoy.Plain)
		if err != nil {
			return nil, err
		}
		routed, err := timed(s.envoy.URL)
		if err != nil {
			return nil, err
		}
		if i >= warmUp {
			added = append(added, routed-plain)
		}
	}
	slices.Sort(added)
	return added, nil
}
