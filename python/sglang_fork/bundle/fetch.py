# SPDX-License-Identifier: Apache-2.0
"""Downloads what a target needs: the lock's wheels by hash, chosen for it and not for this machine."""

from __future__ import annotations

from pathlib import Path

from sglang_fork.lock import FOLDER, RUNTIME, UV
from sglang_fork.lock.markers import holds, target_environment
from sglang_fork.lock.requirements import Pin, parse_lock, read_lock
from sglang_fork.stack.pip import download_locked
from sglang_fork.stack.platforms import Platform


def target_pins(platform: Platform, lock: str = RUNTIME) -> list[Pin]:
    """The lock's pins that apply on the target."""
    environment = target_environment(platform.python_version, platform.machine)
    return [pin for pin in parse_lock(read_lock(FOLDER / lock)) if holds(pin.marker, environment)]


def fetch(platform: Platform, pins: list[Pin], into: Path) -> list[Path]:
    """Download one wheel for each pin (kept ones are not fetched again); sorted paths."""
    into.mkdir(parents=True, exist_ok=True)
    requirements = into / "requirements.txt"
    # The markers were decided for the target; pip would decide them for this machine.
    lines = (f"{pin.name}=={pin.version} {' '.join(f'--hash={h}' for h in pin.hashes)}\n" for pin in pins)
    requirements.write_text("".join(lines))
    download_locked(platform, requirements, into)
    requirements.unlink()
    return sorted(into.glob("*.whl"))


def uv_pins(platform: Platform) -> list[Pin]:
    """The installer for the target."""
    return target_pins(platform, UV)
