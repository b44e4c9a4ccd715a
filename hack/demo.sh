#!/bin/bash
# demo.sh [FLAG...]: builds the demo, with progress, and runs it.
. "$(dirname "$0")/lib.sh"
cd "$ROOT"

timed "demo: building" go build -o "$HOMING_CACHE/bin/demo" ./hack/demo
exec "$HOMING_CACHE/bin/demo" "$@"
