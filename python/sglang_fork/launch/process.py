# SPDX-License-Identifier: Apache-2.0
"""Processes as the kernel names them: a number together with its start time, so a reused number is seen."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")


@dataclass(frozen=True)
class Identity:
    """One process of one boot. ``start`` is its start time in clock ticks since the boot."""

    pid: int
    start: int
    boot: str

    @property
    def alive(self) -> bool:
        """Whether this very process still runs; a zombie does not count."""
        if self.boot != boot_id():
            return False
        fields = _stat(self.pid)
        return fields is not None and fields[0] != "Z" and int(fields[19]) == self.start


def boot_id() -> str:
    return (PROC / "sys/kernel/random/boot_id").read_text().strip()


def identify(pid: int) -> Identity | None:
    """The identity of a running process, or None where there is none of that number."""
    fields = _stat(pid)
    return None if fields is None else Identity(pid, int(fields[19]), boot_id())


def name_of(pid: int) -> str:
    """The command that a process runs, for a message."""
    try:
        words = (PROC / str(pid) / "cmdline").read_bytes().split(b"\0")
        return " ".join(word.decode(errors="replace") for word in words if word)[:120] or "unnamed"
    except OSError:
        return "unknown"


def session_members(leader: int) -> list[int]:
    """The processes of a session, the leader left out."""
    members = []
    for entry in PROC.iterdir():
        if entry.name.isdigit() and int(entry.name) != leader:
            fields = _stat(int(entry.name))
            if fields is not None and fields[0] != "Z" and int(fields[3]) == leader:
                members.append(int(entry.name))
    return members


def end(identity: Identity, patience_s: float) -> bool:
    """End a session leader that this tool started: SIGTERM, wait, then SIGKILL with what it left behind.

    Returns whether it ended by itself within ``patience_s`` seconds. A process that is not the identified one
    is never signalled.
    """
    if not identity.alive:
        return True
    # While the leader lives its number cannot name another session: these processes are its own.
    started = [i for pid in session_members(identity.pid) if (i := identify(pid))]
    _signal(identity, signal.SIGTERM)
    drained = _wait(identity, patience_s)
    if identity.alive:
        started += [i for pid in session_members(identity.pid) if (i := identify(pid))]
        _signal(identity, signal.SIGKILL)
        _wait(identity, 10)
    deadline = time.monotonic() + 5
    while any(i.alive for i in started) and time.monotonic() < deadline:
        time.sleep(0.1)
    for member in started:
        _signal(member, signal.SIGKILL)
    return drained


@contextmanager
def ending_on_sigterm() -> Iterator[None]:
    """A time limit's SIGTERM unwinds as Ctrl-C does, so that what the body started is ended."""
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _wait(identity: Identity, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while identity.alive:
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.1)
    return True


def _signal(identity: Identity, number: signal.Signals) -> None:
    if identity.alive:
        try:
            os.kill(identity.pid, number)
        except ProcessLookupError:
            return


def _stat(pid: int) -> list[str] | None:
    """The fields of ``/proc/PID/stat`` after the command name: state, parent, group, session, ..."""
    try:
        text = (PROC / str(pid) / "stat").read_text()
    except (OSError, UnicodeDecodeError):
        return None
    return text[text.rindex(")") + 2 :].split()
