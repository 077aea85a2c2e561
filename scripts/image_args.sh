#!/usr/bin/env bash
# Prints the arguments of `docker build` that label an image with the version, which stands in src/attenuator/__init__.py,
# and the commit that it is built from: docker build $(scripts/image_args.sh) -t attenuator .
set -euo pipefail
cd "$(dirname "$0")/.."
version=$(sed -nE 's/^__version__ = "([^"]+)"$/\1/p' src/attenuator/__init__.py)
[ -n "$version" ] || { echo "image_args: src/attenuator/__init__.py has no __version__" >&2; exit 1; }
if revision=$(git rev-parse HEAD 2>/dev/null); then
  [ -z "$(git status --porcelain)" ] || revision=$revision-dirty
else
  revision=unknown
fi
echo "--build-arg VERSION=$version --build-arg REVISION=$revision"
