# SPDX-License-Identifier: Apache-2.0
"""How far a measurement is: a bar under its lines on a terminal, a counted line elsewhere.

The bar is tqdm's: of this Python, or of the built environment, since the tool itself runs on the standard
library alone. Where neither has it, a terminal gets the counted lines too.
"""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType, TracebackType
from typing import Any, TextIO

from sglang_fork import env


def library() -> ModuleType | None:
    """tqdm, or None where it is not installed."""
    where = [str(p) for name in env.PROFILES for p in env.venv_dir(name).glob("lib/python3*/site-packages")]
    before = list(sys.path)
    try:
        sys.path.extend(where)
        return importlib.import_module("tqdm")
    except ImportError:
        return None
    finally:
        sys.path[:] = before


class Progress:
    """Counts ``total`` parts, each called ``part``. What is said meanwhile goes through ``say``, so that no
    line runs into the bar."""

    def __init__(self, total: int, part: str, out: TextIO | None = None) -> None:
        self._total, self._part = total, part
        self._out = out or sys.stdout
        self._done, self._began = 0, time.monotonic()
        self._tqdm = library() if self._out.isatty() else None
        self._bar: Any = None

    def __enter__(self) -> Progress:
        if self._tqdm is not None:
            self._bar = self._tqdm.tqdm(
                total=self._total, desc=self._part, file=self._out, dynamic_ncols=True, leave=False
            )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.close()

    def say(self, line: str) -> None:
        """Print one line, above the bar."""
        with self.aside():
            print(line, file=self._out, flush=True)

    @contextmanager
    def aside(self) -> Iterator[None]:
        """The terminal is the body's: the bar is away meanwhile."""
        if self._bar is None:
            yield
            return
        self._bar.clear()
        try:
            yield
        finally:
            self._bar.refresh()

    def advance(self) -> None:
        """One more part is done."""
        self.reach(self._done + 1)

    def reach(self, done: int) -> None:
        """``done`` parts are over; parts that failed count."""
        if (more := done - self._done) <= 0:
            return
        self._done = done
        if self._bar is not None:
            self._bar.update(more)
            return
        took = time.monotonic() - self._began
        print(f"{self._part} {done} of {self._total} after {took:.0f} s", file=self._out, flush=True)
