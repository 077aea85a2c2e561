#!/usr/bin/env bash
# Builds the operators with AddressSanitizer and UndefinedBehaviorSanitizer into build/sanitize and runs the conformance
# and fuzz tests, and each operator's own, on every instruction set this machine has.
# Usage: scripts/sanitize.sh [pytest arguments]; PYTHON and CMAKE name other programs than those of .venv.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-$PWD/.venv/bin/python}
cmake=${CMAKE:-$PWD/.venv/bin/cmake}
build=build/sanitize

"$cmake" -S . -B "$build" -DCMAKE_BUILD_TYPE=Release -DATTENUATOR_SANITIZE=ON -DPython_EXECUTABLE="$python"
"$cmake" --build "$build" --parallel "$(nproc)"

export ATTENUATOR_OPS_LIBRARY=$PWD/$build/ops/libattenuator_ops.so
export PYTHONPATH=src
# Python is not instrumented, so the runtimes must come first; it never frees everything, hence no leak check.
export ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1 UBSAN_OPTIONS=print_stacktrace=1
runtimes="$(g++ -print-file-name=libasan.so) $(g++ -print-file-name=libubsan.so)"
for isa in avx2 avx512 avx512_vnni; do
  export ATTENUATOR_ISA=$isa
  active=$(LD_PRELOAD=$runtimes "$python" -c '
import ctypes, os
isa = ctypes.CDLL(os.environ["ATTENUATOR_OPS_LIBRARY"]).attenuator_isa
isa.restype = ctypes.c_char_p
print(isa(b"YosoAttention").decode())')
  if [ "$active" != "$isa" ]; then
    echo "sanitize: this machine has no $isa, its best is $active"
    break
  fi
  echo "sanitize: $isa"
  LD_PRELOAD=$runtimes "$python" -m pytest -q -p no:cacheprovider --capture=sys tests/ops/test_fuzz.py tests/ops/test_operator.py tests/ops/test_pool.py tests/ops/test_softmax.py tests/ops/test_yoso.py tests/ops/test_yoso_importance.py tests/ops/test_yoso_gradient.py tests/ops/test_yoso_rounded.py tests/ops/test_mca.py tests/ops/test_mca_plan.py tests/ops/test_linear.py \
    -k "not saves_work and not memory and not on_cuda" "$@"  # time and memory are not the operators' own here
done
unset ATTENUATOR_ISA
if [[ $active == avx512_vnni || $active == avx512_amx ]]; then
  echo "sanitize: avx512_amx, emulated where this machine has none"
  export ATTENUATOR_AMX_LIBRARY=$PWD/$build/ops/libattenuator_ops_amx.so
  LD_PRELOAD=$runtimes "$python" -m pytest -q -p no:cacheprovider --capture=sys tests/ops/test_amx.py \
    -k "any_shape or for_every_length or not_finite" "$@"  # what reaches memory by tiles; emulated products are slow here
fi
