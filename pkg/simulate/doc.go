// Package simulate runs the real picker against simulated model servers, on a simulated clock.
//
// It answers what a strategy, a prefix length or a threshold would bring before anything is changed.
// Invariants: a run is a pure function of its [Config];
// an engine's KV blocks are free, cached or private, and these add up to its capacity; what a request
// pinned it releases; every request that was sent is served, refused or lost, once.
//
// # How a strategy is plugged in
//
// A [Strategy] has a name and makes a [Router], which is one replica of an endpoint picker. The simulator
// calls it as a gateway calls Homing:
//
//	Publish(members)  the engines that are ready now, at the start and whenever that changes
//	Pick(now, f)      choose f.Engine (and f.Fallbacks) for the prompt f.Request, and count it there
//	Move(now, f, to)  the gateway's retry went to another engine: count it there instead
//	Done(now, f)      the response has ended, or the engine died: count it no longer
//
// A Router that also has FirstToken(now, f) hears of first tokens. With several replicas each request goes
// to one by chance; unshared replicas are one Router each, shared ones, and oracles, one Router for all (as
// if their state travelled in no time). Homing's own strategies are all in homing.go, as calls of pkg/picker; the
// others are in baseline*.go and oracle.go. [Strategies] is the list of names.
//
// A Router learns of the prompt by [Request.Key], the key of its first n characters, and by
// [Request.Ladder], the keys at every rung. Env gives it randomness and the policy.
// Of [Env.Engine] only oracles may look at more than Scraped and the cache's size.
package simulate
