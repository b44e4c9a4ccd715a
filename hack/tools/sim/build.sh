#!/bin/bash
# build.sh: builds the simulated model server and prints its path.
. "$(dirname "$0")/../../lib.sh"

here=$ROOT/hack/tools/sim

build() {
  timed "simulated model server: building (minutes, the first time)" go build -C "$here" -trimpath -ldflags "-s -w" -o "$1.new" .
  mv "$1.new" "$1"
}

binary=$HOMING_CACHE/bin/sim-$(cat "$here/go.mod" "$here/main.go" | cksum | cut -d' ' -f1)
once "$binary" sim build "$binary"
echo "$binary"
