package endpoint

import (
	"fmt"
	"strconv"
)

// PoolName names an InferencePool.
type PoolName struct{ Namespace, Name string }

func (n PoolName) String() string { return n.Namespace + "/" + n.Name }

// Strategy is how a policy wants endpoints to be chosen.
type Strategy uint8

// The strategies. Their names are those of the policy's strategy field.
const (
	Random Strategy = iota
	LeastOutstandingRequests
	PrefixAware
	AdaptivePrefix
)

var strategyNames = [...]string{"Random", "LeastOutstandingRequests", "PrefixAware", "AdaptivePrefix"}

func (s Strategy) String() string {
	if int(s) < len(strategyNames) {
		return strategyNames[s]
	}
	return "Strategy(" + strconv.Itoa(int(s)) + ")"
}

// UsesKey says whether the strategy looks at a request's prefix key. One that does not needs no body.
func (s Strategy) UsesKey() bool { return s == PrefixAware || s == AdaptivePrefix }

// ParseStrategy reads a strategy's name as a policy spells it.
func ParseStrategy(name string) (Strategy, error) {
	for i, n := range strategyNames {
		if n == name {
			return Strategy(i), nil
		}
	}
	return 0, fmt.Errorf("unknown strategy %q: want one of %v", name, strategyNames)
}

// Ranges and defaults of a policy's numbers; those of SageMaker's PREFIX_AWARE strategy.
const (
	MinPrefixLength             = 1024
	MaxPrefixLength             = 65536
	DefaultPrefixLength         = 4096
	MinConcurrencyThreshold     = 1
	MaxConcurrencyThreshold     = 1024
	DefaultConcurrencyThreshold = 64
)

// Policy is what applies to a pool, after policy, annotations and defaults have been merged.
type Policy struct {
	Strategy Strategy
	// PrefixLength is how much of a prompt makes its key, MinPrefixLength..MaxPrefixLength: characters
	// (code points) of text, bytes of a raw body.
	PrefixLength int
	// ConcurrencyThreshold is the in-flight count at which an endpoint is passed over,
	// MinConcurrencyThreshold..MaxConcurrencyThreshold.
	ConcurrencyThreshold int
	// Reject refuses requests while every endpoint is at the threshold, instead of overloading the
	// least loaded one.
	Reject bool
	// FallbackHeader puts the fallbacks in the endpoint header too, for gateways that read lists there.
	FallbackHeader bool
}

// DefaultPolicy is what a pool gets that says nothing itself.
func DefaultPolicy() Policy {
	return Policy{
		Strategy:             PrefixAware,
		PrefixLength:         DefaultPrefixLength,
		ConcurrencyThreshold: DefaultConcurrencyThreshold,
	}
}

// PoolSpec describes a pool to [Store.Publish].
type PoolSpec struct {
	Name PoolName
	// Port is the ext_proc port this pool is served on, 1..65535.
	Port      uint16
	Policy    Policy
	Endpoints []Spec
}

// Pool is an InferencePool as picks see it: its policy and the endpoints that may serve now.
type Pool struct {
	Name      PoolName
	Port      uint16
	Policy    Policy
	Endpoints []*Endpoint
	// EqualWeights holds when no endpoint weighs more than another, which makes scores cheap.
	EqualWeights bool
}

// Snapshot is the immutable view of all pools.
type Snapshot struct{ pools map[PoolName]*Pool }

// Pool is the pool of that name, nil when there is none.
func (s *Snapshot) Pool(name PoolName) *Pool { return s.pools[name] }

// Pools yields every pool, in no order.
func (s *Snapshot) Pools(yield func(*Pool) bool) {
	for _, p := range s.pools {
		if !yield(p) {
			return
		}
	}
}
