# SPDX-License-Identifier: Apache-2.0
"""What ``clean`` and ``uninstall`` remove, and how much of the disk that frees."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from sglang_fork import env
from sglang_fork.build.stamp import build_lock, read_stamp
from sglang_fork.errors import ForkError
from sglang_fork.launch import record
from sglang_fork.lock import FOLDER, RUNTIME
from sglang_fork.paths import ROOT, state_dir
from sglang_fork.stack import workspace
from sglang_fork.stack.series import read_series
from sglang_fork.stack.wheel import sha256


@dataclass(frozen=True)
class Size:
    """Bytes on disk: ``freed`` by a removal, and ``shared`` with files elsewhere (uv's cache), which stay."""

    freed: int = 0
    shared: int = 0

    def __str__(self) -> str:
        rest = f" ({_human(self.shared)} more is shared with the download cache)" if self.shared else ""
        return f"{_human(self.freed)}{rest}"


def measure(paths: Iterable[Path]) -> Size:
    """What removing ``paths`` would free: a file goes only with the last of its hard links."""
    links: dict[tuple[int, int], tuple[int, int, int]] = {}
    for root in paths:
        for path in [root, *root.rglob("*")] if root.is_dir() and not root.is_symlink() else [root]:
            try:
                status = path.lstat()
            except FileNotFoundError:
                continue
            count = 1 if path.is_dir() and not path.is_symlink() else status.st_nlink
            seen, _, _ = links.get((status.st_dev, status.st_ino), (0, 0, 0))
            links[status.st_dev, status.st_ino] = (seen + 1, count, status.st_blocks * 512)
    freed = sum(size for seen, count, size in links.values() if seen >= count)
    return Size(freed, sum(size for seen, count, size in links.values() if seen < count))


def outdated() -> list[Path]:
    """What no current environment needs: unfinished or superseded environments, wheels, scratch."""
    state = state_dir()
    version = read_series(ROOT / "patches").version
    stamps = {p: read_stamp(p) for p in env.PROFILES}
    lock = sha256(FOLDER / RUNTIME)
    keep = {profile for profile, stamp in stamps.items() if stamp is not None and stamp.lock == lock}
    old = [env.venv_dir(p) for p in env.PROFILES if p not in keep]
    forks = {stamp.fork for stamp in stamps.values() if stamp is not None}
    for wheel in (state / "dist").glob("sglang-*"):
        if wheel.name.split("-")[1] not in forks:
            old.append(wheel)
    old += [w for w in (state / "wheels").glob("sglang-*") if w.name.split("-")[1] != version]
    old += [*state.glob("scratch-*"), *state.glob("stub-*"), *(state / "dist").rglob("*.partial")]
    return [path for path in old if path.exists()]


def everything() -> list[Path]:
    """All that can be made again: everything in the state folder but runs' logs and unexported work."""
    state = state_dir()
    keep = {state / "run", state / "build.lock", state / "stack.lock"}
    if _pending():
        keep |= {workspace.source_dir(), state / "applied.json"}
    return sorted(path for path in state.iterdir() if path not in keep) if state.is_dir() else []


def remove(paths: list[Path]) -> Size:
    """Remove ``paths`` and say what that freed; refused while a server of this checkout runs."""
    require_idle()
    with build_lock():
        size = measure(paths)
        for path in paths:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
    return size


def remove_state(discard: bool) -> Size:
    """Remove the whole state folder; unexported work in it is refused unless ``discard`` is set."""
    require_idle()
    work = _pending()
    if work and not discard:
        shown = "\n  ".join(work[:10])
        raise ForkError(
            f"{workspace.source_dir()} holds work that was not exported:\n  {shown}",
            "keep it with ./sglang.sh export, or drop it with --discard",
        )
    state = state_dir()
    if not state.is_dir():
        return Size()
    if not any(
        (state / name).exists() for name in ("build.lock", "stack.lock", "run", "src", "wheels", "dist")
    ):
        raise ForkError(f"{state} was not made by this tool", "check SGLANG_FORK_HOME; nothing was removed")
    size = measure([state])
    shutil.rmtree(state)
    return size


def require_idle() -> None:
    """Refuse while a server that this tool started runs."""
    live = [item.name for item in record.running()]
    if live:
        raise ForkError(f"still running: {', '.join(live)}", "./sglang.sh stop --all")


def _pending() -> list[str]:
    source = workspace.source_dir()
    return workspace.pending_work(workspace.repository()) if (source / ".git").exists() else []


def _human(size: int) -> str:
    value = float(size)
    for unit in ("bytes", "KiB", "MiB"):
        if value < 1024:
            return f"{value:.0f} {unit}"
        value /= 1024
    return f"{value:.1f} GiB"
