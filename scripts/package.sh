#!/usr/bin/env bash
# Proves the packaging: sdist, a wheel built from that sdist, installed into an environment of its own without the
# source tree, where the operators load and the command answers.
set -euo pipefail
cd "$(dirname "$0")/.."
python=$PWD/.venv/bin/python
bundle=$PWD/examples/bundles/sentiment
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT

"$python" -m pip install --quiet build
"$python" -m build --no-isolation --sdist --outdir "$work/dist" . >"$work/sdist.log" || { cat "$work/sdist.log"; exit 1; }
"$python" -m pip wheel --quiet --no-build-isolation --no-deps --wheel-dir "$work/dist" "$work"/dist/attenuator-*.tar.gz
"$python" -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet "$(echo "$work"/dist/attenuator-*.whl)[cpu]"
cd "$work"
"$work/venv/bin/python" -c '
import sys
import attenuator.ops
print("operators:", attenuator.ops.library_path().name)
import attenuator.serve.app
from attenuator.serve.page import INDEX, read_assets
assets = read_assets()
assert {INDEX, "main.js", "style.css", "examples/contract.json"} <= assets.keys(), "the wheel has the playground"
assert "torch" not in sys.modules
'
"$work/venv/bin/attenuator" classify --bundle "$bundle" "A warm, funny and deeply moving film."
echo "package: sdist, wheel and installation work"
cd - >/dev/null
scripts/npm_package.sh "$work/dist"
