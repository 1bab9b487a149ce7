#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Front door: finds a Python 3.11 or 3.12 and hands over to python/sglang_fork.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

usable() {
  "$1" -c 'import sys; sys.exit(sys.version_info[:2] not in ((3, 11), (3, 12)))' 2>/dev/null
}

find_python() {
  local candidate
  if [ -n "${SGLANG_PYTHON:-}" ]; then
    usable "$SGLANG_PYTHON" && echo "$SGLANG_PYTHON" && return
    echo "sglang.sh: SGLANG_PYTHON is $SGLANG_PYTHON, which is not a Python 3.11 or 3.12 that runs" >&2
    exit 2
  fi
  for candidate in python3.12 python3.11 python3; do
    usable "$candidate" && echo "$candidate" && return
  done
  echo "sglang.sh: needs Python 3.11 or 3.12; install one, or name it in SGLANG_PYTHON" >&2
  exit 2
}

python=$(find_python)
PYTHONPATH="$root/python" exec "$python" -P -m sglang_fork "$@"
