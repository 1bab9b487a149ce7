# SPDX-License-Identifier: Apache-2.0
"""The hash locks: exact versions and SHA-256 sums of everything that a build installs from the package index.

``runtime.txt`` is SGLang's own closure (without SGLang: the fork's wheel takes its place), resolved from
the base wheel's METADATA and ``runtime.in``; ``dev.txt`` is what the tests and linters add; ``uv.txt`` is
the installer itself. All are requirements files for CPython 3.11 and 3.12 on Linux x86-64 and aarch64,
without any index address.
"""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).resolve().parent
RUNTIME = "runtime.txt"
DEV = "dev.txt"
UV = "uv.txt"
