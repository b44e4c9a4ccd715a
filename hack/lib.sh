# Shared by the scripts in hack/: source it. Results go to stdout, progress to stderr.
# Everything fetched or built is kept in $HOMING_CACHE, by default .cache/ of the checkout.

set -euo pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
HOMING_CACHE=${HOMING_CACHE:-$ROOT/.cache}
mkdir -p "$HOMING_CACHE"

say() { printf '%s %s\n' "$(date +%H:%M:%S)" "$*" >&2; }
die() { printf '%s: %s\n' "$(basename "$0")" "$*" >&2; exit 1; }

# lock [-n]: takes the lock on file descriptor 9, at once or not at all with -n. macOS has Perl, but no flock.
lock() {
  if command -v flock >/dev/null; then
    flock "$@" 9
  else
    perl -MFcntl=:flock -e 'open(my $f, "+<&=9") or die; exit !flock($f, LOCK_EX | (@ARGV ? LOCK_NB : 0))' -- "$@"
  fi
}

# once FILE NAME COMMAND...: runs the command unless FILE is there, in one process at a time. The command
# makes FILE as its last step, whole. Other processes wait, and say for what.
once() {
  local file=$1 name=$2
  shift 2
  [ -e "$file" ] && return
  mkdir -p "$(dirname "$file")"
  exec 9>"$HOMING_CACHE/$name.lock"
  lock -n || { say "$name: another process is at it; waiting"; lock; }
  [ -e "$file" ] || "$@"
  exec 9>&-
  [ -e "$file" ] || die "$name: $file was not made"
}

# timed NAME COMMAND...: runs a command, its output to stderr, with a line before it, one each 15 s, and
# one after it. Not for functions: errexit is off inside.
timed() {
  local name=$1 start=$SECONDS status=0 ticker
  shift
  say "$name ..."
  { while sleep 15 >/dev/null 2>&1; do say "$name: $((SECONDS - start)) s so far"; done; } 9>&- &
  ticker=$!
  "$@" 9>&- >&2 || status=$?
  kill "$ticker" 2>/dev/null && wait "$ticker" 2>/dev/null || true
  [ "$status" = 0 ] || die "$name: failed after $((SECONDS - start)) s"
  say "$name: done in $((SECONDS - start)) s"
}

# python VERSION: the path of a Python of that version ("3" for any 3.9 or later), from $PYTHON or PATH.
python() {
  local p
  for p in ${PYTHON:-} "python$1" python3; do
    command -v "$p" >/dev/null || continue
    "$p" -c 'import sys; v = sys.argv[1]; sys.exit(not (sys.version_info >= (3, 9) if v == "3" else sys.version.startswith(v + ".")))' "$1" &&
      { command -v "$p"; return; }
  done
  return 1
}
