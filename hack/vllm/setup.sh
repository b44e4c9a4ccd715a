#!/bin/bash
# setup.sh: makes what real vLLM engines on the CPU need, and prints the folder with it: venv/ and model/
# (a tiny Llama: config and tokenizer; its weights are random, made at start). 860 MB are fetched, 2.4 GB
# kept. Where these engines can't run it prints the reason to stderr and exits with status 3.
. "$(dirname "$0")/../lib.sh"

here=$ROOT/hack/vllm
unsupported() { echo "real vLLM engines need $*" >&2; exit 3; }

[ "$(uname -sm)" = "Linux x86_64" ] || unsupported "Linux x86-64 (this is $(uname -sm))"
py=$(python 3.11) || unsupported "Python 3.11 (on PATH, or as PYTHON)"
for tool in gcc readelf nm; do
  command -v $tool >/dev/null || unsupported "$tool (gcc and binutils)"
done
glibc=$(getconf GNU_LIBC_VERSION 2>/dev/null | sed 's/.* //')
[ "$(printf '2.28\n%s\n' "${glibc:-0}" | sort -V | head -1)" = 2.28 ] || unsupported "glibc 2.28 or later (this is ${glibc:-another libc})"

make_engines() {
  rm -rf "$1"
  "$py" -m venv "$1/venv"
  timed "vllm: installing 150 packages (860 MB)" "$1/venv/bin/pip" install --quiet --disable-pip-version-check \
    --no-deps --only-binary :all: -r "$here/requirements.txt"
  timed "vllm: stand-ins for CUDA libraries" "$here/mkstubs.sh" "$1/venv"
  timed "vllm: config and tokenizer" "$1/venv/bin/python" "$here/mkmodel.py" "$1/model" 6 512 8 4 1536 32768
  touch "$1/complete"
}

dir=$HOMING_CACHE/vllm-$(cat "$here/requirements.txt" "$here/mkstubs.sh" "$here/mkmodel.py" | sha256sum | cut -c1-12)
once "$dir/complete" vllm make_engines "$dir"
echo "$dir"
