# SPDX-License-Identifier: Apache-2.0
"""``./sglang.sh`` as the HTTP tests call it: in the cpu profile."""

from __future__ import annotations

import os
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
