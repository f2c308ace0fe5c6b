#!/usr/bin/env bash
# Download wheels for a CUDA machine (x86-64) without a network, about 13 MB, at the versions of constraints.txt. The image of
# that machine must have torch, transformers, accelerate, peft, pandas, pyarrow, matplotlib, nvidia-ml-py and rich.
# Usage: scripts/offline_wheels.sh DIR [PYTHON_VERSION]      the version of Python on that machine [3.12]
# Then, on that machine: CAMPAIGN_WHEELS=DIR scripts/campaign.sh A
set -euo pipefail
cd "$(dirname "$0")/.."
out=${1:?usage: scripts/offline_wheels.sh DIR [PYTHON_VERSION]}
version=${2:-3.12}
packages=(trl hydra-core omegaconf datasets dill multiprocess xxhash pydantic pydantic_core annotated-types
    typing-inspection)

mkdir -p "$out"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --upgrade pip wheel setuptools

pinned() { grep -i "^$1==" constraints.txt; }

get() {
    local platforms=()
    for glibc in 2_28 2_27 2_24 2_17; do platforms+=(--platform "manylinux_${glibc}_x86_64"); done
    "$work/venv/bin/pip" download --quiet --no-deps --only-binary=:all: --python-version "$version" --implementation cp \
        "${platforms[@]}" --platform manylinux2014_x86_64 --platform manylinux1_x86_64 --dest "$1" "$2"
}

for package in "${packages[@]}"; do get "$out" "$(pinned "$package")"; done
# Published as source only.
"$work/venv/bin/pip" wheel --quiet --no-deps --wheel-dir "$out" "$(pinned antlr4-python3-runtime)"
# Keep only bitsandbytes' libraries for CUDA 13 and the CPU: the others have 60 MB.
get "$work" "$(pinned bitsandbytes)"
cd "$work"
venv/bin/python -m wheel unpack bitsandbytes-*.whl > /dev/null
find bitsandbytes-*/ -name 'libbitsandbytes_*.so' ! -name '*cuda13*' ! -name '*_cpu.so' -delete
mkdir packed
venv/bin/python -m wheel pack --dest-dir packed bitsandbytes-*/ > /dev/null
cd - > /dev/null
mv "$work"/packed/*.whl "$out"/
ls -sh "$out"
