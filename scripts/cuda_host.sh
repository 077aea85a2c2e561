#!/usr/bin/env bash
# What needs a GPU: tests, benchmarks, compute-sanitizer. Makes its own environment, .venv-cuda, since ONNX Runtime for
# CPU and for CUDA are one package and cannot share one; compiles the operators as `make cuda` does; runs them.
# Usage: scripts/cuda_host.sh test|bench|sanitize [arguments of pytest or of the benchmark]
#        scripts/cuda_host.sh all [STEP...]
# `all` does the steps below in order of worth, each within its time limit. build/gpu_results/ (or $OUT) gets STEP.log
# while a step runs, and a line of summary.txt once it has ended; benchmarks write their rows there as they come.
# OFFLINE=1 installs nothing: $PYTHON is used as it is, and nvcc, ninja, $CMAKE and the headers in ATTENUATOR_ORT_INCLUDE
# compile. ATTENUATOR_OPS_LIBRARY names a library that is built already. What `make gpu-bundle` packs brings both, in
# build/cuda_packages and build/cuda.
set -euo pipefail
cd "$(dirname "$0")/.."
packages=$PWD/build/cuda_packages
declare -A limit_s=(
  [smoke]=120 [conformance]=480 [half]=300 [operators]=540 [models]=420 [memcheck]=300 [racecheck]=300 [initcheck]=300
)
order=(smoke conformance half operators models memcheck racecheck initcheck)
action=${1:-}
case " all test bench sanitize ${order[*]} " in
  *" ${action:-?} "*) shift ;;
  *) echo "usage: $0 test|bench|sanitize|all [STEP...]; steps: ${order[*]}" >&2; exit 2 ;;
esac
if [ "$action" = all ]; then
  [ $# -gt 0 ] || set -- "${order[@]}"
  for step in "$@"; do
    [ -n "${limit_s[$step]:-}" ] || { echo "$0 all: '$step' is no step, must be one of: ${order[*]}" >&2; exit 2; }
  done
fi
base=${PYTHON:-python3}

# A process of the tests takes at most 4 GiB of the GPU's memory.
gpus=$("$base" - 2>&1 <<'PY'
import ctypes, os, sys
count, device, size = ctypes.c_int(), ctypes.c_int(), ctypes.c_size_t()
try:
    driver = ctypes.CDLL("libcuda.so.1")
except OSError as error:
    sys.exit(f"no NVIDIA driver is here ({error})")
if code := driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)):
    sys.exit(f"the NVIDIA driver answers with error {code}")
if not count.value:
    sys.exit("the driver knows none")
if code := driver.cuDeviceGet(ctypes.byref(device), 0) or driver.cuDeviceTotalMem_v2(ctypes.byref(size), device):
    sys.exit(f"the NVIDIA driver answers with error {code}")
print(max(1, min(size.value >> 32, len(os.sched_getaffinity(0)), 12)))
PY
) || { echo "$0 $action needs an NVIDIA GPU: $gpus" >&2; exit 1; }
processes=${TEST_JOBS:-$gpus}

if [ -d "$packages" ]; then
  OFFLINE=1
  export PYTHONPATH=$packages:$PWD/src
  export ATTENUATOR_OPS_LIBRARY=${ATTENUATOR_OPS_LIBRARY:-$PWD/build/cuda/ops/libattenuator_ops.so}
