#!/usr/bin/env bash
# Compiles the operators for CPU and CUDA into build/cuda, where nothing is installed from, with at most one job a core,
# and checks the machine code without a GPU: the table is printed and kept as build/cuda/report.json.
# What launches ask for is seen on the test device (build/cuda_on_host).
# Usage: scripts/cuda_build.sh           both
#        scripts/cuda_build.sh on-host   the test device alone
# PYTHON and CMAKE name other programs than those of .venv.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-$PWD/.venv/bin/python}
cmake=${CMAKE:-$PWD/.venv/bin/cmake}
PATH=$PWD/.venv/bin:$PATH # ninja

build() { # FOLDER OPTIONS...
  local folder=$1 && shift
  mkdir -p "$folder"
  "$cmake" -S . -B "$folder" -G Ninja -DCMAKE_BUILD_TYPE=Release -DPython_EXECUTABLE="$python" "$@" >"$folder/configure.log" 2>&1 ||
    { cat "$folder/configure.log" >&2; exit 1; }
  "$cmake" --build "$folder" --parallel "$(nproc)" -- --quiet
}

build build/cuda_on_host -DATTENUATOR_CUDA_ON_HOST=ON
[ "${1:-}" != on-host ] || exit 0

root=$(PYTHON=$python scripts/cuda_toolkit.sh)
tools=$(PYTHON=$python CUDA_HOME=$root scripts/cuda_toolkit.sh inspect)
echo "cuda: compiling with $root/bin/nvcc on $(nproc) cores"
start=$SECONDS
build build/cuda -DATTENUATOR_CUDA=ON -DCMAKE_CUDA_COMPILER="$root/bin/nvcc"
echo "cuda: compiled in $((SECONDS - start)) s"
library=build/cuda/ops/libattenuator_ops.so
ATTENUATOR_OPS_LIBRARY=$library PYTHONPATH=src "$python" -m pytest -q -p no:cacheprovider tests/ops/test_cuda_library.py
PYTHONPATH=src "$python" scripts/cuda_launches.py --library build/cuda_on_host/ops/libattenuator_ops.so --output build/cuda/launches.json
"$python" scripts/cuda_check.py --library "$library" --objects build/cuda --tools "$tools" \
  --launches build/cuda/launches.json --report build/cuda/report.json
