# SPDX-License-Identifier: Apache-2.0
"""What the state folder remembers of a running server: ``run/<name>/pid.json`` and its log."""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from sglang_fork.errors import ForkError
from sglang_fork.launch.process import Identity
from sglang_fork.paths import state_dir
from sglang_fork.suggest import near


@dataclass(frozen=True)
class Record:
    """One server that this tool started. ``ready_at`` is 0 until it answered. Holds no key."""

    name: str
    preset: str
    identity: Identity
    host: str
    port: int
    node_rank: int
    model: str
    megakernel: str
    started_at: float
    ready_at: float = 0.0

    @property
    def url(self) -> str:
        host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(self.host, self.host)
        return f"http://{f'[{host}]' if ':' in host and '[' not in host else host}:{self.port}"

    @property
    def log(self) -> Path:
        return folder(self.name) / "log"

    def save(self) -> None:
        """Write the record, all or nothing."""
        path = folder(self.name) / "pid.json"
        scratch = path.with_suffix(f".{os.getpid()}")
        scratch.write_text(json.dumps(asdict(self), indent=1) + "\n")
        scratch.replace(path)

    def forget(self) -> None:
        """Remove the record; the log stays."""
        (folder(self.name) / "pid.json").unlink(missing_ok=True)

    def age(self) -> float:
        return time.time() - self.started_at


def folder(name: str) -> Path:
    return state_dir() / "run" / name


def find(name: str) -> Record | None:
    """The record of that name, whether or not its process still runs."""
    try:
        data = json.loads((folder(name) / "pid.json").read_text())
        return Record(**{**data, "identity": Identity(**data["identity"])})
    except FileNotFoundError:
        return None
    except (json.JSONDecodeError, TypeError, KeyError) as error:
        path = folder(name) / "pid.json"
        raise ForkError(
            f"{path} is damaged: {error}", "remove it; end the server by hand if one runs"
        ) from None


def all_records() -> list[Record]:
    runs = state_dir() / "run"
    names = sorted(p.parent.name for p in runs.glob("*/pid.json")) if runs.is_dir() else []
    return [record for name in names if (record := find(name))]


def running() -> list[Record]:
    return [record for record in all_records() if record.identity.alive]


def chosen(name: str | None, what: str) -> str:
    """The run that the user means: the one named, or the only one that there is."""
    runs = state_dir() / "run"
    known = sorted(p.name for p in runs.iterdir() if p.is_dir()) if runs.is_dir() else []
    if name is not None:
        match = {k.lower(): k for k in known}.get(name.lower())
        if match is None:
            raise ForkError(
                f"no run named {name} to {what}", near(name, known) if known else "nothing was started"
            )
        return match
    live = [record.name for record in running()]
    candidates = live if live or what != "show" else known
    if len(candidates) != 1:
        listed = ", ".join(candidates) or "none"
        raise ForkError(f"name the run to {what}", f"running: {listed}")
    return candidates[0]
