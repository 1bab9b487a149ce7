# SPDX-License-Identifier: Apache-2.0
"""Runs every check and prints what it found."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

from sglang_fork.doctor import gb10, libraries, resources, toolchain
from sglang_fork.doctor.finding import Finding, Level, error
from sglang_fork.doctor.machine import Machine

CHECKS: tuple[Callable[[Machine], Iterator[Finding]], ...] = (
    libraries.built,
    toolchain.driver,
    toolchain.cuda_home,
    toolchain.ptxas,
    toolchain.compilers,
    libraries.pins,
    libraries.native,
    libraries.cuda_runtimes,
    resources.memory,
    gb10.known_causes,
    resources.disk,
    resources.ports,
    resources.caches,
)


def examine(machine: Machine) -> list[Finding]:
    """Every finding, in the order of the checks; a check that breaks is a finding and not the end."""
    found: list[Finding] = []
    for check in CHECKS:
        try:
            found += check(machine)
        except (OSError, ValueError) as problem:
            name = f"{check.__module__.rpartition('.')[2]}.{check.__name__}"
            found.append(
                error(
                    name, f"the check failed: {problem}", "this part is unknown", "report it with this line"
                )
            )
    return found


def as_text(found: list[Finding]) -> str:
    """The report for a person: problems with what they break and the fix, then a count."""
    lines = []
    for finding in found:
        lines.append(f"{finding.level:5} {finding.area:13} {finding.what}")
        if finding.breaks:
            lines += [f"{'':19} breaks: {finding.breaks}", f"{'':19} fix:    {finding.fix}"]
    count = {level: sum(finding.level == level for finding in found) for level in Level}
    lines.append(f"{count[Level.ERROR]} errors, {count[Level.WARN]} warnings")
    return "\n".join(lines)


def as_json(found: list[Finding]) -> str:
    """The report for a program: a list of objects."""
    return json.dumps([finding.as_dict() for finding in found], indent=1)
