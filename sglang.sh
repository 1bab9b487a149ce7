#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Front door: finds a Python 3.11 or 3.12 and hands over to python/sglang_fork.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

find_python() {
  local candidate
  for candidate in "${SGLANG_PYTHON:-}" python3.12 python3.11 python3; do
    [ -n "$candidate" ] || continue
    if "$candidate" -c 'import sys; sys.exit(sys.version_info[:2] not in ((3, 11), (3, 12)))' 2>/dev/null; then
      echo "$candidate"
      return
    fi
  done
  echo "sglang.sh: needs Python 3.11 or 3.12; install one, or name it in SGLANG_PYTHON" >&2
  exit 2
}

python=$(find_python)
PYTHONPATH="$root/python" exec "$python" -P -m sglang_fork "$@"
