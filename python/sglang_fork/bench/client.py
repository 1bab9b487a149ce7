# SPDX-License-Identifier: Apache-2.0
"""The client process of a serving benchmark, started once and asked many times."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from types import TracebackType

from sglang_fork import env
from sglang_fork.bench import machine
from sglang_fork.bench.load import Answer
from sglang_fork.bench.traffic import Session
from sglang_fork.errors import ForkError


def command() -> list[str]:
    return [str(env.venv_python(env.built_profile() or "cuda")), "-P", "-m", "sglang_fork.bench.load"]


class Client:
    """Upstream's streaming client in the built environment. It imports while the first server starts; one
    that died is started again for the next run."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="bench-")
        self._log = Path(self._folder.name) / "client.log"
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Client:
        self._started()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
        self._folder.cleanup()

    def _started(self) -> subprocess.Popen[str]:
        if self._process is None or self._process.poll() is not None:
            variables = env.process_env(env.built_profile() or "cuda")
            with self._log.open("w") as log:
                self._process = subprocess.Popen(
                    command(),
                    env=os.environ | variables | machine.tool_path() | {"NO_PROXY": "127.0.0.1"},
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    text=True,
                )
        return self._process

    def ask(self, url: str, sessions: Sequence[Session], users: int) -> list[Answer]:
        """The answers to ``sessions``, at most ``users`` at a time. Raises ``ForkError`` with the end of the
        client's log where it died."""
        process = self._started()
        assert process.stdin is not None and process.stdout is not None
        turns = [[asdict(turn) for turn in session] for session in sessions]
        line = ""
        try:
            process.stdin.write(json.dumps({"url": url, "concurrency": users, "sessions": turns}) + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except BrokenPipeError:
            pass
        if not line:
            process.wait()
            raise ForkError(f"the client failed:\n{self._log.read_text()[-2000:]}", code=1)
        return [Answer(**{**a, "itl_s": tuple(a["itl_s"])}) for a in json.loads(line)]
