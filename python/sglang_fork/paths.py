# SPDX-License-Identifier: Apache-2.0
"""Where things lie: the checkout and its state folder.

``ROOT`` is the checkout (the folder of sglang.sh). ``state_dir()`` is ``ROOT/.sglang`` unless
``SGLANG_FORK_HOME`` names another folder; everything that the tool makes lies under it and may be deleted
at any time.
"""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def state_dir() -> Path:
    """The state folder, not created here."""
    home = os.environ.get("SGLANG_FORK_HOME")
    return Path(home).expanduser().resolve() if home else ROOT / ".sglang"
