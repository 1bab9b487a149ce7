# SPDX-License-Identifier: Apache-2.0
"""The candidate: a copy of the checkout on the new base, which must be green before the checkout itself
changes.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from sglang_fork.errors import ForkError
from sglang_fork.lock.check import wheel_metadata
from sglang_fork.paths import state_dir
from sglang_fork.stack import pip, wheel
from sglang_fork.stack.export import write_patches
from sglang_fork.stack.git import Git, init
from sglang_fork.stack.platforms import ALL_PLATFORMS, native_platform
from sglang_fork.stack.rebase.state import State, folder
from sglang_fork.stack.series import Series

# What a rebase may change, and what is copied back.
SCOPE = ("patches", "python", "sgl-kernel", "test")
_CACHES = {"__pycache__", ".pytest_cache", ".mypy_cache", ".ruff_cache"}


def candidate_dir() -> Path:
    return folder() / "checkout"


def listing(checkout: Path, tops: tuple[str, ...] = SCOPE) -> dict[str, str]:
    """SHA-256 by path of the files under ``tops``, caches left out."""
    found = {}
    for top in tops:
        for here, folders, names in os.walk(checkout / top):
            folders[:] = [name for name in folders if name not in _CACHES]
            for name in names:
                path = Path(here, name)
                if path.suffix != ".pyc" and path.is_file():
                    found[path.relative_to(checkout).as_posix()] = wheel.sha256(path)
    return found


def refresh(checkout: Path, git: Git, state: State, patches: dict[str, bytes]) -> None:
    """Copy the checkout the first time, with the new base and its wheel sums; bring its patches to the
    tree's.
    """
    target = candidate_dir()
    if (folder() / "manifest.json").exists():
        write_patches(target / "patches", _series(git, state, patches), patches)
        return
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(checkout, target, ignore=_not_copied, symlinks=True)
    write_base(target / "patches", git, state, patches)
    (folder() / "manifest.json").write_text(json.dumps(listing(checkout)))


def _not_copied(here: str, names: list[str]) -> list[str]:
    """What ``copytree`` leaves out: git's folder, caches, and the state folder wherever it lies."""
    skip = _CACHES | {".git", ".sglang", ".gpu"}
    return [n for n in names if n in skip or n.endswith(".pyc") or Path(here, n).resolve() == state_dir()]


def _series(git: Git, state: State, patches: dict[str, bytes]) -> Series:
    return Series(state.label, git.out("rev-parse", f"{state.base}^{{tree}}"), tuple(patches))


def write_base(patches_dir: Path, git: Git, state: State, patches: dict[str, bytes]) -> None:
    """Write series, patches and, for a release, the sums that the index publishes for its wheels."""
    write_patches(patches_dir, _series(git, state, patches), patches)
    sums = {p.wheel_name(state.label): pip.published_sum(p, state.label) for p in ALL_PLATFORMS}
    (patches_dir / wheel.SUMS).write_text(wheel.sums_text(sums))


def lock(checkout: Path, version: str) -> None:
    """``make_lock``, the first time and whenever the lock's input files were edited since."""
    folder_of_locks = checkout / "python/sglang_fork/lock"
    inputs = "".join(f"{path.name} {wheel.sha256(path)}\n" for path in sorted(folder_of_locks.glob("*.in")))
    done = folder() / "locked"
    if not done.exists() or done.read_text() != inputs:
        make_lock(checkout, version)
        done.write_text(inputs)


def make_lock(checkout: Path, version: str) -> None:
    """Resolve the new base's lock in ``checkout``, keeping every version that still satisfies."""
    from sglang_fork.build.installer import ensure_uv
    from sglang_fork.lock.resolve import make_locks

    metadata = wheel_metadata(wheel.fetch_release(native_platform(), version))
    make_locks(ensure_uv(), metadata, checkout / "python/sglang_fork/lock", upgrade=False)


def run_tests(checkout: Path, tests: Sequence[str] = ()) -> list[str]:
    """Run the candidate's tests, which build its CPU profile in a state folder apart; returns failures."""
    home = folder() / "home"
    home.mkdir(exist_ok=True)
    for shared in ("wheels", "tools"):
        if (state_dir() / shared).exists() and not (home / shared).exists():
            (home / shared).symlink_to(state_dir() / shared)
    env = os.environ | {"SGLANG_FORK_HOME": str(home), "SGLANG_PYTHON": sys.executable}
    env.pop("SGLANG_FORK_PROFILE", None)
    track(checkout)
    command = ["test", *tests]
    part = "" if tests else ", every test; --continue --tests PATH ... runs a part"
    print(f"rebase: the gate runs ./sglang.sh {' '.join(command)} in {checkout}{part}", flush=True)
    done = subprocess.run([str(checkout / "sglang.sh"), *command], env=env)
    said = f"./sglang.sh {' '.join(command)} in {checkout} ended with {done.returncode}"
    return [said] if done.returncode else []


def track(checkout: Path) -> None:
    """Make the candidate a git checkout whose tracked files are those of the checkout that it is a copy of:
    some tests read that list.
    """
    git = init(checkout)
    git.run("add", "--all")
    git.run("commit", "--quiet", "--allow-empty", "-m", "Candidate")


def install(checkout: Path) -> list[str]:
    """Copy what changed to the checkout; a file that changed in both is refused. Idempotent."""
    before = json.loads((folder() / "manifest.json").read_text())
    after, here = listing(candidate_dir()), listing(checkout)
    changed = sorted(path for path in before.keys() | after.keys() if before.get(path) != after.get(path))
    clashes = [path for path in changed if here.get(path) not in (before.get(path), after.get(path))]
    if clashes:
        raise ForkError(
            f"changed in the checkout since the rebase began: {', '.join(clashes)}",
            f"bring your change into {candidate_dir()}, undo it in the checkout, and continue",
        )
    for path in changed:
        if path in after:
            (checkout / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(candidate_dir() / path, checkout / path)
        else:
            (checkout / path).unlink(missing_ok=True)
    return changed
