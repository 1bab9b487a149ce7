# SPDX-License-Identifier: Apache-2.0
"""Waiting for a server: its stage, its last log line, and the answers that prove that it serves."""

from __future__ import annotations

import json
import re
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from sglang_fork.errors import ForkError

# A line of SGLang's log, and the stage that it starts.
STAGES = (
    (re.compile(r"server_args="), "arguments resolved"),
    (re.compile(r"Init torch distributed begin"), "joining the ranks"),
    (re.compile(r"Load weight begin"), "loading weights"),
    (re.compile(r"Load weight end"), "weights loaded"),
    (re.compile(r"NVIDIA megakernel: active"), "megakernel built"),
    (re.compile(r"Memory pool end|KV Cache is allocated"), "caches allocated"),
    (re.compile(r"Running FlashInfer autotune"), "tuning kernels"),
    (re.compile(r"[Cc]apture .*graph.* begin"), "capturing CUDA graphs"),
    (re.compile(r"max_total_num_tokens="), "scheduler up"),
    (re.compile(r"Uvicorn running|Application startup complete"), "warming up"),
    (re.compile(r"fired up and ready to roll"), "ready"),
)
QUIET_S = 30.0


@dataclass
class LogTail:
    """Follows a growing log: the stage that it has reached and its last line."""

    path: Path
    stage: str = "starting"
    last: str = ""
    _offset: int = 0
    _partial: bytes = b""

    def advance(self) -> None:
        """Read what was appended since the last call."""
        try:
            with self.path.open("rb") as file:
                file.seek(self._offset)
                data = file.read()
        except FileNotFoundError:
            return
        self._offset += len(data)
        lines = (self._partial + data).split(b"\n")
        self._partial = lines.pop()
        for raw in lines:
            line = raw.decode(errors="replace").rstrip()
            if line:
                self.last = line
                self.stage = next((stage for mark, stage in STAGES if mark.search(line)), self.stage)

    def tail(self, lines: int) -> str:
        """The last lines of the log."""
        try:
            text = self.path.read_bytes()[-200_000:].decode(errors="replace")
        except FileNotFoundError:
            return "(no log)"
        return "\n".join(text.splitlines()[-lines:]) or "(the log is empty)"


@dataclass
class Progress:
    """One line rewritten in place on a terminal; elsewhere a line a stage, and one when long quiet."""

    out: TextIO
    columns: int = 110
    _shown: str = ""
    _shown_at: float = -QUIET_S

    def show(self, stage: str, elapsed: float, last: str) -> None:
        text = f"[{elapsed:5.0f} s] {stage:22} {last}"[: self.columns]
        if self.out.isatty():
            self.out.write(f"\r\x1b[K{text}")
        elif stage != self._shown or elapsed - self._shown_at >= QUIET_S:
            self.out.write(text + "\n")
            self._shown_at = elapsed
        self._shown = stage
        self.out.flush()

    def done(self) -> None:
        if self.out.isatty():
            self.out.write("\n")
            self.out.flush()


def wait(
    *,
    url: str,
    node_rank: int,
    log: Path,
    exit_code: Callable[[], int | None],
    timeout_s: float,
    key: str | None = None,
    out: TextIO | None = None,
) -> float:
    """Wait until the server serves; return the seconds that it took.

    Node 0 serves when ``/health`` answers 200 and ``/v1/models`` names a model: a follower's dummy health
    server answers the first alone. A follower is up when that dummy answers. A ForkError carries the log's
    tail, and the exit code where the server ended.
    """
    progress, tail, began = Progress(out or sys.stderr), LogTail(log), time.monotonic()
    while True:
        elapsed = time.monotonic() - began
        tail.advance()
        progress.show(tail.stage, elapsed, tail.last)
        code = exit_code()
        if code is not None:
            progress.done()
            how = f"signal {-code}" if code < 0 else f"exit code {code}"
            raise ForkError(
                f"the server ended with {how} after {elapsed:.0f} s, while {tail.stage}; its log ends:\n"
                f"{tail.tail(25)}",
                f"whole log: {log}",
                code=1,
            )
        if serves(url, node_rank, key):
            progress.show("ready", elapsed, tail.last)
            progress.done()
            return elapsed
        if elapsed > timeout_s:
            progress.done()
            raise ForkError(
                f"not ready after {timeout_s:.0f} s, while {tail.stage}; the log ends:\n{tail.tail(25)}",
                f"whole log: {log}; --timeout SECONDS waits longer",
                code=1,
            )
        time.sleep(0.2)


def serves(url: str, node_rank: int, key: str | None = None) -> bool:
    """Whether the server at ``url`` answers as its node must."""
    if _get(f"{url}/health", None) is None:
        return False
    if node_rank > 0:
        return True
    body = _get(f"{url}/v1/models", key)
    try:
        return bool(body) and bool(json.loads(body or b"{}")["data"])
    except (ValueError, KeyError, TypeError):
        return False


def _get(url: str, key: str | None) -> bytes | None:
    """The body of a 200 answer, or None. A proxy of the environment is not asked."""
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {key}"} if key else {})
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=25) as answer:
            return bytes(answer.read()) if answer.status == 200 else None
    except (OSError, urllib.error.HTTPError):
        return None
