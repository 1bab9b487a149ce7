# SPDX-License-Identifier: Apache-2.0
"""Near matches for a mistyped word."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def near(word: str, known: Iterable[str]) -> str:
    """A hint naming the known words close to ``word``."""
    lowered = {k.lower(): k for k in known}
    hits = [lowered[h] for h in difflib.get_close_matches(word.lower(), lowered, n=3, cutoff=0.5)]
    return f"did you mean: {', '.join(hits)}?" if hits else "./sglang.sh help lists all"
