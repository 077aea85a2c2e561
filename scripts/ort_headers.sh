#!/usr/bin/env bash
# Prints a folder that holds onnxruntime_cxx_api.h, fetching the headers if the machine has none.
# No wheel ships them. Order: $ATTENUATOR_ORT_INCLUDE, the system's, the project's release archive (checked by
# SHA-256), and last, for machines that reach only Debian's packages, Debian trixie's libonnxruntime-dev, taken
# through a private apt configuration derived from the machine's own: nothing is installed, no root is needed.
# Usage: ort_headers.sh CACHE_DIR
set -euo pipefail
cache=${1:?usage: ort_headers.sh CACHE_DIR}
version=1.23.2
header=onnxruntime_cxx_api.h
say() { echo "ort_headers: $*" >&2; }

found() { find "$1" -name "$header" -printf '%h\n' -quit 2>/dev/null || true; }

if [ -n "${ATTENUATOR_ORT_INCLUDE:-}" ]; then
  dir=$(found "$ATTENUATOR_ORT_INCLUDE")
  [ -n "$dir" ] || { say "ATTENUATOR_ORT_INCLUDE=$ATTENUATOR_ORT_INCLUDE holds no $header"; exit 1; }
  echo "$dir"; exit 0
fi
for root in "$cache" /usr/include/onnxruntime /usr/local/include/onnxruntime; do
  dir=$(found "$root")
  if [ -n "$dir" ]; then echo "$dir"; exit 0; fi
done

mkdir -p "$cache"
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT

from_release() {
  case "$(uname -m)" in
    x86_64) arch=x64 sha=1fa4dcaef22f6f7d5cd81b28c2800414350c10116f5fdd46a2160082551c5f9b ;;
    aarch64) arch=aarch64 sha=7c63c73560ed76b1fac6cff8204ffe34fe180e70d6582b5332ec094810241e5c ;;
    *) say "no release archive for $(uname -m)"; return 1 ;;
  esac
  url="https://github.com/microsoft/onnxruntime/releases/download/v$version/onnxruntime-linux-$arch-$version.tgz"
  say "fetching $url"
  python3 - "$url" "$work/ort.tgz" <<'PY' || return 1
import sys, urllib.request
try:
    with urllib.request.urlopen(sys.argv[1], timeout=30) as reply, open(sys.argv[2], "wb") as out:
        while block := reply.read(1 << 20):
            out.write(block)
except OSError as error:
    sys.exit(f"ort_headers: not reachable: {error}")
PY
  echo "$sha  $work/ort.tgz" | sha256sum --check --quiet || { say "checksum mismatch"; return 1; }
  tar -xzf "$work/ort.tgz" -C "$cache" --strip-components=1 --wildcards '*/include/*' '*/LICENSE'
}

# One Debian archive address out of the machine's own apt sources (deb822 or one-line), printed without trailing slash.
debian_archive() {
  cat /etc/apt/sources.list /etc/apt/sources.list.d/*.list /etc/apt/sources.list.d/*.sources 2>/dev/null |
    grep -v '^[[:space:]]*#' | grep -oE '[a-z+]+://[^][:space:]]+/debian/?([[:space:]]|$)' | head -n 1 | tr -d '[:space:]' | sed 's:/*$::'
}

from_debian() {
  command -v apt-get >/dev/null && command -v dpkg >/dev/null || { say "no apt-get here"; return 1; }
  archive=$(debian_archive)
  [ -n "$archive" ] || { say "no Debian archive in the apt sources"; return 1; }
  say "fetching libonnxruntime-dev of Debian trixie through the machine's own Debian archive"
  mkdir -p "$work/lists/partial" "$work/cache/archives/partial" "$work/etc/preferences.d" "$work/state"
  echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $archive trixie main" >"$work/etc/sources.list"
  options=(-o Dir::Etc::SourceList="$work/etc/sources.list" -o Dir::Etc::SourceParts=/dev/null
    -o Dir::Etc::PreferencesParts="$work/etc/preferences.d" -o Dir::State::Lists="$work/lists" -o Dir::Cache="$work/cache"
    -o APT::Sandbox::User=root -o Debug::NoLocking=1 -o Acquire::Languages=none -qq)
  apt-get "${options[@]}" update >&2 || return 1
  (cd "$work" && apt-get "${options[@]}" download libonnxruntime-dev >&2) || return 1
  dpkg -x "$work"/libonnxruntime-dev_*.deb "$work/root"
  mkdir -p "$cache/include"
  cp -r "$work/root/usr/include/." "$cache/include/"
}

from_release || from_debian || {
  say "no ONNX Runtime headers: install libonnxruntime-dev, or set ATTENUATOR_ORT_INCLUDE to a folder with $header"
  exit 1
}
dir=$(found "$cache")
[ -n "$dir" ] || { say "the fetched package holds no $header"; exit 1; }
echo "$dir"