fi
pytest=(-m pytest -p no:cacheprovider -m cuda)
export OFFLINE=${OFFLINE:-}
if [ "$OFFLINE" = 1 ]; then
  python=$(command -v "$base")
  pytest+=(-W ignore) # of whatever versions are here
  # ONNX Runtime links CUDA's libraries, which PyTorch brings as wheels.
  libraries=$("$python" -c 'import importlib.util as u, pathlib
for root in getattr(u.find_spec("nvidia"), "submodule_search_locations", None) or ():
    for each in sorted(pathlib.Path(root).glob("*/lib")): print(each, end=":")')
  export LD_LIBRARY_PATH=$libraries${LD_LIBRARY_PATH:-}
else
  venv=.venv-cuda
  if [ ! -e $venv/.setup ] || [ pyproject.toml -nt $venv/.setup ]; then
    [ -x $venv/bin/python ] || "$base" -m venv $venv
    $venv/bin/python -m pip install --quiet --upgrade pip -r scripts/build_tools.txt
    # The operators that this builds are the CPU's; those of build/cuda are used.
    $venv/bin/python -m pip install --quiet --no-build-isolation -C build-dir=build/cuda_venv -e '.[gpu,bench,test]'
    touch $venv/.setup
  fi
  python=$PWD/$venv/bin/python
  export PATH=$PWD/$venv/bin:$PATH CMAKE=$PWD/$venv/bin/cmake
fi
if [ -z "${ATTENUATOR_OPS_LIBRARY:-}" ]; then
  PYTHON=$python CMAKE=${CMAKE:-cmake} scripts/cuda_build.sh
  export ATTENUATOR_OPS_LIBRARY=$PWD/build/cuda/ops/libattenuator_ops.so
fi
export ATTENUATOR_TEST_CUDA=1 # a GPU that does not work is a failure, not a skipped test

sanitize() { # TOOL ARGUMENTS...
  local tool=$1 && shift
  local sanitizer
  sanitizer=$(PYTHON=$python scripts/cuda_toolkit.sh sanitizer)/compute-sanitizer
  # Every tensor is an allocation of its own, so that a read beyond it is seen.
  PYTORCH_NO_CUDA_MEMORY_CACHING=1 "$sanitizer" --tool "$tool" --error-exitcode 99 --target-processes application-only \
    --kernel-name regex=attenuator "$python" "${pytest[@]}" -q -k torch --timeout 3600 \
    tests/ops/test_fuzz_cuda.py tests/ops/test_yoso_tables_cuda.py "$@"
}

in_parallel() { exec "$python" "${pytest[@]}" -n "$processes" --dist worksteal "$@"; }

all() {
  local out=${OUT:-build/gpu_results} failed=0 step status begun result signal
  mkdir -p "$out"
  for step in "$@"; do
    begun=$SECONDS status=0
    # Interrupted alone, pytest still tells of failures, and benchmarks keep their rows. A sanitizer has a child.
    [[ $step == *check ]] && signal=(--signal TERM) || signal=(--foreground --signal INT)
    OUT=$out PYTHON=$python OFFLINE=1 timeout "${signal[@]}" --kill-after 20 "${limit_s[$step]}" scripts/cuda_host.sh "$step" \
      >"$out/$step.log" 2>&1 || status=$?
    case $status in 0) result=passed ;; 124 | 137) result="stopped at its limit" ;; *) result="failed with $status" ;; esac
    [ $status = 0 ] || failed=1
    echo "$step: $result after $((SECONDS - begun)) s: $(grep . "$out/$step.log" | tail -n 1)" | tee -a "$out/summary.txt"
  done
  return $failed
}

case $action in
  all) all "$@" ;;
  # Only files with such tests: the others need more packages.
  test) mapfile -t files < <(grep -rl --include='test_*.py' 'mark\.cuda' tests | sort); in_parallel "${files[@]}" "$@" ;;
  bench) "$python" -m benchmarks.run_all --device cuda "$@" ;;
  sanitize) for tool in memcheck racecheck initcheck; do echo "sanitize-cuda: $tool"; sanitize $tool "$@"; done ;;
  # PyTorch's way, which needs no CUDA in ONNX Runtime.
  smoke) in_parallel tests/ops/test_device.py tests/ops/test_yoso_tables_cuda.py tests/ops/test_fuzz_cuda.py "$@" ;;
  conformance) in_parallel --maxfail 40 tests/ops/test_operator_cuda.py "$@" ;;
  half) in_parallel tests/e2e/test_cuda_half.py tests/e2e/test_cuda.py "$@" ;;
  operators | models) exec "$python" -m "benchmarks.cuda.$action" --seconds 0.5 --output "${OUT:-build/gpu_results}/cuda_$action.json" "$@" ;;
  *) sanitize "$action" -k "torch and (any_shape or sums)" "$@" ;;
esac
