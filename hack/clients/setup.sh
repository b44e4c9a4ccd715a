#!/bin/bash
# setup.sh: makes a venv with the Python clients that the data-plane tests drive, and prints its python.
# Where there is no Python for it, it says so and exits with status 3.
. "$(dirname "$0")/../lib.sh"

here=$ROOT/hack/clients
py=$(python 3.11) || { echo "the Python clients need Python 3.11 (on PATH, or as PYTHON)" >&2; exit 3; }

make_clients() {
  rm -rf "$1"
  "$py" -m venv "$1"
  timed "clients: installing the openai, anthropic and langchain-openai packages" "$1/bin/pip" install --quiet \
    --disable-pip-version-check --no-deps --only-binary :all: -r "$here/requirements.txt"
  touch "$1/complete"
}

dir=$HOMING_CACHE/clients-$(cksum <"$here/requirements.txt" | cut -d' ' -f1)
once "$dir/complete" clients make_clients "$dir"
echo "$dir/bin/python"
