# SPDX-License-Identifier: Apache-2.0
"""``bench bisect-slots PRESET -- CMD``: runs CMD with parts of the megakernel's slot list and names the slots
that break or slow it.

CMD sees the list in ``SLOTS`` and ``SGLANG_NVIDIA_MEGAKERNEL_SLOTS``. It is bad when it exits with another
code than 0 or, with ``--metric``, when its number (the pattern's first group in its output, lower is better)
is more than ``--tolerance`` above that of the empty list.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sglang_fork import env
from sglang_fork.errors import ForkError

PROBE = Path(__file__).parents[1] / "launch" / "slot_probe.py"
VARIABLES = ("SLOTS", "SGLANG_NVIDIA_MEGAKERNEL_SLOTS")


@dataclass(frozen=True)
class Verdict:
    """``culprits`` together make CMD bad, and no smaller part of them does; ``tried`` counts CMD's runs."""

    culprits: tuple[str, ...]
    tried: int


def with_needs(chosen: Sequence[str], needs: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    """``chosen`` and every slot that one of them needs, in the order of ``needs``."""
    wanted, grew = set(chosen), True
    while grew:
        more = {other for name in wanted for other in needs[name]} - wanted
        wanted |= more
        grew = bool(more)
    return tuple(name for name in needs if name in wanted)


def bisect(needs: Mapping[str, Sequence[str]], is_bad: Callable[[tuple[str, ...]], bool]) -> Verdict:
    """The smallest part of the slots (keys of ``needs``) that is bad: halves first, then ever smaller pieces
    and their complements. ``is_bad`` is asked once a list. Raises ``ForkError`` when the empty list is bad or
    the whole one is not."""
    asked: dict[tuple[str, ...], bool] = {}

    def bad(chosen: Sequence[str]) -> bool:
        full = with_needs(chosen, needs)
        if full not in asked:
            asked[full] = is_bad(full)
        return asked[full]

    everything = tuple(needs)
    if bad(()):
        raise ForkError("the command is bad with no slot at all: not the megakernel's doing", code=1)
    if not bad(everything):
        raise ForkError("the command is good with every slot: nothing to look for", code=1)
    parts, left = 2, everything
    while len(left) > 1:
        pieces = [left[i * len(left) // parts : (i + 1) * len(left) // parts] for i in range(parts)]
        pieces = [piece for piece in pieces if piece]
        rests = [tuple(name for name in left if name not in piece) for piece in pieces]
        found = next((p for p in pieces if bad(p)), None) or next((r for r in rests if r and bad(r)), None)
        if found is not None:
            parts, left = 2, found
        elif parts >= len(left):
            break
        else:
            parts = min(2 * parts, len(left))
    return Verdict(left, len(asked))


def slots_of(architecture: str) -> dict[str, list[str]]:
    """Slot -> the slots that it needs, of an architecture's spec in the built environment."""
    profile = env.built_profile() or "cuda"
    done = subprocess.run(
        [str(env.venv_python(profile)), str(PROBE), architecture],
        env=os.environ | env.process_env(profile),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise ForkError(f"no slots of {architecture}: {done.stderr.strip().splitlines()[-1:]}", code=1)
    return dict(json.loads(done.stdout.strip().splitlines()[-1]))


def run(architecture: str, command: Sequence[str], metric: str, tolerance: float) -> int:
    """Bisect and print; returns 0 when slots were named."""
    if not command:
        raise ForkError("name the command to run after --", "bench bisect-slots PRESET -- CMD")
    pattern = _pattern(metric)
    needs = slots_of(architecture)
    base: list[float] = []

    def is_bad(chosen: tuple[str, ...]) -> bool:
        shown = ",".join(chosen) or "none"
        print(f"slots {shown}: ", end="", flush=True)
        code, value = execute(command, chosen, pattern)
        bad = code != 0
        if pattern is not None and not bad:
            if value is None:
                raise ForkError(f"{metric!r} matches nothing in the command's output", code=1)
            if not base:
                base.append(value)
            bad = value > base[0] * (1 + tolerance)
        print(
            f"{'bad' if bad else 'good'} (exit {code}{'' if value is None else f', {value:g}'})", flush=True
        )
        return bad

    verdict = bisect(needs, is_bad)
    plural = "slots" if len(verdict.culprits) > 1 else "slot"
    print(f"{plural} {', '.join(verdict.culprits)}, found in {verdict.tried} runs")
    return 0


def _pattern(metric: str) -> re.Pattern[str] | None:
    if not metric:
        return None
    try:
        pattern = re.compile(metric)
    except re.error as error:
        raise ForkError(f"--metric {metric!r}: {error}") from error
    if pattern.groups != 1:
        raise ForkError(f"--metric {metric!r} needs one group", "--metric 'median ([0-9.]+)'")
    return pattern


def execute(
    command: Sequence[str], chosen: Sequence[str], pattern: re.Pattern[str] | None
) -> tuple[int, float | None]:
    """(exit code, the last number that ``pattern`` matches) of one run."""
    listed = ",".join(chosen)
    try:
        done = subprocess.run(
            list(command),
            env={**os.environ, **dict.fromkeys(VARIABLES, listed)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
    except OSError as error:
        raise ForkError(f"cannot run {command[0]}: {error}") from error
    found = pattern.findall(done.stdout) if pattern else []
    return done.returncode, float(found[-1]) if found else None
