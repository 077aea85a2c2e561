#!/usr/bin/env bash
# Packs the JavaScript client into a folder, checks what is in it, and installs it where a program of Node's uses it.
#   scripts/npm_package.sh FOLDER
set -euo pipefail
cd "$(dirname "$0")/.."
folder=$(mkdir -p "$1" && cd "$1" && pwd)
command -v npm >/dev/null || { echo "package: the JavaScript client is not packed: apt-get install npm" >&2; exit 0; }
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT

mkdir "$work/package" "$work/program"
cp $(git ls-files clients/js) LICENSE "$work/package" # npm packs no licence from another folder
file=$(cd "$work/package" && npm pack --silent --pack-destination "$folder")
contents=$(tar -tzf "$folder/$file" | sed 's:^package/::' | LC_ALL=C sort | xargs)
expected="LICENSE README.md api.d.ts attenuator.d.ts attenuator.js package.json"
[ "$contents" = "$expected" ] || { echo "package: $file holds $contents, must hold $expected" >&2; exit 1; }
cd "$work/program"
npm install --silent --offline --no-audit --no-fund "$folder/$file"
node --input-type=module -e '
import { AttenuatorError, Client } from "attenuator-client";
const error = await new Client("http://127.0.0.1:1").classify("a").catch((one) => one);
if (!(error instanceof AttenuatorError && error.code === "service_unreachable")) throw error;
'
echo "package: $file holds what it must and is installed by npm"
