# SPDX-License-Identifier: Apache-2.0
"""One thing that a check found."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum


class Level(StrEnum):
    """``ERROR`` breaks serving here, ``WARN`` something smaller, ``OK`` is fine, ``INFO`` is a fact."""

    OK = "ok"
    INFO = "info"
    WARN = "warn"
    ERROR = "error"


@dataclass(frozen=True)
class Finding:
    """``what`` was seen; for a warning or an error also what it ``breaks`` and the ``fix``."""

    level: Level
    area: str
    what: str
    breaks: str = ""
    fix: str = ""

    def __post_init__(self) -> None:
        wrong = self.level in (Level.WARN, Level.ERROR)
        if wrong != bool(self.breaks and self.fix):
            raise ValueError(
                f"{self.area}: a warning or an error, and only that, says what it breaks and the fix"
            )

    def as_dict(self) -> dict[str, str]:
        return {key: str(value) for key, value in asdict(self).items()}


def ok(area: str, what: str) -> Finding:
    return Finding(Level.OK, area, what)


def info(area: str, what: str) -> Finding:
    return Finding(Level.INFO, area, what)


def warn(area: str, what: str, breaks: str, fix: str) -> Finding:
    return Finding(Level.WARN, area, what, breaks, fix)


def error(area: str, what: str, breaks: str, fix: str) -> Finding:
    return Finding(Level.ERROR, area, what, breaks, fix)
