#!/usr/bin/env bash
# Proves the packaging: sdist, a wheel built from that sdist, installed into an environment of its own without the
# source tree, where the operators load, the command answers and the service serves; and the JavaScript client.
#   scripts/package.sh [FOLDER]
# FOLDER keeps what was built; without it all is removed at the end.
set -euo pipefail
cd "$(dirname "$0")/.."
python=$PWD/.venv/bin/python
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
folder=$(realpath -m "${1:-$work/dist}")

"$python" -m pip install --quiet build
"$python" -m build --no-isolation --sdist --outdir "$folder" . >"$work/sdist.log" || { cat "$work/sdist.log"; exit 1; }
"$python" -m pip wheel --quiet --no-build-isolation --no-deps --wheel-dir "$folder" "$folder"/attenuator-*.tar.gz
scripts/try_wheel.sh "$python" "$folder"/attenuator-*.whl examples/bundles/reviews
echo "package: sdist, wheel and installation work"
scripts/npm_package.sh "$folder"
