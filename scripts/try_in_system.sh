#!/usr/bin/env bash
# Tries a wheel in the root file system of a Debian or Ubuntu release, made by debootstrap: with that system's Python and
# glibc, on this machine's kernel. Needs root, debootstrap, and an archive of that system among this machine's apt
# sources: where one is missing the release cannot be tried, which ends with status 3 and the reason.
#   scripts/try_in_system.sh SYSTEM/RELEASE WHEEL BUNDLE ROOT_FILE_SYSTEM      (debian/trixie, ubuntu/noble)
# ROOT_FILE_SYSTEM is made if it is not there. pip's settings (mirrors, certificates) are lent while it runs.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
system=${1%/*} release=${1#*/} wheel=$(realpath "$2") bundle=$(realpath "$3") root=$(realpath -m "$4")
cannot() { echo "$*" >&2; exit 3; }
[ "$(id -u)" = 0 ] || cannot "root is needed"
command -v debootstrap >/dev/null || cannot "debootstrap is not installed"

if [ ! -e "$root/etc/os-release" ]; then
  # The first of the apt sources, in either form.
  archive=$(cat /etc/apt/sources.list /etc/apt/sources.list.d/*.list /etc/apt/sources.list.d/*.sources 2>/dev/null |
    grep -v '^[[:space:]]*#' | grep -oE "[a-z+]+://[^][:space:]]+/$system/?([[:space:]]|\$)" | head -n 1 | tr -d '[:space:]' || true)
  [ -n "$archive" ] || cannot "no archive of $system is among the apt sources"
  # A release that is newer than debootstrap is made as the ones before it.
  declare -A as=([debian]=sid [ubuntu]=gutsy)
  mkdir -p "$(dirname "$root")"
  rm -rf --one-file-system "$root.part"
  debootstrap --variant=minbase --include=python3,python3-venv,ca-certificates \
    "$release" "$root.part" "$archive" "${as[$system]}" >"$root.log" 2>&1 ||
    { tail -n 5 "$root.log" >&2; cannot "debootstrap could not make $system/$release"; }
  mv "$root.part" "$root"
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/pip"
python3 "$here/../.ci/pip_settings.py" "$work/pip" /mnt/pip >"$work/mounts"
rm -rf "$root/try"
mkdir -p "$root/try"
cp "$here"/try_wheel.sh "$here"/try_installed.py "$wheel" "$root/try"
cp -r "$bundle" "$root/try/bundle"
# Mounts of a namespace of their own: they are gone when it is.
export root work wheel
unshare --mount bash -euo pipefail -c '
  while IFS=: read -r source target _; do
    mkdir -p "$root$target"
    mount --bind "${source#--volume=}" "$root$target"
  done <"$work/mounts"
  mount -t proc proc "$root/proc"
  mount --rbind /dev "$root/dev"
  cp /etc/resolv.conf "$root/etc/resolv.conf"
  chroot "$root" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 \
    PIP_CONFIG_FILE=/mnt/pip/pip.conf PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore \
    /try/try_wheel.sh python3 "/try/$(basename "$wheel")" /try/bundle'
. "$root/etc/os-release"
echo "$PRETTY_NAME"
