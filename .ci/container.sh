#!/usr/bin/env bash
# Builds the image of the Dockerfile where no Docker engine runs, looks at its size, labels and bill of materials, and
# starts its server as the image says, with as few rights as `docker run --read-only --tmpfs /var/tmp --cap-drop ALL
# --security-opt no-new-privileges` gives it; waits for its health check, classifies and stops it. The GPU image must
# first refuse to start, since no GPU is passed in, and then serves on the CPU. Needs root and Debian's buildah and
# debootstrap; the base image is made by debootstrap from the machine's own package archive and has the machine's apt
# settings, so keep it here. pip's settings (mirrors, certificates) are lent to the build only.
# Everything lies in a scratch folder, removed at the end: 4 GB for the CPU, 20 GB for the GPU.
# Usage: .ci/container.sh [cpu|gpu [SCRATCH_FOLDER]]; with CUDA_ARCHITECTURES=90-real the GPU image is built for these alone;
set -euo pipefail
limit_mb=450 # of the CPU image
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
# The server itself, below unshare, which does not pass signals on.
innermost() { local child; if child=$(pgrep -P "$1" | head -n 1) && [ -n "$child" ]; then innermost "$child"; else echo "$1"; fi; }
finish() {
  if [ -n "$server" ] && kill -0 "$server" 2>/dev/null; then kill "$(innermost "$server")" && wait "$server" || true; fi
  awk -v work="$work/" 'index($2, work) == 1 { print $2 }' /proc/mounts | tac | xargs -r umount
  rm -rf --one-file-system "$work"
}
trap finish EXIT
export BUILDAH_ISOLATION=chroot TMPDIR="$work"
# Layers are shared where the kernel mounts one over the other; else each step copies all that lies below it.
mkdir -p "$work"/overlay/{lower,upper,work,merged}
if mount -t overlay -o "lowerdir=$work/overlay/lower,upperdir=$work/overlay/upper,workdir=$work/overlay/work" \
  overlay "$work/overlay/merged" 2>/dev/null; then
  umount "$work/overlay/merged"
  driver=overlay
else
  driver=vfs
fi
storage=(--root "$work/storage" --runroot "$work/run" --storage-driver "$driver")
buildah() { command buildah "${storage[@]}" "$@"; }

