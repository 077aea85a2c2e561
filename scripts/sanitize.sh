#!/usr/bin/env bash
# Builds the operators with AddressSanitizer and UndefinedBehaviorSanitizer into build/sanitize and runs the conformance
# and fuzz tests, and each operator's own: all of them on the best instruction set of this machine, on the ones below what
# runs other machine code there.
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

# A process that a sanitizer ends is a failed test; its report stands in this output.
tests() { LD_PRELOAD=$runtimes "$python" -m pytest -q -p no:cacheprovider --capture=sys -n "$(nproc)" --dist worksteal "$@"; }

# Tests named as an operator's folder are its own. Those on other devices, over thousands of seeds, in processes of their
# own and of PyTorch are not for here.
files=(tests/ops/test_fuzz.py tests/ops/test_operator.py)
for folder in $("$python" -c 'from attenuator.ops import FOLDERS; print(*FOLDERS)'); do
  for file in tests/ops/test_"$folder".py tests/ops/test_"$folder"_*.py; do
    case $file in *_cuda.py | *_statistics.py | *_machine.py | *_eager.py) ;; *) [ ! -e "$file" ] || files+=("$file") ;; esac
  done
done

best=$(LD_PRELOAD=$runtimes "$python" -c '
import ctypes, os
isa = ctypes.CDLL(os.environ["ATTENUATOR_OPS_LIBRARY"]).attenuator_isa
isa.restype = ctypes.c_char_p
print(isa(b"SoftmaxAttention").decode())')
lower=
for isa in avx512_vnni avx512 avx2; do
  [ -n "$lower" ] || [ "$isa" = "$best" ] || continue
  chosen=$("$python" tests/support/instruction_sets.py ${lower:+$isa})
  echo "sanitize: $isa, $chosen"
  ATTENUATOR_ISA=$isa tests "${files[@]}" -k "$chosen" "$@"
  lower=yes
  export FUZZ_SEEDS=1 # as in tests/ops/test_isa.py
done
if [ "$best" = avx512_vnni ]; then
  echo "sanitize: avx512_amx, emulated where this machine has none"
  export ATTENUATOR_AMX_LIBRARY=$PWD/$build/ops/libattenuator_ops_amx.so
  # What reaches memory by tiles.
  tests tests/ops/test_amx.py tests/ops/test_softmax_amx.py -k "any_shape or for_every_length or not_finite or maxima" "$@"
fi
