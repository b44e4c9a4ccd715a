package simulate

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/homing-dev/homing/pkg/endpoint"
)

// Router is one replica of an endpoint picker.
type Router interface {
	// Publish says which engines are ready, ascending and at least one.
	Publish(members []int)
	// Pick sets f.Engine, and f.Fallbacks if it has any, and counts the request there. An error refuses
	// the request; then nothing is counted.
	Pick(now time.Duration, f *Flight) error
	// Move counts the request at another engine, where the gateway's retry went, and sets f.Engine.
	Move(now time.Duration, f *Flight, to int)
	// Done says that the request has ended, at f.Engine.
	Done(now time.Duration, f *Flight)
}

// firstTokener is a Router that wants to hear of first tokens.
type firstTokener interface {
	FirstToken(now time.Duration, f *Flight)
}

// Env is what a Router may know.
type Env struct {
	// Rand is the replica's own source of chance.
	Rand *rand.Rand
	// Policy is the pool's: every strategy takes its numbers from it, as far as it has a use for them.
	Policy endpoint.Policy
	// Others is how many more replicas pick, of which this one hears nothing.
	Others int
	// Name is the name of an engine; it differs from seed to seed, so that luck in hashing does too.
	Name func(engine int) string
	// Engine is the engine itself. Metrics that a picker can read are Scraped; the rest is for oracles.
	Engine func(engine int) *Engine
}

// Strategy is a named way to pick.
type Strategy struct {
	Name string
	// About says in a line what it does.
	About string
	// UsesLength and UsesThreshold say which numbers of the policy matter to it.
	UsesLength, UsesThreshold bool
	// Oracle says that it sees what no picker can.
	Oracle bool
	// Exchanges says that its replicas tell each other what they know as Homing's do, in time.
	Exchanges bool
	// New makes one replica.
	New func(Env) Router
}

// Strategies are all strategies by name: Homing's own, what else there is, and oracles.
func Strategies() []Strategy {
	all := homingStrategies()
	all = append(all, baselines()...)
	return append(all, oracles()...)
}

// FindStrategies are the strategies of these names, in this order.
func FindStrategies(names []string) ([]Strategy, error) {
	var found []Strategy
	for _, name := range names {
		s, err := findStrategy(name)
		if err != nil {
			return nil, err
		}
		found = append(found, s)
	}
	return found, nil
}

func findStrategy(name string) (Strategy, error) {
	var names []string
	for _, s := range Strategies() {
		if s.Name == name {
			return s, nil
		}
		names = append(names, s.Name)
	}
	return Strategy{}, fmt.Errorf("unknown strategy %q: want one of %s", name, strings.Join(names, ", "))
}
