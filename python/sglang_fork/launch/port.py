# SPDX-License-Identifier: Apache-2.0
"""Whether a port is free, and who holds it."""

from __future__ import annotations

import socket
from pathlib import Path

from sglang_fork.launch import process, record


def reasons(host: str, port: int) -> list[str]:
    """Why the server could not listen on ``host:port``; [] where it can."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except OSError as error:
        return [f"host {host} is not an address of this machine: {error}"]
    with socket.socket(family, kind) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(address)
            probe.listen(1)
        except OSError as error:
            return [f"port {port} on {host} is taken{_holder(port)} ({error.strerror}); set PORT to another"]
    return []


def unused() -> int:
    """A port of 127.0.0.1 that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _holder(port: int) -> str:
    for known in record.running():
        if known.port == port:
            return f" by this tool's {known.name}, stop it with ./sglang.sh stop {known.name}"
    pid = listener(port)
    return "" if pid is None else f" by process {pid}, {process.name_of(pid)}"


def listener(port: int) -> int | None:
    """The process that listens on a TCP port, where its files can be read; else None."""
    inodes = set()
    for table in ("net/tcp", "net/tcp6"):
        try:
            lines = (process.PROC / table).read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            if fields[3] == "0A" and int(fields[1].rpartition(":")[2], 16) == port:
                inodes.add(f"socket:[{fields[9]}]")
    for entry in process.PROC.iterdir() if inodes else ():
        if entry.name.isdigit() and any(_target(fd) in inodes for fd in _files(entry / "fd")):
            return int(entry.name)
    return None


def _files(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []


def _target(link: Path) -> str:
    try:
        return str(link.readlink())
    except OSError:
        return ""
