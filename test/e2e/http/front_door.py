# SPDX-License-Identifier: Apache-2.0
"""``./sglang.sh`` as the HTTP tests call it: the cpu profile, and a port that is free."""

from __future__ import annotations

import os
import socket
import subprocess

from sglang_fork.paths import ROOT


def sglang(*words: str, **shell: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(ROOT / "sglang.sh"), *words],
        env={**os.environ, "SGLANG_FORK_PROFILE": "cpu", **shell},
        capture_output=True,
        text=True,
        check=False,
        timeout=580,
    )


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
