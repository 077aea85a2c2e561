#!/usr/bin/env bash
# Prints the root of a CUDA toolkit, a folder with bin/nvcc: $CUDA_HOME, the one of the nvcc on PATH, or else pip's
# wheels, which are put into build/cuda_toolkit: no root is needed and nothing is installed elsewhere.
# An nvcc older than 12.9 does not know every architecture that is compiled for and is passed over.
# Usage: cuda_toolkit.sh               the root of a toolkit
#        cuda_toolkit.sh inspect       a folder with cuobjdump and nvdisasm
#        cuda_toolkit.sh sanitizer     a folder with compute-sanitizer, which no wheel brings whole
# CUDA_TOOLKIT_DIR is another folder for the wheels, PYTHON another Python with pip. OFFLINE=1 fetches nothing.
set -euo pipefail
here=$(cd "$(dirname "$0")/.." && pwd)
cache=${CUDA_TOOLKIT_DIR:-$here/build/cuda_toolkit}
what=${1:-nvcc}
say() { echo "cuda_toolkit: $*" >&2; }

case $what in
  nvcc) tools="nvcc" wheels=("cuda-toolkit[nvcc,cudart,cccl,crt,nvvm]==13.0.*") ;;
  inspect) tools="cuobjdump nvdisasm" wheels=("nvidia-cuda-cuobjdump==13.*" "nvidia-cuda-nvdisasm==13.*") ;;
  sanitizer) tools="compute-sanitizer" wheels=() ;; # its wheels, to 13.3, lack TreeLauncherSubreaper, which it starts
  *) say "'$what' is unknown, must be nvcc, inspect or sanitizer"; exit 1 ;;
esac

new_enough() {
  local version
  version=$("$1" --version 2>/dev/null | sed -n 's/.*release \([0-9]*\.[0-9]*\).*/\1/p')
  [ -n "$version" ] && [ "$(printf '12.9\n%s\n' "$version" | sort -V | head -n 1)" = 12.9 ]
}

# Where a compiler's own folders are: what is on PATH may be a wrapper or a link.
root_of() { "$1" --dryrun -x cu /dev/null 2>&1 | sed -n 's/^#\$ TOP=//p' | head -n 1; }

holds_tools() { local tool; for tool in $tools; do [ -x "$1/$tool" ] || return 1; done; }

answer() { if [ "$what" = nvcc ]; then (cd "$1/.." && pwd); else (cd "$1" && pwd); fi; exit 0; }

if [ "$what" = nvcc ]; then
  for compiler in ${CUDA_HOME:+"$CUDA_HOME/bin/nvcc"} "$(command -v nvcc || true)"; do
    [ -x "$compiler" ] || continue
    if ! new_enough "$compiler"; then say "$compiler is older than 12.9"; continue; fi
    root=$(root_of "$compiler")
    if [ -n "$root" ] && holds_tools "$root/bin"; then answer "$root/bin"; fi
  done
else
  first=${tools%% *}
  for folder in ${CUDA_HOME:+"$CUDA_HOME/bin"} "$(dirname "$(command -v "$first" || echo /nowhere/x)")"; do
    if holds_tools "$folder"; then answer "$folder"; fi
  done
fi

wheel_root() { find "$cache/$what/nvidia" -maxdepth 1 -name 'cu1?' -print -quit 2>/dev/null || true; }
tool_folder() {
  local root
  root=$(wheel_root)
  [ -n "$root" ] && find "$root" -name "${tools%% *}" -type f -perm -u+x -printf '%h\n' -quit
}

folder=$(tool_folder || true)
if [ -z "$folder" ]; then
  [ ${#wheels[@]} -gt 0 ] || { say "no $tools is here: install the CUDA toolkit and set CUDA_HOME"; exit 1; }
  pip=
  for python in ${PYTHON:+"$PYTHON"} "$here/.venv/bin/python" python3; do
    if [ "${OFFLINE:-}" != 1 ] && "$python" -m pip --version >/dev/null 2>&1; then pip=$python; break; fi
  done
  [ -n "$pip" ] || { say "no ${tools%% *} is here, of CUDA 12.9 or newer, and no Python with pip and a network to fetch it"; exit 1; }
  say "${tools%% *} is not installed here: fetching ${wheels[*]}"
  rm -rf "${cache:?}/$what"
  "$pip" -m pip install --quiet --disable-pip-version-check --no-warn-script-location --target "$cache/$what" "${wheels[@]}" >&2 ||
    { rm -rf "${cache:?}/$what"; say "the wheels cannot be had; install the CUDA toolkit and set CUDA_HOME"; exit 1; }
  # The wheels have lib/, compiler and linker look into lib64/.
  root=$(wheel_root)
  [ -e "$root/lib64" ] || ln -s lib "$root/lib64"
  # CMake knows a toolkit by libcudart.so, which the wheels have under its full name only; the static one is linked.
  for file in "$root"/lib/libcudart.so.*; do [ ! -e "$file" ] || ln -sf "${file##*/}" "$root/lib/libcudart.so"; done
  folder=$(tool_folder)
fi
answer "$folder"
