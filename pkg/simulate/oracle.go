package simulate

import (
	"math"
	"time"
)

// Oracles see what no picker can: the engines' caches and queues as they are. One serves all replicas,
// since it sees all.
func oracles() []Strategy {
	return []Strategy{
		{Name: "KnownGroups", About: "a client that knows the workload's groups and keeps each at one engine", Oracle: true, New: func(env Env) Router {
			return &knownGroups{tally: newTally(env), home: map[uint64]int{}, groups: map[int]int{}}
		}},
		{Name: "OracleGreedy", About: "the engine that truly has the least to compute before this request's first token", Oracle: true, New: func(env Env) Router {
			return &oracle{newTally(env), 1}
		}},
		{Name: "OracleWork", About: "the same, but what this request adds counts twice, since it may keep others waiting too", Oracle: true, New: func(env Env) Router {
			return &oracle{newTally(env), 2}
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

// oracle reckons when the first token would come: the rest of the present step, and steps for the prompts
// that the engine still has to compute and for what it lacks of this one. A weight of 1 is greedy; more
// counts what the request adds against those that come after it. Of 1 to 3, tried with one seed on whole
// workloads at 1 to 2 times their rate, 2 was far better on flash-hot and zipf-prefixes at twice the rate,
// worse on shared-system, and no different on the Mooncake traces.
type oracle struct {
	tally
	weight float64 // of the time that this request adds
}

func (o *oracle) Pick(now time.Duration, f *Flight) error {
	o.send(f, o.best(func(m int) float64 {
		g := o.Engine(m)
		if g.dead {
			return math.Inf(-1)
		}
		promised := g.Promised(f.Request)
		before := g.prefill(g.Pending(), 0)
		with := g.prefill(g.Pending()+f.Prompt-promised, (f.Prompt-promised)*(f.Prompt+promised)/2)
		return -(float64(g.rest(now)+before) + o.weight*float64(with-before))
	}))
	return nil
}
