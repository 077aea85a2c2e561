#!/usr/bin/env bash
# Builds the image of the Dockerfile where no Docker engine runs, starts its server as the image says (not as root) and
# classifies. The GPU image must first refuse to start, since no GPU is passed in, and then serves on the CPU. Needs
# root and Debian's buildah and debootstrap; the base image is made by debootstrap from the machine's own package archive
# and has the machine's apt settings, so keep it here. pip's settings (mirrors, certificates) are lent to the build only.
# Everything lies in a scratch folder, removed at the end: 4 GB for the CPU, 20 GB for the GPU.
# Usage: .ci/container.sh [cpu|gpu [SCRATCH_FOLDER]]
set -euo pipefail
cd "$(dirname "$0")/.."
say() { echo "container: $*" >&2; }
[ "$(id -u)" = 0 ] || { say "must run as root: the build mounts folders"; exit 1; }
for tool in buildah debootstrap pgrep python3; do
  command -v "$tool" >/dev/null || { say "$tool is missing: apt-get install buildah debootstrap procps python3"; exit 1; }
done
device=${1:-cpu}
case $device in cpu | gpu) ;; *) say "'$device' is unknown, must be cpu or gpu"; exit 1 ;; esac
[ $# -lt 2 ] || mkdir -p "$2"
work=$(mktemp -d "${2:-${TMPDIR:-/tmp}}/attenuator-container.XXXXXX")
server=
# The process itself, below those that buildah puts around it: buildah does not pass signals on.
innermost() { local child; if child=$(pgrep -P "$1" | head -n 1) && [ -n "$child" ]; then innermost "$child"; else echo "$1"; fi; }
finish() {
  if [ -n "$server" ] && kill -0 "$server" 2>/dev/null; then kill "$(innermost "$server")" && wait "$server" || true; fi
  awk -v work="$work/" 'index($2, work) == 1 { print $2 }' /proc/mounts | tac | xargs -r umount
  rm -rf --one-file-system "$work"
}
trap finish EXIT
export BUILDAH_ISOLATION=chroot TMPDIR="$work"
storage=(--root "$work/storage" --runroot "$work/run" --storage-driver vfs)
buildah() { command buildah "${storage[@]}" "$@"; }

# The machine's own suite and archive: first of the apt sources, in either form.
. /etc/os-release
archive=$(cat /etc/apt/sources.list /etc/apt/sources.list.d/*.list /etc/apt/sources.list.d/*.sources 2>/dev/null |
  grep -v '^[[:space:]]*#' | grep -oE "[a-z+]+://[^][:space:]]+/$ID/?([[:space:]]|\$)" | head -n 1 | tr -d '[:space:]' || true)
[ -n "$archive" ] || { say "no archive of $ID in the apt sources"; exit 1; }
say "base image: $ID $VERSION_CODENAME"
debootstrap --variant=minbase "$VERSION_CODENAME" "$work/base" "$archive" >"$work/debootstrap.log" ||
  { tail -n 20 "$work/debootstrap.log" >&2; exit 1; }
# How this machine fetches packages: proxies, and clocks of snapshot archives.
apt-config dump --no-empty Acquire >"$work/base/etc/apt/apt.conf.d/00machine"
rm -rf "$work"/base/var/cache/apt/archives/*.deb "$work"/base/var/lib/apt/lists/*
tar -C "$work/base" -c . | gzip -1 >"$work/base.tar.gz"
rm -rf --one-file-system "$work/base"
base=$(buildah from scratch)
buildah add --quiet "$base" "$work/base.tar.gz" / >/dev/null
buildah commit --quiet --rm "$base" localhost/base >/dev/null
rm "$work/base.tar.gz"

# pip's settings as one file; what they point to on this machine is mounted where they say.
mkdir "$work/pip"
mapfile -t mounts < <(python3 .ci/pip_settings.py "$work/pip" /mnt/pip)
say "building for $device"
buildah build --quiet --format docker --network host --build-arg BASE=localhost/base --build-arg DEVICE="$device" \
  --secret "id=pip,src=$work/pip/pip.conf" "${mounts[@]}" --tag localhost/attenuator . >"$work/build.log" 2>&1 ||
  { tail -n 40 "$work/build.log" >&2; exit 1; }

container=$(buildah from localhost/attenuator)
run=(run --network host)
inside() { buildah "${run[@]}" "$container" -- "$@"; }
port=$(python3 -c 'import socket; s = socket.create_server(("127.0.0.1", 0)); print(s.getsockname()[1])')
run+=(--env "ATTENUATOR_PORT=$port")
inside sh -c '
  for tool in c++ g++ gcc nvcc cmake pip; do
    if command -v "$tool" >/dev/null; then echo "container: the image holds $tool" >&2; exit 1; fi
  done
  test "$(id -u)" != 0 || { echo "container: the image runs as root" >&2; exit 1; }
  python -c "import importlib.util as u; assert not u.find_spec(\"torch\")"'
mapfile -d '' -t command < <(buildah inspect --type image localhost/attenuator | python3 -c '
import json, sys
print(*json.load(sys.stdin)["Docker"]["config"]["Cmd"], sep="\0", end="\0")')
mapfile -d '' -t health < <(buildah inspect --type image localhost/attenuator | python3 -c '
import json, sys
print(*json.load(sys.stdin)["Docker"]["config"]["Healthcheck"]["Test"][1:], sep="\0", end="\0")')
if [ "$device" = gpu ]; then
  if inside "${command[@]}" 2>"$work/server.log"; then say "the server started without a GPU"; exit 1; fi
  grep "CUDA device 0 cannot be used" "$work/server.log" || { cat "$work/server.log" >&2; exit 1; }
  run+=(--env ATTENUATOR_DEVICE=auto)
fi
say "starting: ${command[*]}"
command buildah "${storage[@]}" "${run[@]}" "$container" -- "${command[@]}" 2>"$work/server.log" &
server=$!
until inside "${health[@]}" 2>/dev/null; do
  kill -0 "$server" 2>/dev/null || { cat "$work/server.log" >&2; exit 1; }
  sleep 1
done
python3 - "$port" <<'PY'
import json, sys, urllib.request

body = {"model": "reviews", "inputs": "A warm, funny and deeply moving film.", "num_hashes": 64}
request = urllib.request.Request(
    f"http://127.0.0.1:{sys.argv[1]}/v1/classify", json.dumps(body).encode(), {"Content-Type": "application/json"}
)
answer = json.load(urllib.request.urlopen(request, timeout=60))
print(json.dumps(answer))
assert answer["predictions"][0]["label"] == "positive" and answer["device"] == "cpu"
PY
kill "$(innermost "$server")"
wait "$server" || { say "the server did not end well:"; cat "$work/server.log" >&2; exit 1; }
server=
say "$device image built, server ready as a user of its own, text classified, server drained and ended"
