#!/usr/bin/env bash
# What needs a GPU: tests, benchmarks, compute-sanitizer. Makes its own environment, .venv-cuda, since ONNX Runtime for
# CPU and for CUDA are one package and cannot share one; compiles the operators as `make cuda` does; runs them.
# Usage: scripts/cuda_host.sh test|bench|sanitize [arguments of pytest or of the benchmark]
set -euo pipefail
cd "$(dirname "$0")/.."
action=${1:-}
case $action in test | bench | sanitize) shift ;; *) echo "usage: $0 test|bench|sanitize" >&2; exit 2 ;; esac
base=${PYTHON:-python3}

gpus=$("$base" - 2>&1 <<'PY'
import ctypes, sys
count = ctypes.c_int()
try:
    driver = ctypes.CDLL("libcuda.so.1")
except OSError as error:
    sys.exit(f"no NVIDIA driver is here ({error})")
if code := driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)):
    sys.exit(f"the NVIDIA driver answers with error {code}")
print(count.value)
PY
) || { echo "make $action-cuda needs an NVIDIA GPU: $gpus" >&2; exit 1; }
[ "$gpus" -gt 0 ] || { echo "make $action-cuda needs an NVIDIA GPU: the driver knows none" >&2; exit 1; }

venv=.venv-cuda
if [ ! -e $venv/.setup ] || [ pyproject.toml -nt $venv/.setup ]; then
  [ -x $venv/bin/python ] || "$base" -m venv $venv
  $venv/bin/python -m pip install --quiet --upgrade pip -r scripts/build_tools.txt
  # The operators that this builds are the CPU's; those of build/cuda are used.
  $venv/bin/python -m pip install --quiet --no-build-isolation -C build-dir=build/cuda_venv -e '.[gpu,bench,deploy,test,train]'
  touch $venv/.setup
fi
python=$PWD/$venv/bin/python
export PATH=$PWD/$venv/bin:$PATH
PYTHON=$python CMAKE=$PWD/$venv/bin/cmake scripts/cuda_build.sh
export ATTENUATOR_OPS_LIBRARY=$PWD/build/cuda/ops/libattenuator_ops.so
export ATTENUATOR_TEST_CUDA=1 # a GPU that does not work is a failure, not a skipped test

case $action in
  test) "$python" -m pytest -m cuda "$@" ;;
  bench) "$python" -m benchmarks.run_all --device cuda "$@" ;;
  sanitize)
    sanitizer=$(PYTHON=$python scripts/cuda_toolkit.sh sanitizer)/compute-sanitizer
    export PYTORCH_NO_CUDA_MEMORY_CACHING=1 # every tensor is an allocation of its own, so that a read beyond it is seen
    for tool in memcheck racecheck initcheck; do
      echo "sanitize-cuda: $tool"
      "$sanitizer" --tool $tool --error-exitcode 99 --target-processes application-only --kernel-name regex=attenuator \
        "$python" -m pytest -q -p no:cacheprovider -m cuda -k torch --timeout 3600 \
        tests/ops/test_fuzz_cuda.py tests/ops/test_yoso_tables_cuda.py "$@"
    done
    ;;
esac
