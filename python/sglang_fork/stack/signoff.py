# SPDX-License-Identifier: Apache-2.0
"""``check --repin``: a person signs off what upstream changed in pinned code, with upstream's diff before
them.
"""

from __future__ import annotations

from pathlib import Path

from sglang_fork.paths import ROOT
from sglang_fork.stack import apply, base, pins, wheel, workspace
from sglang_fork.stack.git import Git
from sglang_fork.stack.pins import PinFile, Upstream
from sglang_fork.stack.platforms import native_platform
from sglang_fork.stack.series import read_series


def repin(checkout: Path = ROOT) -> tuple[PinFile, dict[str, str]]:
    """Pin every declared key as the base has it; returns the pins and upstream's diff of each that had
    changed.

    The diffs are against the release of the last sign-off, whose wheel is fetched where its base commit is
    not here. A declared key that names nothing in upstream is a ForkError, and ``patches/pins`` stays as it
    was.
    """
    patches = checkout / "patches"
    with workspace.locked():
        git = workspace.repository()
        series = read_series(patches)
        now = Upstream(git, apply.base_commit(git, wheel.fetch_base_wheel(patches=patches), series))
        keys = pins.declared(checkout)
        signed = pins.sign(keys, now, series.version)
        diffs = changes(git, pins.read_pins(patches), keys, now) if (patches / pins.PINS).exists() else {}
        (patches / pins.PINS).write_text(signed.text())
    return signed, diffs


def changes(git: Git, before: PinFile, keys: dict[str, list[str]], now: Upstream) -> dict[str, str]:
    """Upstream's diff of every pin that changed or went since ``before`` was signed."""
    verdict = pins.judge(keys, before, now)
    if not verdict.changed and not verdict.gone:
        return {}
    old = Upstream(git, base_of_release(git, before.version))
    return {key: pins.diff(key, old, now) for key in (*verdict.changed, *verdict.gone)}


def base_of_release(git: Git, version: str) -> str:
    """The base commit of any release, its wheel fetched where the repository lacks it."""
    commit = git.resolve(f"{base.tag(version)}^{{commit}}")
    return commit or base.vendor(git, wheel.fetch_release(native_platform(), version), version)