# The machine's own suite and archive: first of the apt sources, in either form.
. /etc/os-release
archive=$(cat /etc/apt/sources.list /etc/apt/sources.list.d/*.list /etc/apt/sources.list.d/*.sources 2>/dev/null |
  grep -v '^[[:space:]]*#' | grep -oE "[a-z+]+://[^][:space:]]+/$ID/?([[:space:]]|\$)" | head -n 1 | tr -d '[:space:]' || true)
[ -n "$archive" ] || { say "no archive of $ID in the apt sources"; exit 1; }
say "base image: $ID $VERSION_CODENAME"
# As in Docker's own Debian images: dpkg does not wait for the disk after each file, which a build has no use for.
mkdir -p "$work/base/etc/dpkg/dpkg.cfg.d"
echo force-unsafe-io >"$work/base/etc/dpkg/dpkg.cfg.d/docker-apt-speedup"
debootstrap --variant=minbase "$VERSION_CODENAME" "$work/base" "$archive" >"$work/debootstrap.log" ||
  { tail -n 20 "$work/debootstrap.log" >&2; exit 1; }
# How this machine fetches packages: proxies, and clocks of snapshot archives.
apt-config dump --no-empty Acquire >"$work/base/etc/apt/apt.conf.d/00machine"
rm -rf "$work"/base/var/cache/apt/* "$work"/base/var/lib/apt/lists/*
tar -C "$work/base" -c . | gzip -1 >"$work/base.tar.gz"
rm -rf --one-file-system "$work/base"
base=$(buildah from scratch)
buildah add --quiet "$base" "$work/base.tar.gz" / >/dev/null
buildah commit --quiet --rm "$base" localhost/base >/dev/null
rm "$work/base.tar.gz"

# pip's settings as one file; what they point to on this machine is mounted where they say.
mkdir "$work/pip"
mapfile -t mounts < <(python3 .ci/pip_settings.py "$work/pip" /mnt/pip)
read -r -a labelling < <(scripts/image_args.sh)
say "building for $device"
buildah build --quiet --format docker --network host --build-arg BASE=localhost/base --build-arg DEVICE="$device" \
  --build-arg CUDA_ARCHITECTURES="${CUDA_ARCHITECTURES:-}" "${labelling[@]}" --secret "id=pip,src=$work/pip/pip.conf" \
  "${mounts[@]}" --tag localhost/attenuator . >"$work/build.log" 2>&1 ||
  { tail -n 40 "$work/build.log" >&2; exit 1; }

container=$(buildah from localhost/attenuator)
root=$(buildah mount "$container")
megabytes() { echo $(($(du -sbx "$1" | cut -f 1) / 1000000)); }
size=$(megabytes "$root")
packages=$(megabytes "$root/opt/attenuator") models=$(megabytes "$root/bundles")
say "size: $size MB; of it Python packages $packages, models $models"
if [ "$device" = gpu ]; then
  find "$root" -xdev -type f -size +20M -printf '%s %P\n' | sort -rn | awk '{ printf "container: %5.0f MB %s\n", $1 / 1e6, $2 }' >&2
elif [ "$size" -ge "$limit_mb" ]; then
  say "the image is too large: it must be under $limit_mb MB"
  exit 1
fi
# A list or an object of the image's settings, entry by entry, each ended by a null character.
setting() {
  buildah inspect --type image localhost/attenuator | python3 -c '
import json, sys
value = json.load(sys.stdin)["Docker"]["config"]
for name in sys.argv[1].split("."):
    value = value[name]
entries = value if isinstance(value, list) else [f"{name}={text}" for name, text in value.items()]
print(*entries, sep="\0", end="\0")' "$1"
}
mapfile -d '' -t labels < <(setting Labels)
printf 'container: label %s\n' "${labels[@]}" >&2
for argument in "${labelling[@]:1:1}" "${labelling[@]:3:1}"; do
  printf '%s\n' "${labels[@]}" | grep -qixF "org.opencontainers.image.$argument" || { say "no label with $argument"; exit 1; }
done
python3 - "$root/usr/share/attenuator/sbom.cdx.json" <<'PY'
import collections, json, sys

kinds = collections.Counter(
    one["purl"].partition("/")[0] if "purl" in one else one["type"] for one in json.load(open(sys.argv[1]))["components"]
)
print("container: bill of materials:", dict(kinds), file=sys.stderr)
assert kinds["pkg:pypi"] > 20 and kinds["pkg:deb"] > 50 and kinds["machine-learning-model"] > 0
PY

port=$(python3 -c 'import socket; s = socket.create_server(("127.0.0.1", 0)); print(s.getsockname()[1])')
mapfile -d '' -t environment < <(setting Env)
environment+=("ATTENUATOR_PORT=$port")
# Runs a command in the image: a root file system that cannot be written but for /var/tmp, in memory; the image's user,
# no capability and no way to gain one; process 1 of its own.
inside() {
  unshare --mount --pid --fork --kill-child=SIGKILL sh -ec '
    root=$1; shift
    mount --bind "$root" "$root" && mount -o remount,bind,ro,nodev,nosuid "$root"
    mount -t proc proc "$root/proc"
    mount --rbind /dev "$root/dev"
    mount -t tmpfs -o size=256m,mode=1777,noexec,nosuid,nodev tmpfs "$root/var/tmp"
    mount -t tmpfs -o size=64m,mode=1777,noexec,nosuid,nodev tmpfs "$root/dev/shm"
    exec chroot "$root" setpriv --reuid 10001 --regid 10001 --clear-groups --bounding-set -all --inh-caps -all --no-new-privs -- "$@"
  ' sh "$root" env -i "${environment[@]}" "$@"
}
[ "$(buildah inspect --type image --format '{{.Docker.Config.User}}' localhost/attenuator)" = 10001:10001 ] || { say "another user"; exit 1; }
inside sh -c '
  fail() { echo "container: $1" >&2; exit 1; }
  for tool in c++ g++ gcc nvcc cmake pip; do
    if command -v "$tool" >/dev/null; then fail "the image holds $tool"; fi
  done
  test "$(id -u)" = 10001 || fail "the image runs as user $(id -u)"
  grep -q "^CapEff:.0000000000000000$" /proc/self/status && grep -q "^CapBnd:.0000000000000000$" /proc/self/status || fail "it has capabilities"
  grep -q "^NoNewPrivs:.1$" /proc/self/status || fail "it may gain rights"
  for place in / /tmp /bundles /opt/attenuator /home; do
    if touch "$place/x" 2>/dev/null; then fail "$place can be written"; fi
  done
  touch /var/tmp/x
  python -c "import importlib.util as u; assert not u.find_spec(\"torch\")"'
mapfile -d '' -t command < <(setting Cmd)
mapfile -d '' -t health < <(setting Healthcheck.Test)
health=("${health[@]:1}")
if [ "$device" = gpu ]; then
  if inside "${command[@]}" 2>"$work/server.log"; then say "the server started without a GPU"; exit 1; fi
  grep "CUDA device 0 cannot be used" "$work/server.log" || { cat "$work/server.log" >&2; exit 1; }
  environment+=(ATTENUATOR_DEVICE=auto)
fi
say "starting: ${command[*]}"
inside "${command[@]}" 2>"$work/server.log" &
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
say "$device image built, server ready without rights on a root file system that cannot be written, text classified, server drained and ended"
