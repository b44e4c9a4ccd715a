#!/bin/bash
# bench.sh: prints the benchmarks as tables, one per package, with allocations.
# BENCH: a regexp of benchmarks, all by default. COUNT: runs of each, 1 by default. BENCHTIME: 1s each.
. "$(dirname "$0")/lib.sh"
cd "$ROOT"

results=$(mktemp)
trap 'rm -f "$results"' EXIT
packages=$(grep -rl --include='*_test.go' '^func Benchmark' pkg test | xargs -rn1 dirname | sort -u | sed 's|^|./|')
for package in $packages; do
  say "benchmarks of $package ..."
  go test -run - -bench "${BENCH:-.}" -benchtime "${BENCHTIME:-1s}" -count "${COUNT:-1}" -benchmem -timeout 30m "$package" |
    tee -a "$results" | grep -e ^Benchmark -e ^FAIL -e '^---' >&2 || true
  [ "${PIPESTATUS[0]}" = 0 ] || die "benchmarks of $package failed"
done
hack/tool.sh benchstat "$results"
