#!/bin/bash
# tool.sh NAME [ARGUMENT...]: runs a tool that hack/tools/go.mod or hack/tools/proto/go.mod pins, built at its first use.
# Without arguments to the tool: "tool.sh --path NAME" prints where it is.
. "$(dirname "$0")/lib.sh"

print=
[ "${1:-}" = --path ] && { print=1; shift; }
name=${1:?the name of a tool}
shift
for module in "$ROOT/hack/tools" "$ROOT/hack/tools/proto"; do
  package=$(sed -n "s|^[[:space:]]*\([a-z].*/$name\)\$|\1|p" "$module/go.mod" | head -1)
  [ -z "$package" ] || break
done
[ -n "$package" ] || die "no go.mod of hack/tools has a tool $name"
# The module of a tool is the longest required path that its package begins with.
version=$(awk -v p="$package" '$2 ~ /^v/ && index(p "/", $1 "/") == 1 && length($1) > n { n = length($1); v = $2 } END { print v }' "$module/go.mod")

build() {
  timed "$name $version: building" go build -C "$module" -o "$1.new" "$package"
  mv "$1.new" "$1"
}

binary=$HOMING_CACHE/bin/$name-$version
once "$binary" "$name" build "$binary"
if [ -n "$print" ]; then echo "$binary"; else exec "$binary" "$@"; fi
