# SPDX-License-Identifier: Apache-2.0
"""Whether the megakernel runs: ``auto`` asks the built environment, ``on`` refuses with its reasons."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sglang_fork.errors import ForkError
from sglang_fork.resolve import Resolution

PROBE = Path(__file__).with_name("probe.py")
STATUS = Path(__file__).with_name("isa_status.json")
EMULATE = "SGLANG_MEGAKERNEL_EMULATE"
ASSEMBLED_OK = "MEGAKERNEL_ASSEMBLED"


@dataclass(frozen=True)
class Decision:
    """``on`` and, where it is off, every reason."""

    on: bool
    reasons: tuple[str, ...]
    spec: str = ""

    def lines(self) -> list[str]:
        if self.on:
            return [f"megakernel: on ({self.spec})" if self.spec else "megakernel: on"]
        return ["megakernel: stock", *(f"  - {reason}" for reason in self.reasons)]


def decide(resolution: Resolution, python: Path, environ: Mapping[str, str]) -> Decision:
    """Decide for one launch. ``on`` with a reason against it raises a ForkError that lists them all."""
    if resolution.mode == "off":
        return Decision(False, (f"switched off ({resolution.mode_source})",))
    if resolution.mode == "auto" and _without_gpu(environ):
        return Decision(False, ("no GPU is visible",))
    slots = {resolution.slots.name: resolution.slots.value} if resolution.slots else {}
    answer = ask(python, resolution.argv(), {**environ, **slots})
    reasons = judge(answer, os.environ)
    if not reasons:
        return Decision(True, (), str(answer.get("spec") or ""))
    if resolution.mode == "auto":
        return Decision(False, tuple(reasons))
    listed = "\n  - ".join(reasons)
    raise ForkError(
        f"MEGAKERNEL=on ({resolution.mode_source}) cannot be served:\n  - {listed}",
        "MEGAKERNEL=auto runs stock where there is a reason",
    )


def _without_gpu(environ: Mapping[str, str]) -> bool:
    """Whether a process of this environment sees no GPU and emulates none; asking it would take 20 s."""
    return environ.get("SGLANG_USE_CPU_ENGINE") == "1" and os.environ.get(EMULATE) != "1"


def judge(answer: Mapping[str, object], environ: Mapping[str, str]) -> list[str]:
    """The reasons against the megakernel in a probe's answer."""
    listed = answer.get("reasons")
    reasons = [str(reason) for reason in listed] if isinstance(listed, list) else []
    if answer.get("error"):
        reasons.append(f"the arguments do not resolve: {answer['error']}")
    isa = answer.get("isa")
    if not reasons and status(str(isa)) == "assembled" and environ.get(ASSEMBLED_OK) != "1":
        reasons.append(
            f"on {isa} its kernels are assembled and were never run; {ASSEMBLED_OK}=1 engages them"
        )
    return reasons


def status(isa: str) -> str:
    """The evidence for an architecture: ``ran`` (parity on the hardware), ``emulator``, or ``assembled``."""
    return str(json.loads(STATUS.read_text()).get(isa, {}).get("status", "assembled"))


def ask(python: Path, argv: Sequence[str], environ: Mapping[str, str]) -> dict[str, object]:
    """Run the probe. A probe that fails is an answer too: its error becomes a reason."""
    try:
        done = subprocess.run(
            [str(python), str(PROBE), *argv],
            env={**os.environ, **environ},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=600,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return {"isa": None, "spec": None, "reasons": [], "error": f"the probe failed: {error}"}
    last = done.stdout.strip().splitlines()[-1:] or [""]
    try:
        answer = json.loads(last[0])
    except ValueError:
        answer = None
    if isinstance(answer, dict):
        return answer
    tail = " | ".join(done.stderr.strip().splitlines()[-3:])
    return {
        "isa": None,
        "spec": None,
        "reasons": [],
        "error": f"the probe ended with {done.returncode}: {tail}",
    }
