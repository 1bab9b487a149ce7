# SPDX-License-Identifier: Apache-2.0
"""One measurement, one line of JSON. Times are microseconds, bandwidths TB/s (1e12 bytes a second)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from sglang_fork.errors import ForkError

MODES = ("decode", "verify", "draft")
ARMS = ("stock", "mega")
# Real numbers come from a GPU; a plumbing line shows that a command works and is never a result.
PLUMBING = "plumbing"


@dataclass(frozen=True)
class Measurement:
    """One arm of one step at one width.

    ``slice`` names the rank slice (``tp8``) or ``whole``. ``median_us`` times layers and head,
    ``layers_median_us`` the layers alone. ``ci_low_us`` and ``ci_high_us`` bound the median at 95 %.
    ``weight_bytes`` counts each weight that the step reads once: of the experts only those its rows chose.
    ``copy_tb_s`` was measured in the same run, bytes read plus bytes written; ``launches_per_layer`` is 0
    until profiled; ``fraction_of_copy`` is ``weight_bytes`` over the layers' time, over that.
    """

    date: str
    card: str
    family: str
    preset: str
    slice: str
    layers: int
    weights: str
    kv: str
    mode: str
    rows: int
    routing: str
    context: int
    arm: str
    slots: str
    median_us: float
    ci_low_us: float
    ci_high_us: float
    layers_median_us: float
    layers_ci_low_us: float
    layers_ci_high_us: float
    launches_per_layer: float
    weight_bytes: int
    layers_weight_bytes: int
    copy_tb_s: float
    read_tb_s: float
    fraction_of_copy: float
    versions: dict[str, str]
    tree: str
    choices: dict[str, str] = field(default_factory=dict)
    kernels: dict[str, list[float]] = field(default_factory=dict)
    note: str = ""

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise ForkError(f"measurement mode {self.mode!r} is not one of {', '.join(MODES)}")
        if self.arm not in ARMS:
            raise ForkError(f"measurement arm {self.arm!r} is not one of {', '.join(ARMS)}")
        if not 0 < self.ci_low_us <= self.median_us <= self.ci_high_us:
            raise ForkError(
                f"interval {self.ci_low_us}..{self.ci_high_us} us do not hold the median {self.median_us}"
            )
        if self.rows < 1 or self.layers < 1:
            raise ForkError(f"{self.rows} rows and {self.layers} layers are no step")

    @property
    def case(self) -> tuple[str, ...]:
        """What two arms must share to be compared."""
        return (
            self.card,
            self.family,
            self.slice,
            str(self.layers),
            self.weights,
            self.kv,
            self.mode,
            str(self.rows),
            self.routing,
            str(self.context),
        )

    @property
    def backend(self) -> str:
        """The attention backend that stock ran, by its class."""
        return self.choices.get("full_attn_backend") or self.choices.get("attention", "")

    @property
    def is_plumbing(self) -> bool:
        return self.card.startswith(PLUMBING)


def to_line(measurement: Measurement) -> str:
    """The line of JSON, keys in field order."""
    return json.dumps(asdict(measurement), separators=(", ", ": "))


def append(path: Path, measurement: Measurement) -> None:
    """Add one line; a run that fails later keeps it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as lines:
        lines.write(to_line(measurement) + "\n")


def parse(line: str, where: str) -> Measurement:
    """A measurement from its line. Raises ``ForkError`` naming ``where`` and what is wrong."""
    try:
        values: dict[str, Any] = json.loads(line)
    except json.JSONDecodeError as error:
        raise ForkError(f"{where}: not a line of JSON: {error}") from error
    known = {f.name for f in fields(Measurement)}
    if unknown := set(values) - known:
        raise ForkError(f"{where}: unknown fields {', '.join(sorted(unknown))}")
    try:
        return Measurement(**values)
    except TypeError as error:
        raise ForkError(f"{where}: {error}") from error


def load(paths: Iterable[Path]) -> Iterator[Measurement]:
    """Every measurement of the files, in order; blank lines are skipped."""
    for path in paths:
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if line.strip():
                yield parse(line, f"{path.name}:{number}")
