package simulate

import "time"

// Oracles see what no picker can: the engines' caches and queues as they are. They are global, one for
// all replicas' requests, since each sees all.
func oracles() []Strategy {
	return []Strategy{
		{Name: "KnownGroups", About: "a client that knows the workload's groups and keeps each at one engine", New: func(env Env) Router {
			return &knownGroups{tally: newTally(env), home: map[uint64]int{}, groups: map[int]int{}}
		}},
		{Name: "OracleHits", About: "the engine whose cache truly holds most of the prompt, then the least busy", New: func(env Env) Router {
			return &oracle{newTally(env), mostCached}
		}},
		{Name: "OracleWork", About: "the engine with the least true work: prompts still to compute there, and what this one adds", New: func(env Env) Router {
			return &oracle{newTally(env), leastWork}
		}},
	}
}

// knownGroups gives a new group to the engine with the fewest groups.
type knownGroups struct {
	tally
	home   map[uint64]int
	groups map[int]int
}

func (k *knownGroups) Publish(members []int) {
	k.tally.Publish(members)
	ready := map[int]bool{}
	for _, m := range members {
		ready[m] = true
	}
	for group, m := range k.home {
		if !ready[m] {
			delete(k.home, group)
		}
	}
}

func (k *knownGroups) Pick(_ time.Duration, f *Flight) error {
	to, known := k.home[f.Group]
	if !known {
		to = k.best(func(m int) float64 { return -float64(k.groups[m]) })
		k.home[f.Group] = to
		k.groups[to]++
	}
	k.send(f, to)
	return nil
}

type oracle struct {
	tally
	score func(*Engine, *Request) float64
}

func (o *oracle) Pick(_ time.Duration, f *Flight) error {
	o.send(f, o.best(func(m int) float64 {
		g := o.Engine(m)
		if g.dead {
			return -1e18
		}
		return o.score(g, f.Request)
	}))
	return nil
}

func mostCached(g *Engine, r *Request) float64 {
	return float64(g.Promised(r)) - float64(g.InFlight())/1e4
}

// uncachedWeight is what a token that this request would have computed counts, against one that others
// wait for: it takes the engine's time from all who come later as well.
const uncachedWeight = 2

func leastWork(g *Engine, r *Request) float64 {
	own := r.Prompt - g.Promised(r)
	return -(float64(g.Pending()) + uncachedWeight*float64(own)) * g.slow
}
