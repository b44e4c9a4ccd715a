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

# The environment and the model are made apart, so that another model costs no new environment. A venv
# knows its own path, so it is made in its place.
make_venv() {
  rm -rf "$1"
  "$py" -m venv "$1"
  timed "vllm: installing 150 packages (860 MB)" "$1/bin/pip" install --quiet --disable-pip-version-check \
    --no-deps --only-binary :all: -r "$here/requirements.txt"
  timed "vllm: stand-ins for CUDA libraries" "$here/mkstubs.sh" "$1"
  touch "$1/complete"
}

make_model() {
  timed "vllm: config and tokenizer" "$venv/bin/python" "$here/mkmodel.py" "$1" 6 512 8 4 1536 32768
  touch "$1/complete"
}

# link DIR: both under one name.
link() {
  mkdir -p "$1"
  ln -sfn "$venv" "$1/venv"
  ln -sfn "$model" "$1/model"
  touch "$1/complete"
}

sum() { cat "$@" | cksum | cut -d' ' -f1; }
venv=$HOMING_CACHE/vllm-venv-$(sum "$here/requirements.txt" "$here/mkstubs.sh")
model=$HOMING_CACHE/vllm-model-$(sum "$here/mkmodel.py")
dir=$HOMING_CACHE/vllm-$(basename "$venv" | sed 's/.*-//')-$(basename "$model" | sed 's/.*-//')
once "$venv/complete" vllm make_venv "$venv"
once "$model/complete" vllm make_model "$model"
once "$dir/complete" vllm link "$dir"
echo "$dir"
