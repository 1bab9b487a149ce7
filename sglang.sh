#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Front door: finds a Python 3.11 or 3.12 and hands over to python/sglang_fork.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

# Prints where the Python lies, to which a shim only leads; fails for other versions.
usable() {
  "$1" -c "import sys; sys.version_info[:2] in ((3, 11), (3, 12)) or sys.exit(1); print(sys.${2:-executable})" 2>/dev/null
}

find_python() {
  local candidate
  if [ -n "${SGLANG_PYTHON:-}" ]; then
    usable "$SGLANG_PYTHON" && return
    echo "sglang.sh: SGLANG_PYTHON is $SGLANG_PYTHON, which is not a Python 3.11 or 3.12 that runs" >&2
    exit 2
  fi
  # What is built goes on with the Python that its environment was made of.
  for candidate in "${SGLANG_FORK_HOME:-$root/.sglang}"/venv-*/bin/python; do
    usable "$candidate" _base_executable && return
  done
  for candidate in python3.12 python3.11 python3; do
    usable "$candidate" && return
  done
  echo "sglang.sh: needs Python 3.11 or 3.12; install one, or name it in SGLANG_PYTHON" >&2
  exit 2
}

python=$(find_python)
# Byte code is kept, whatever the caller's shell says: without it every process of a server compiles 7000 files anew.
PYTHONDONTWRITEBYTECODE="" PYTHONPATH="$root/python" exec "$python" -P -m sglang_fork "$@"
