# SPDX-License-Identifier: Apache-2.0
"""The record of a finished build, and the lock that keeps two builds apart."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sglang_fork.env import STAMP, venv_dir
from sglang_fork.errors import ForkError
from sglang_fork.paths import state_dir


@dataclass(frozen=True)
class Stamp:
    """What an environment holds.

    ``fork``: the fork wheel's version; ``lock``: SHA-256 of the runtime lock; ``python``: ``cp312``;
    ``editable``: the fork is installed as a link to the patched tree; ``dev_tools``: the tests' and
    linters' packages are in; ``left_out``: packages installed as metadata alone; ``kept``: what
    ``--skip-torch`` left as it was; ``recipe``: which way of building made it.
    """

    profile: str
    fork: str
    lock: str
    python: str
    machine: str
    editable: bool = False
    dev_tools: bool = False
    left_out: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    recipe: int = 0


def stamp_path(profile: str) -> Path:
    return venv_dir(profile) / STAMP


def read_stamp(profile: str) -> Stamp | None:
    """The stamp of a finished build; None where there is none or it cannot be read."""
    try:
        fields: dict[str, Any] = json.loads(stamp_path(profile).read_text())
        fields |= {key: tuple(value) for key, value in fields.items() if isinstance(value, list)}
        return Stamp(**fields)
    except (OSError, ValueError, TypeError, AttributeError):
        return None


def write_stamp(stamp: Stamp) -> None:
    """Record a finished build: written beside its place and moved, so that it is whole or absent."""
    path = stamp_path(stamp.profile)
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(asdict(stamp), indent=1, sort_keys=True) + "\n")
    partial.replace(path)


def drop_stamp(profile: str) -> None:
    """Say that the environment is being changed: until the next stamp it counts as not built."""
    stamp_path(profile).unlink(missing_ok=True)


@contextmanager
def build_lock() -> Iterator[None]:
    """Hold the state folder's build lock; a ForkError names the process that holds it."""
    path = state_dir() / "build.lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(descriptor, 32, 0).decode().strip() or "unknown"
            raise ForkError(
                f"another build is running (process {holder})", "wait for it to end", code=1
            ) from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        yield
    finally:
        os.close(descriptor)
