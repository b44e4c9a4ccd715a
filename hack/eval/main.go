// Command eval makes docs/evaluation.md: how Homing's strategies compare, simulated and on real engines.
//
//	eval            simulate everything, and write the page
//	eval -real      measure on real vLLM engines behind the real Envoy, and keep the figures
//
// Simulated figures depend on nothing but the code and the constants measured on the real engines. Measured
// ones are kept in docs/evaluation/real.json, from where the page takes them.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
)

func main() {
	real := flag.Bool("real", false, "measure on real engines, instead of simulating")
	seeds := flag.Int("seeds", 5, "how many `seeds` of each workload to measure")
	from := flag.Uint64("from", 1, "the first `seed` to measure")
	workloads := flag.String("workloads", strings.Join(realWorkloads, ","), "the `names` of the workloads to measure")
	ways := flag.String("ways", "", "measure only the ways to route whose `names` begin so, separated by semicolons")
	sections := flag.String("sections", "", "simulate only these `sections` of the page: comparison, edges, events, sagemaker, constants, real")
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends it at once
	var err error
	if *real {
		err = measure(ctx, *from, *seeds, strings.Split(*workloads, ","), *ways)
	} else {
		err = writePage(ctx, *sections)
	}
	switch {
	case ctx.Err() != nil:
		fmt.Println("\nstopped; nothing is left running")
		os.Exit(130)
	case err != nil:
		fmt.Fprintln(os.Stderr, "eval:", err)
		os.Exit(1)
	}
}
