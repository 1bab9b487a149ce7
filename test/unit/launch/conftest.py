# SPDX-License-Identifier: Apache-2.0
"""A state folder whose built environment runs the fake server and answers the probe as a test says."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sglang_fork.paths import ROOT

FAKE = Path(__file__).with_name("fake_server.py")
NO_GPU = {"isa": None, "spec": None, "reasons": ["no GPU is visible"], "error": None}


class Machine:
    """One user's machine: its state folder, shell variables, and the tool run on it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.state = folder / "state"
        self.model = folder / "model"
        self.port = self.free_port()
        self.shell = {
            "SGLANG_FORK_HOME": str(self.state),
            "SGLANG_FORK_PROFILE": "cpu",
            "QWEN35_MODEL": str(self.model),
            "PORT": str(self.port),
        }
        self.started: list[subprocess.Popen[str]] = []
        self._build()
        self._checkpoint()
        self.probe(NO_GPU)

    def _build(self) -> None:
        venv = self.state / "venv-cpu"
        (venv / "bin").mkdir(parents=True)
        (venv / "sglang-build.json").write_text("{}")
        python = venv / "bin" / "python"
        python.write_text(
            "#!/usr/bin/env bash\n"
            f'if [[ $1 == -c || $1 == */demo_client.py ]]; then exec "{sys.executable}" "$@"; fi\n'
            f'if [[ $1 == */probe.py ]]; then cat "{self.folder}/probe.json"; exit; fi\n'
            f'echo "program: $*"; shift; exec "{sys.executable}" "{FAKE}" "$@"\n'
        )
        python.chmod(0o755)

    def _checkpoint(self) -> None:
        from sglang_fork import memory

        self.model.mkdir()
        (self.model / "config.json").write_text(json.dumps(memory.config("qwen3_5_35b")))
        (self.model / "model.safetensors").write_bytes(b"\0" * 64)

    def probe(self, answer: object) -> None:
        """What the built environment answers when it is asked about the megakernel."""
        (self.folder / "probe.json").write_text(json.dumps(answer))

    def environ(self, **shell: str) -> dict[str, str]:
        base = {k: os.environ[k] for k in ("PATH", "HOME", "LANG") if k in os.environ}
        return {**base, **self.shell, **shell}

    def run(self, *words: str, **shell: str) -> subprocess.CompletedProcess[str]:
        """Run the tool to its end."""
        return subprocess.run(
            [str(ROOT / "sglang.sh"), *words],
            env=self.environ(**shell),
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )

    def serve(self, *words: str, **shell: str) -> subprocess.CompletedProcess[str]:
        """Launch the tiny preset detached."""
        return self.run("Qwen3.5-35B-A3B", "--tiny", "--detach", *words, **shell)

    def attached(self, *words: str, **shell: str) -> subprocess.Popen[str]:
        """Launch the tiny preset and stay; returns the launcher once the server is recorded as ready."""
        launcher = subprocess.Popen(
            [str(ROOT / "sglang.sh"), "Qwen3.5-35B-A3B", "--tiny", *words],
            env=self.environ(**shell),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.started.append(launcher)
        self.wait_for(lambda: self.record().get("ready_at", 0) > 0)
        return launcher

    def record(self, name: str = "Qwen3.5-35B-A3B-tiny") -> dict:
        path = self.state / "run" / name / "pid.json"
        return json.loads(path.read_text()) if path.is_file() else {}

    def log(self, name: str = "Qwen3.5-35B-A3B-tiny") -> str:
        return (self.state / "run" / name / "log").read_text()

    def pid(self) -> int:
        return int(self.record()["identity"]["pid"])

    def wait_for(self, condition: Callable[[], bool], seconds: float = 20.0) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, "did not happen in time"
            time.sleep(0.05)

    @staticmethod
    def running(pid: int) -> bool:
        """Whether a process runs; a zombie does not."""
        try:
            text = Path(f"/proc/{pid}/stat").read_text()
        except OSError:
            return False
        return text[text.rindex(")") + 2] != "Z"

    @staticmethod
    def is_fake(pid: int) -> bool:
        """Whether a process is a fake server of these tests."""
        return Machine.running(pid) and str(FAKE) in Path(f"/proc/{pid}/cmdline").read_text()

    @staticmethod
    def free_port() -> int:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            return int(probe.getsockname()[1])

    def clean(self) -> None:
        for launcher in self.started:
            if launcher.poll() is None:
                launcher.kill()
            launcher.wait()
        for path in self.state.glob("run/*/pid.json"):
            pid = json.loads(path.read_text())["identity"]["pid"]
            if self.is_fake(pid):
                os.kill(pid, signal.SIGKILL)


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    made = Machine(tmp_path)
    yield made
    made.clean()
