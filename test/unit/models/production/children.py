# SPDX-License-Identifier: Apache-2.0
"""Child processes that inherit what this process has imported; nothing of one reaches the next.

The parent must not have run torch operators in parallel: a fork after that hangs.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any


def in_child(function: Callable[..., dict[str, Any]], *arguments: Any) -> dict[str, Any]:
    """What ``function`` returns, in a child; ``{"error": ...}`` where the child answers nothing."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            with os.fdopen(write, "w") as out:
                json.dump(function(*arguments), out)
            status = 0
        finally:
            os._exit(status)
    os.close(write)
    with os.fdopen(read) as answer:
        text = answer.read()
    _, status = os.waitpid(child, 0)
    return json.loads(text) if status == 0 and text else {"error": f"the child ended with status {status}"}
