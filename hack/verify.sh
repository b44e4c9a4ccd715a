#!/bin/bash
# verify.sh: fails, and shows the difference, where the checkout is not as its own tools would leave it.
. "$(dirname "$0")/lib.sh"
cd "$ROOT"

status=0
fail() { say "verify: $*"; status=1; }

say "verify: generated files"
generated=(api config/crd charts/homing/crds pkg/standalone/schema pkg/peer/peerpb)
before=$(mktemp -d)
trap 'rm -rf "$before"' EXIT
tar -cf - "${generated[@]}" | tar -xf - -C "$before"
make --no-print-directory -s generate
for dir in "${generated[@]}"; do
  diff -ru "$before/$dir" "$dir" || fail "$dir/ was not generated from its sources; it is now"
done

say "verify: go.mod and go.sum"
for module in . hack/tools hack/tools/proto hack/tools/sim test/clients/sagemaker; do
  go mod tidy -C "$module" -diff || fail "$module/go.mod is not tidy"
done

say "verify: formatting"
unformatted=$(git ls-files '*.go' | xargs gofmt -l)
[ -z "$unformatted" ] || fail "not gofmt'd: $unformatted"
for script in $(git ls-files '*.sh'); do
  bash -n "$script" || fail "$script does not parse"
done
exit $status
