#!/usr/bin/env bash
# Makes the base image of all our images (Debian or Ubuntu as on this machine, a Java runtime,
# Python 3) without any image registry: mmdebstrap and the machine's own package sources.
# Prints the image's name. Does nothing when the image exists.
#
# SPARKONCE_BASE_IMAGE  use this image instead, e.g. python:3.11-slim-bookworm, from a registry
set -euo pipefail

if [ -n "${SPARKONCE_BASE_IMAGE:-}" ]; then
  echo "$SPARKONCE_BASE_IMAGE"
  exit
fi

fail() {
  printf 'error: %s\n  where:  %s\n  cause:  %s\n  option: %s\n' "$1" "$2" "$3" \
    "SPARKONCE_BASE_IMAGE=(not set): an image with Java 17 and Python 3.11 or newer" >&2
  exit 1
}

# Another recipe is another image: the number is this script's own checksum.
image=sparkonce/base:$(cksum <"$0" | cut -d ' ' -f 1)
packages=default-jre-headless,python3,python3-venv,procps,tini

if docker image inspect "$image" >/dev/null 2>&1; then
  echo "$image"
  exit
fi

[ "$(id -u)" = 0 ] || fail "the base image cannot be made" "user $(id -un)" "mmdebstrap needs root"
if ! command -v mmdebstrap >/dev/null; then
  command -v apt-get >/dev/null || fail "the base image cannot be made" "$(uname -s)" "no apt-get"
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends mmdebstrap \
    >/dev/null
fi

suite=$(. /etc/os-release && echo "$VERSION_CODENAME")
sources=
for file in /etc/apt/sources.list.d/debian.sources /etc/apt/sources.list.d/ubuntu.sources \
  /etc/apt/sources.list; do
  if [ -s "$file" ]; then
    sources=$file
    break
  fi
done
[ -n "$sources" ] || fail "the base image cannot be made" "/etc/apt" "no package source is there"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
printf 'base: making %s (%s, %s), about a minute\n' "$image" "$suite" "$packages" >&2
# Documentation and caches are two thirds of such a file system, and nobody reads them in a container.
if ! mmdebstrap --quiet --variant=minbase --include="$packages" \
  --aptopt='Apt::Install-Recommends "false"' \
  --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
  --customize-hook='rm -rf "$1"/var/lib/apt/lists/* "$1"/var/cache/apt/*' \
  --customize-hook='rm -rf "$1"/etc/apt/sources.list.d/* "$1"/etc/apt/apt.conf.d/99mmdebstrap' \
  "$suite" "$work/base.tar" "$sources" >"$work/log" 2>&1; then
  tail -n 20 "$work/log" >&2
  fail "the base image cannot be made" "mmdebstrap $suite" "the last lines above"
fi
docker import --change 'ENV LANG=C.UTF-8' --change 'CMD ["/bin/bash"]' "$work/base.tar" "$image" \
  >/dev/null
echo "$image"
