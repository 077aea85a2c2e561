#!/bin/sh
# Installs a wheel into a fresh environment and uses it (try_installed.py, beside this file). The last line printed says
# what it ran with. Runs inside root file systems too, which have this folder, the wheel and the bundle alone.
#   scripts/try_wheel.sh PYTHON WHEEL BUNDLE
set -eu
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$1" -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet "$(realpath "$2")[cpu]"
cd "$work" # where no source tree is found
"$work/venv/bin/python" "$here/try_installed.py" "$(cd "$OLDPWD" && realpath "$3")"
