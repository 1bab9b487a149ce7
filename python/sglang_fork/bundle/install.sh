#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs a bundle on a machine without network:  bash install.sh TARGET_FOLDER
# Needs Python of the bundle's version (named in SGLANG_PYTHON, or found on PATH) and room for the payload twice.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
target=${1:?usage: install.sh TARGET_FOLDER}

die() {
  echo "install.sh: $1" >&2
  exit "${2:-2}"
}

[ ! -e "$target/.sglang" ] || die "$target/.sglang exists: name another folder, or remove it"
(cd "$here" && sha256sum --quiet --check SHA256SUMS) || die "a file is missing or damaged: copy it again" 1

made=""
[ -e "$target" ] || made=$target
mkdir -p "$target"
payload=$(mktemp -d "$target/.payload-XXXXXX")
trap 'rm -rf "$payload"; [ -z "$made" ] || rmdir --ignore-fail-on-non-empty "$made"' EXIT
cat "$here"/payload.tar* | tar xf - -C "$payload" || die "the payload cannot be unpacked (no disk space?)" 1

version=$(sed -n 's/.*"python": "cp3\([0-9]*\)".*/3.\1/p' "$payload/manifest.json")
serves() {
  [ "$("$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)" = "$version" ]
}

python=""
if [ -n "${SGLANG_PYTHON:-}" ]; then
  serves "$SGLANG_PYTHON" || die "SGLANG_PYTHON is $SGLANG_PYTHON, which is not a Python $version that runs"
  python=$SGLANG_PYTHON
else
  for candidate in "python$version" python3; do
    if serves "$candidate"; then
      python=$candidate
      break
    fi
  done
  [ -n "$python" ] || die "needs Python $version; install it, or name it in SGLANG_PYTHON"
fi

cp -R "$payload/checkout/." "$target/"
PYTHONPATH="$target/python" "$python" -P -m sglang_fork.bundle.install "$payload" "$target"
