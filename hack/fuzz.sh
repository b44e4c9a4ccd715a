#!/bin/bash
# fuzz.sh TIME: runs each fuzz target for that long, one after another.
. "$(dirname "$0")/lib.sh"
cd "$ROOT"

targets=$(grep -rno --include='*_test.go' '^func Fuzz[A-Za-z0-9_]*' pkg | sed -E 's|^(.*)/[^/]*:[0-9]+:func (.*)|\1 \2|')
[ -n "$targets" ] || die "no fuzz targets"
while read -r dir target; do
  say "$dir $target for $1 ..."
  go test -run - -fuzz "^$target\$" -fuzztime "$1" "./$dir"
done <<<"$targets"
