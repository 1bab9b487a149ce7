# SPDX-License-Identifier: Apache-2.0
"""Progress of a build: numbered plain lines, each with what it took; they read the same in a log file."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

HEARTBEAT_S = 15.0


class Progress:
    """Counts steps and prints them. ``total`` is the number of steps announced."""

    def __init__(self, total: int, out: TextIO | None = None, heartbeat_s: float = HEARTBEAT_S) -> None:
        self._total = total
        self._out = out or sys.stdout
        self._heartbeat_s = heartbeat_s
        self._number = 0
        self._started = time.monotonic()

    @contextmanager
    def step(self, title: str) -> Iterator[None]:
        """Announce a step, print a line every ``heartbeat_s`` seconds while it runs, and its time."""
        self._number += 1
        self.say(f"[{self._number}/{self._total}] {title}")
        begin = time.monotonic()
        done = threading.Event()
        watch = threading.Thread(target=self._beat, args=(title, begin, done), daemon=True)
        watch.start()
        try:
            yield
        finally:
            done.set()
            watch.join()
        took = time.monotonic() - begin
        if took >= 0.5:
            self.say(f"      {took:.1f} s")

    def say(self, line: str) -> None:
        """Print one line at once."""
        print(line, file=self._out, flush=True)

    def elapsed_s(self) -> float:
        """Seconds since the first step could begin."""
        return time.monotonic() - self._started

    def _beat(self, title: str, begin: float, done: threading.Event) -> None:
        while not done.wait(self._heartbeat_s):
            self.say(f"      ... {title}: {time.monotonic() - begin:.0f} s")
