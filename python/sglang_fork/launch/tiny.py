# SPDX-License-Identifier: Apache-2.0
"""``--tiny``: the same preset on its tiny twin, changed only where this machine's hardware forces it."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sglang_fork import cpu_flags
from sglang_fork.checkpoints import make
from sglang_fork.errors import ForkError
from sglang_fork.paths import ROOT
from sglang_fork.preset import FOLDER
from sglang_fork.resolve import COMMAND_LINE, Argument, Resolution, Variable

SHELL = "shell: "


@dataclass(frozen=True)
class Change:
    """One difference from the preset, and the hardware's reason for it."""

    what: str
    reason: str

    def __str__(self) -> str:
        return f"{self.what} ({self.reason})"


def twin(family: str) -> Path:
    """A family's tiny checkpoint: the one in the repository where there is one, else the state folder's."""
    committed = ROOT / "test" / "checkpoints" / family
    return committed if (committed / "config.json").is_file() else make.default_path(family)


def training(model: Path) -> dict[str, Any] | None:
    """How a tiny checkpoint was trained and what it reaches; ``None`` where its weights are random."""
    record = model / "training.json"
    return dict(json.loads(record.read_text("utf-8"))) if record.is_file() else None


def about(model: Path) -> str:
    """One sentence on what to expect of a tiny checkpoint's text."""
    record = training(model)
    if record is None:
        return "the tiny model's weights are random, so the text is noise: the path is what is shown"
    bits = record["figures"]["held_out_bits_per_byte"]
    return (
        f"a model of {record['log'][0]['parameters'] / 1e6:.1f} million parameters, trained on the King James"
        f" Bible for this demonstration ({bits:.2f} bits per byte on text that it was not shown)"
    )


def apply(resolution: Resolution, profile: str) -> tuple[Resolution, list[Change]]:
    """The command on the tiny twin, and what differs from the preset. What the user set stays."""
    preset = resolution.preset
    if not preset.family:
        raise ForkError(f"{preset.name} has no tiny twin", "presets with one: ./sglang.sh list --json")
    rules = load_rules(profile)
    settings = needed(preset.family, profile) | rules.get("set", {})
    drops = rules.get("drop", {})
    changes: list[Change] = []
    arguments: list[Argument] = []
    for argument in resolution.arguments:
        name = argument.flag.removeprefix("--")
        if name == "model-path" and not _users(argument.source):
            path = str(twin(preset.family))
            arguments.append(Argument(argument.flag, (path,), "--tiny: the tiny twin"))
            changes.append(Change(f"{argument.flag} {path}", f"the tiny twin of {argument.words[0]}"))
            continue
        if name in settings and not _users(argument.source):
            continue
        reason = drops.get(name)
        if reason is None or _users(argument.source):
            arguments.append(argument)
        else:
            changes.append(
                Change(f"without {' '.join((argument.flag, *filter(None, argument.words)))}", reason)
            )
    given = {argument.flag for argument in arguments}
    for name, setting in settings.items():
        if f"--{name}" not in given:
            words = () if setting["value"] is True else (str(setting["value"]),)
            arguments.append(Argument(f"--{name}", words, f"--tiny: {setting['reason']}"))
            changes.append(Change(" ".join((f"--{name}", *words)), setting["reason"]))
    variables: list[Variable] = []
    for variable in resolution.variables:
        if variable.name in drops and not _users(variable.source):
            changes.append(Change(f"without {variable.name}", drops[variable.name]))
        else:
            variables.append(variable)
    for name, value in environment(preset.family, profile).items():
        if name not in {variable.name for variable in variables}:
            reason = _why(preset.family, name)
            variables.append(Variable(name, value, f"--tiny: {reason}"))
            changes.append(Change(f"{name}={value}", reason))
    changed = replace(
        resolution, arguments=tuple(arguments), variables=tuple(variables), missing=(), notes=()
    )
    return changed, changes


def needed(family: str, profile: str) -> dict[str, dict[str, Any]]:
    """The flags that the CPU engine needs for a family, with the reason for each."""
    if profile != "cpu":
        return {}
    if family not in cpu_flags.FAMILIES:
        known = ", ".join(cpu_flags.FAMILIES)
        raise ForkError(f"the CPU engine does not serve {family} yet", f"families that it serves: {known}")
    flags = cpu_flags.FAMILIES[family]
    return {
        flag.removeprefix("--"): {"value": True if value is None else value, "reason": _why(family, flag)}
        for flag, value in {**flags.forced, **flags.sized}.items()
    }


def environment(family: str, profile: str) -> Mapping[str, str]:
    """The variables that a server on the CPU engine needs for a family."""
    if profile != "cpu":
        return {}
    server = {name: value for name, (value, _) in cpu_flags.SERVER.items()}
    return {**server, **cpu_flags.FAMILIES[family].environment}


def _why(family: str, name: str) -> str:
    if name in cpu_flags.SERVER:
        return cpu_flags.SERVER[name][1]
    flags = cpu_flags.FAMILIES[family]
    default = "the CPU engine needs it" if name in flags.forced else "the machine's own memory is small"
    return flags.why.get(name, default)


def load_rules(profile: str) -> dict[str, Any]:
    """What a profile's hardware forces."""
    return tomllib.loads((FOLDER / "tiny" / f"{profile}.toml").read_text())


def _users(source: str) -> bool:
    return source == COMMAND_LINE or source.startswith(SHELL)
