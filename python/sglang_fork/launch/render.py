# SPDX-License-Identifier: Apache-2.0
"""A resolved launch as text: a command that can be pasted into a shell, and where every value comes from."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from sglang_fork.resolve import FLAG, PER_NODE, Argument, Resolution, Variable


def dry_run(resolution: Resolution, program: Sequence[str], process: Sequence[Variable]) -> str:
    """What ``--dry-run`` prints. ``program`` runs the server; ``process`` are the build's own variables."""
    shown = resolution.with_megakernel(True) if resolution.mode == "on" else resolution
    lines = [f"# {_title(shown)}"]
    lines += [f"# warning: {text}" for text in shown.warnings]
    lines += [f"# note: {text}" for text in shown.notes]
    lines += [f"# megakernel {shown.mode} ({shown.mode_source}){_decided_later(shown)}"]
    variables = [*process, *shown.variables, *_key_variable(shown)]
    lines += command_lines(variables, program, shown.arguments)
    lines += ["", "# where each value comes from"]
    pairs = [(f"{v.name}={shlex.quote(v.value)}", v.source) for v in variables]
    pairs += [(" ".join(_words(a)), a.source) for a in shown.arguments]
    width = min(max(len(left) for left, _ in pairs), 64)
    lines += [f"#   {left:{width}}  {source}" for left, source in pairs]
    return "\n".join(lines)


def command_lines(
    variables: Sequence[Variable], program: Sequence[str], arguments: Sequence[Argument]
) -> list[str]:
    """The command, one variable or flag a line, with continuations."""
    parts = [f"{v.name}={shlex.quote(v.value)}" for v in variables]
    parts += [shlex.join(program)]
    parts += ["  " + " ".join(_words(a)) for a in arguments]
    return [f"{part} \\" for part in parts[:-1]] + parts[-1:]


def _words(argument: Argument) -> list[str]:
    if argument.words == ("",) and argument.flag in PER_NODE:
        name, meaning = PER_NODE[argument.flag]
        return [argument.flag, f'"${{{name}:?{meaning}}}"']
    return [argument.flag, *map(shlex.quote, argument.words)]


def _title(resolution: Resolution) -> str:
    preset = resolution.preset
    place = f" on {preset.machine}" if preset.machine else ""
    return f"{preset.name}{place}: {preset.title}"


def _decided_later(resolution: Resolution) -> str:
    if resolution.mode != "auto":
        return ""
    slots = f" with {resolution.slots.name}={shlex.quote(resolution.slots.value)}" if resolution.slots else ""
    return f": {FLAG} is added{slots} at launch where the built environment has no reason against it"


def _key_variable(resolution: Resolution) -> list[Variable]:
    """The key's file by name; a key in the environment is inherited and never printed."""
    key = resolution.key
    return [Variable(key.name, key.path, f"shell: {key.name}")] if key and key.path else []
