package main

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"
)

// printTable prints what the strategies came to, and the last one beside the first.
func printTable(out io.Writer, results []result) {
	fmt.Fprintln(out)
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "\tKV hit\tTTFT\t\t\trequests\trouting\t")
	fmt.Fprintln(w, "strategy\trate\tmean\tp50\tp90\tper engine\tadds p50\tp90")
	for _, r := range results {
		fmt.Fprintf(w, "%s\t%.0f %%\t%s\t%s\t%s\t%s\t%s\t%s\n", r.strategy, 100*r.hits/r.queries,
			ms(mean(r.ttft)), ms(quantile(r.ttft, 50)), ms(quantile(r.ttft, 90)), counts(r.perEngine),
			fine(quantile(r.added, 50)), fine(quantile(r.added, 90)))
	}
	_ = w.Flush()
	first, last := results[0], results[len(results)-1]
	fmt.Fprintf(out, `
%[1]s found %.1[3]f times as many tokens in the engines' caches as %[2]s, and its mean time
to the first token (TTFT) is %.2[4]f times %[2]s's.

Hit rate: of tokens, as the engines count them. TTFT: of streamed answers, as the clients see
it. Routing adds: to an 8 KiB chat, against a plain cluster of the same Envoy, in turn.
`, last.strategy, first.strategy, last.hits/first.hits, float64(mean(last.ttft))/float64(mean(first.ttft)))
}

// counts is each engine's requests, in the engines' order.
func counts(perEngine []float64) string {
	words := make([]string, len(perEngine))
	for i, n := range perEngine {
		words[i] = fmt.Sprintf("%.0f", n)
	}
	return strings.Join(words, " ")
}

func mean(ds []time.Duration) time.Duration {
	if len(ds) == 0 {
		return 0
	}
	var sum time.Duration
	for _, d := range ds {
		sum += d
	}
	return sum / time.Duration(len(ds))
}

// quantile is the nearest-rank percentile of sorted durations.
func quantile(sorted []time.Duration, percent int) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[(len(sorted)*percent+99)/100-1]
}

func ms(d time.Duration) string { return fmt.Sprintf("%d ms", d.Milliseconds()) }

func fine(d time.Duration) string { return fmt.Sprintf("%.2f ms", float64(d)/1e6) }
