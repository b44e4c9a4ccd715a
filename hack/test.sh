#!/bin/bash
# test.sh [SUITE...]: runs the test suites, all of them unless some are named, and ends with how long each
# took and how many tests ran. Suites: unit, bench, and each folder of test/ that has tests.
. "$(dirname "$0")/lib.sh"
cd "$ROOT"

gotestsum=$(hack/tool.sh --path gotestsum)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=()

# tested FORMAT ARGUMENT...: a suite by way of gotestsum. Its counts go to a file, to be added up.
tested() {
  local format=$1
  POST="$work/counts" "$gotestsum" --format "$format" --format-hide-empty-pkg --hide-summary skipped \
    --post-run-command "bash -c 'echo \$TESTS_TOTAL \$TESTS_FAILED \$TESTS_SKIPPED \$TESTS_ERRORS >> \$POST'" \
    -- "${@:2}"
}

# The race detector allocates, so what is said of allocations is tested without it.
suite_unit() {
  tested pkgname -race $(go list ./... | grep -v /test/) && tested pkgname -run Allocate ./pkg/picker
}

# Each benchmark once, so that none rots; `make bench` is for figures.
suite_bench() {
  local packages
  packages=$(grep -rl --include='*_test.go' '^func Benchmark' api cmd config pkg test hack/demo 2>/dev/null | xargs -rn1 dirname | sort -u | sed 's|^|./|')
  [ -z "$packages" ] || go test -run - -bench . -benchtime 1x -timeout 20m $packages
}

# A suite of test/ starts real parts, so its packages take turns, and its tests are named as they pass.
suite_real() { tested testname -p 1 -timeout 40m "./test/$1/..."; }

run() {
  local name=$1 start=$SECONDS
  say "suite $name ..."
  case $name in
    unit | bench) "suite_$name" ;;
    *) suite_real "$name" ;;
  esac || failed+=("$name")
  echo "$name $((SECONDS - start))" >>"$work/times"
  say "suite $name: $((SECONDS - start)) s"
}

# What the suites need is fetched and built first, with progress; tests then find it in the cache. What
# can't be had here is said by the tests that skip.
prepare() {
  local start=$SECONDS
  say "fetching and building what the tests run against, into $HOMING_CACHE"
  hack/envoy/envoy.sh >/dev/null
  hack/vllm/setup.sh >/dev/null || [ $? = 3 ]
  hack/clients/setup.sh >/dev/null || [ $? = 3 ]
  hack/tools/sim/build.sh >/dev/null
  [ ! -x hack/cluster/ensure.sh ] || hack/cluster/ensure.sh all >/dev/null
  echo "prepare $((SECONDS - start))" >>"$work/times"
}

suites=("$@")
if [ $# = 0 ]; then
  suites=(unit bench)
  for dir in test/*/; do
    [ -z "$(find "$dir" -name '*_test.go' -print -quit)" ] || suites+=("$(basename "$dir")")
  done
  prepare
fi
for name in "${suites[@]}"; do
  run "$name"
done

echo
awk '{ printf "%-12s %5d s\n", $1, $2; sum += $2 } END { printf "%-12s %5d s\n", "together", sum }' "$work/times"
[ ${#failed[@]} = 0 ] || echo "failed suites: ${failed[*]}"
touch "$work/counts"
awk '{ total += $1; failed += $2 + $4; skipped += $3 } END { printf "%d passed, %d failed, %d skipped\n", total - failed - skipped, failed, skipped }' "$work/counts"
[ ${#failed[@]} = 0 ]
