#!/bin/bash
# bench.sh: runs the benchmarks and prints a table per package, with allocations. The raw results stay in
# $HOMING_CACHE/bench.txt; with BASE=older-results it compares the two by benchstat (COUNT=6 or more, then).
# BENCH: a regexp of benchmarks, all by default. COUNT: runs of each, 1. BENCHTIME: of each run, 1s.
. "$(dirname "$0")/lib.sh"
cd "$ROOT"

# table: benchmark results as one row each, with a column for every unit that any of them has.
table() {
  awk '
    function put(row, column, text) { cell[row, column] = text; if (length(text) > width[column]) width[column] = length(text) }
    function human(ns) {
      if (ns >= 1e9) return sprintf("%.2f s", ns / 1e9)
      if (ns >= 1e6) return sprintf("%.2f ms", ns / 1e6)
      if (ns >= 1e3) return sprintf("%.2f us", ns / 1e3)
      return sprintf("%.1f ns", ns)
    }
    /^Benchmark/ {
      name = $1; sub(/^Benchmark/, "", name); sub(/-[0-9]+$/, "", name); put(++rows, 1, name)
      for (i = 3; i < NF; i += 2) {
        if (!($(i + 1) in at)) { at[$(i + 1)] = ++units + 1; put(0, units + 1, $(i + 1) == "ns/op" ? "time/op" : $(i + 1)) }
        put(rows, at[$(i + 1)], $(i + 1) == "ns/op" ? human($i) : $i)
      }
    }
    END {
      for (r = 0; r <= rows; r++) {
        printf "%-" width[1] "s", cell[r, 1]
        for (c = 2; c <= units + 1; c++) printf "  %" width[c] "s", cell[r, c]
        print ""
      }
    }'
}

results=$HOMING_CACHE/bench.txt
: >"$results"
packages=$(grep -rl --include='*_test.go' '^func Benchmark' pkg test | xargs -rn1 dirname | sort -u)
for package in $packages; do
  say "benchmarks of $package ..."
  one=$(mktemp)
  go test -run - -bench "${BENCH:-.}" -benchtime "${BENCHTIME:-1s}" -count "${COUNT:-1}" -benchmem -timeout 30m "./$package" >"$one" ||
    { cat "$one" >&2; die "benchmarks of $package failed"; }
  cat "$one" >>"$results"
  if grep -q ^Benchmark "$one"; then
    printf '\n%s\n' "$package"
    table <"$one"
  fi
  rm -f "$one"
done
[ -z "${BASE:-}" ] || hack/tool.sh benchstat "$BASE" "$results"
