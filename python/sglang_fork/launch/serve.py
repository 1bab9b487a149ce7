# SPDX-License-Identifier: Apache-2.0
"""Starts a server process, waits until it serves, and stays with it or leaves it running."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import FrameType

from sglang_fork.errors import ForkError
from sglang_fork.launch import process, ready
from sglang_fork.launch.record import Record, folder

DRAIN_S = 120.0


class Interrupted(Exception):
    """SIGINT or SIGTERM reached the launcher."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


def start(
    command: Sequence[str], environ: Mapping[str, str], template: Record
) -> tuple[subprocess.Popen[bytes], Record]:
    """Start the server in a session of its own, its output in the run's log, and record it."""
    run = folder(template.name)
    run.mkdir(parents=True, exist_ok=True)
    log = run / "log"
    if log.exists():
        log.replace(run / "log.previous")
    with log.open("wb") as out:
        try:
            child = subprocess.Popen(
                list(command),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env=dict(environ),
                start_new_session=True,
            )
        except OSError as error:
            raise ForkError(f"cannot start {command[0]}: {error}", "./sglang.sh build", code=1) from None
    identity = process.identify(child.pid)
    if identity is None:
        raise ForkError(f"process {child.pid} ended at once", f"log: {log}", code=1)
    record = replace(template, identity=identity, started_at=time.time())
    record.save()
    return child, record


def run(
    command: Sequence[str],
    environ: Mapping[str, str],
    template: Record,
    *,
    key: str | None,
    timeout_s: float,
    detach: bool,
    drain_s: float = DRAIN_S,
) -> int:
    """Start, wait, then stay until the server ends or, detached, return.

    A signal to the launcher drains the server and ends it. A server that does not come up is ended, its
    record removed, and the ForkError of ``ready.wait`` raised.
    """
    previous = {n: signal.signal(n, _raise) for n in (signal.SIGINT, signal.SIGTERM)}
    try:
        child, record = start(command, environ, template)
        try:
            took = ready.wait(
                url=record.url,
                node_rank=record.node_rank,
                log=record.log,
                exit_code=child.poll,
                timeout_s=timeout_s,
                key=key,
            )
            record = replace(record, ready_at=time.time())
            record.save()
            _announce(record, took)
            if detach:
                return 0
            return _stay(child, record)
        except (Interrupted, ForkError) as stop:
            if isinstance(stop, Interrupted):
                print(f"{stop}: draining {record.name} (at most {drain_s:.0f} s)", file=sys.stderr)
            process.end(record.identity, drain_s if isinstance(stop, Interrupted) else 5.0)
            child.wait()
            record.forget()
            if isinstance(stop, Interrupted):
                return 128 + stop.number
            raise
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def server_environ(extra: Mapping[str, str]) -> dict[str, str]:
    """The launcher's environment with the server's variables laid over it."""
    return {**os.environ, "PYTHONUNBUFFERED": "1", **extra}


def _stay(child: subprocess.Popen[bytes], record: Record) -> int:
    code = child.wait()
    record.forget()
    if code:
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        tail = ready.LogTail(record.log).tail(25)
        raise ForkError(
            f"the server ended with {how}; its log ends:\n{tail}", f"whole log: {record.log}", code=1
        )
    return 0


def _announce(record: Record, took: float) -> None:
    if record.node_rank:
        print(f"node {record.node_rank} of {record.name} is up after {took:.0f} s; node 0 answers requests")
    else:
        print(f"{record.name} serves {record.url}/v1 after {took:.0f} s (process {record.identity.pid})")
    print(f"log: {record.log}; ./sglang.sh stop {record.name} ends it", flush=True)


def _raise(number: int, frame: FrameType | None) -> None:
    raise Interrupted(number)
