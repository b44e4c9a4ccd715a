// Command demo shows prefix-aware routing on real HTTP traffic: it runs model servers, an Envoy and
// Homing on loopback, sends the same work under three strategies, and ends with one table.
//
// Every figure in the table is measured in that run: hits are what the servers count, times are what the
// clients saw. Between strategies nothing is shared: each one's prompts are its own.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/homing-dev/homing/test/env"
)

func main() {
	var o options
	flag.StringVar(&o.engine, "engine", "simulated", "model servers: simulated, or vllm for real ones on the CPU")
	flag.BoolVar(&o.keep, "keep", false, "leave everything running at the end, until Ctrl-C")
	flag.Uint64Var(&o.seed, "seed", 1, "of the prompts' words and order")
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the demo at once
	err := run(ctx, o)
	switch {
	case ctx.Err() != nil:
		fmt.Println("\nstopped; nothing is left running")
		os.Exit(130)
	case errors.Is(err, env.ErrUnsupported):
		fmt.Fprintln(os.Stderr, "demo:", err, "\nThe simulated engines run everywhere: make demo")
		os.Exit(1)
	case err != nil:
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}

type options struct {
	engine string
	keep   bool
	seed   uint64
}

// strategies are shown in this order.
var strategies = []string{"Random", "LeastOutstandingRequests", "PrefixAware"}

func run(ctx context.Context, o options) error {
	kind, ok := kinds[o.engine]
	if !ok {
		return fmt.Errorf("no engine %q: simulated or vllm", o.engine)
	}
	screen := newScreen(os.Stdout)
	screen.say("Homing demo: %d %s engines, Envoy and Homing on loopback. Ctrl-C ends it all.", kind.engines, o.engine)
	e, err := env.New(screen)
	if err != nil {
		return err
	}
	defer e.Close()
	stage, err := build(ctx, e, kind)
	if err != nil {
		return err
	}
	screen.say("\n%s", kind.work)

	results := make([]result, 0, len(strategies))
	for _, strategy := range strategies {
		r, err := stage.play(ctx, screen, strategy, o.seed)
		if err != nil {
			return fmt.Errorf("%s: %w", strategy, err)
		}
		results = append(results, r)
	}
	printTable(os.Stdout, results)
	if o.keep {
		stage.invite(os.Stdout)
		<-ctx.Done()
	}
	return nil
}
