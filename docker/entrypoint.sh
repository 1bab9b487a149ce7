#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs sglang.sh in a container. A started server goes on in the background, so this stays in front of it: its log
# is the container's, and a stop of the container drains it.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1

follow=""
drain() {
  ./sglang.sh stop --all
  [ -z "$follow" ] || kill "$follow" 2>/dev/null
  exit 143
}
trap drain TERM INT

./sglang.sh "$@" &
wait $! || exit
[ -n "$(./sglang.sh status --json | tr -d '[:space:][]{}')" ] || exit 0
./sglang.sh logs --follow &
follow=$!
wait "$follow"
