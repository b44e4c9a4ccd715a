package picker

// Tuning is the constants of AdaptivePrefix. They are no settings: docs/evaluation.md says how each was
// chosen and what other values cost, in the simulator.
type Tuning struct {
	// Replication is how many endpoints a rung gets for each endpoint's worth of traffic it has; more than 1
	// leaves room for uneven load.
	Replication float64
	// HalfLife is how many seconds it takes until a request counts half in a rung's share of the traffic.
	HalfLife float64
	// Recent is the same for what went to an endpoint lately. It is short: what is over says little of what
	// comes, and an endpoint that got much is not to be left idle for it.
	Recent float64
	// Doubt is how many requests, for each endpoint, are taken to have come before the first, none of them with
	// a rung of a later one: the first conversation is not all of the traffic that there will be.
	Doubt float64
	// Leave is how many times the least work home must have before a request goes elsewhere.
	Leave float64
	// Base is added to an endpoint's requests in flight before they weigh its work: the more, the less a few of
	// them keep others away.
	Base float64
	// Uncached weighs what this request would have to compute against what is pending already: it also
	// keeps those waiting that come after it.
	Uncached float64
	// Beyond is how much of what is beyond the last rung a prompt is taken to have in common with the longest
	// that went the same way, 0..1: a ladder ends at prefixLength.
	Beyond float64
	// Forget is after how many seconds a place is no longer taken to hold a rung.
	Forget float64
	// Rungs is how many rungs are remembered, of 64 bytes each; a power of two.
	Rungs int
	// ByRendezvous puts a rung not seen before at its rendezvous home, as replicas that share nothing must,
	// instead of where the least went lately.
	ByRendezvous bool

	// Others is how many more replicas pick for the pool without a word to this one.
	Others int
	// Presumed is the share of a prompt that, with Others, is taken to be cached at its rendezvous home.
	Presumed float64
	// Alike is how far, with Others, their load on an endpoint is taken to be what this replica's is: 1
	// entirely, 0 the same on all endpoints.
	Alike float64
}

// DefaultTuning is what [New] uses.
func DefaultTuning() Tuning {
	return Tuning{
		Replication: 2,
		HalfLife:    60,
		Recent:      5,
		Doubt:       2,
		Leave:       1.75,
		Base:        3.25,
		Uncached:    1.5,
		Beyond:      0.5,
		Forget:      600,
		Rungs:       1 << 16,
		Presumed:    0.5,
		Alike:       0.1,
	}
}
