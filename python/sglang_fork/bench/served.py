# SPDX-License-Identifier: Apache-2.0
"""What a serving run measured: one line a (preset, arm, concurrency), from the client's answers."""

from __future__ import annotations

import json
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from sglang_fork.bench import stats, traffic
from sglang_fork.bench.load import Answer
from sglang_fork.bench.record import ARMS, PLUMBING
from sglang_fork.errors import ForkError

# More of the answers than this repeating themselves make a run of real weights void.
REPEATING = 0.2


@dataclass(frozen=True)
class Served:
    """One arm at one concurrency. Milliseconds; percentiles over requests (TTFT, TPOT) or tokens (ITL).

    ``tpot_low_ms`` and ``tpot_high_ms`` bound the median at 95 %. ``user_tokens_s`` is 1000 / TPOT's median,
    ``total_tokens_s`` all output tokens over the run's wall time. ``coverage`` is the megakernel's share of
    decode and verify steps, -1 where the server does not say; ``accept_length`` 0 without drafts.
    ``repeating`` is the share of answers that repeat themselves.
    """

    date: str
    card: str
    family: str
    preset: str
    arm: str
    slots: str
    weights: str
    concurrency: int
    requests: int
    input_len: int
    output_len: int
    ttft_ms: float
    ttft_p99_ms: float
    tpot_ms: float
    tpot_low_ms: float
    tpot_high_ms: float
    itl_ms: float
    itl_p99_ms: float
    user_tokens_s: float
    total_tokens_s: float
    accept_length: float
    coverage: float
    repeating: float
    versions: dict[str, str]
    tree: str
    trace: str = ""
    choices: dict[str, str] = field(default_factory=dict)
    note: str = ""

    def __post_init__(self) -> None:
        if self.arm not in ARMS:
            raise ForkError(f"arm {self.arm!r} is not one of {', '.join(ARMS)}")
        if not 0 < self.tpot_low_ms <= self.tpot_ms <= self.tpot_high_ms:
            raise ForkError(
                f"interval {self.tpot_low_ms}..{self.tpot_high_ms} ms does not hold the median {self.tpot_ms}"
            )
        if self.concurrency < 1 or self.requests < 1:
            raise ForkError(f"{self.requests} requests at concurrency {self.concurrency} are no run")

    @property
    def case(self) -> tuple[str, ...]:
        """What two arms must share to be compared."""
        return (
            self.card,
            self.preset,
            self.weights,
            str(self.concurrency),
            str(self.input_len),
            str(self.output_len),
            self.trace,
        )

    @property
    def is_plumbing(self) -> bool:
        return self.card.startswith(PLUMBING)


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value with at least ``share`` of the values at or below it."""
    ranked = sorted(values)
    return ranked[max(0, -(-int(share * 1000) * len(ranked) // 1000) - 1)]


def wall_s(answers: Sequence[Answer]) -> float:
    """Seconds from the first request's start to the last one's end."""
    return max(a.started_s + a.latency_s for a in answers) - min(a.started_s for a in answers)


def summary(runs: Sequence[Sequence[Answer]], facts: Mapping[str, Any]) -> Served:
    """The line of an arm's runs, one a server; ``facts`` are the fields that the answers do not hold. Raises
    ``ForkError`` when a request failed or came back with one token, and when real weights repeat themselves.
    """
    answers = [answer for run in runs for answer in run]
    if failed := [a for a in answers if a.error]:
        raise ForkError(f"{len(failed)} of {len(answers)} requests failed: {failed[0].error[-400:]}", code=1)
    if short := [a for a in answers if a.tokens < 2 or a.ttft_s <= 0]:
        raise ForkError(f"{len(short)} of {len(answers)} answers have no token after the first", code=1)
    tpot = stats.interval([1e3 * a.tpot_s for a in answers])
    gaps = [1e3 * gap for a in answers for gap in a.itl_s]
    repeating = sum(traffic.repeats(a.text) for a in answers) / len(answers)
    if repeating > REPEATING and facts["weights"] == "real":
        raise ForkError(
            f"{repeating:.0%} of the answers repeat themselves: drafts of such text are accepted too easily",
            "other prompts, or a trace of real ones (--trace)",
            code=1,
        )
    accepted = [a.accept_length for a in answers if a.accept_length > 0]
    ttft = [1e3 * a.ttft_s for a in answers]
    return Served(
        requests=len(answers),
        ttft_ms=statistics.median(ttft),
        ttft_p99_ms=percentile(ttft, 0.99),
        tpot_ms=tpot.median,
        tpot_low_ms=tpot.low,
        tpot_high_ms=tpot.high,
        itl_ms=statistics.median(gaps),
        itl_p99_ms=percentile(gaps, 0.99),
        user_tokens_s=1e3 / tpot.median,
        total_tokens_s=sum(a.tokens for a in answers) / sum(wall_s(run) for run in runs),
        accept_length=statistics.mean(accepted) if accepted else 0.0,
        repeating=repeating,
        **facts,
    )


def steps(before: str, after: str) -> Counter[str]:
    """Decode and verify steps that ran as ``mega`` and as ``stock`` between two scrapes of ``/metrics``."""
    counts: Counter[str] = Counter()
    for sign, text in ((-1, before), (1, after)):
        for line in text.splitlines():
            if line.startswith("sglang:megakernel_steps_total{"):
                labels, _, value = line.partition("} ")
                for path in ("mega", "stock"):
                    if f'path="{path}"' in labels:
                        counts[path] += sign * round(float(value))
    return counts


def coverage(counts: Mapping[str, int]) -> float:
    """The megakernel's share of the steps; -1 where the server counted none."""
    total = sum(counts.values())
    return counts.get("mega", 0) / total if total > 0 else -1.0


def append(path: Path, served: Served) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as lines:
        lines.write(json.dumps(asdict(served), separators=(", ", ": ")) + "\n")


def load(paths: Iterable[Path]) -> Iterator[Served]:
    """Every line of the files. Raises ``ForkError`` naming file and line."""
    known = {f.name for f in fields(Served)}
    for path in paths:
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if line.strip():
                try:
                    values = json.loads(line)
                    if unknown := set(values) - known:
                        raise ForkError(f"unknown fields {', '.join(sorted(unknown))}")
                    yield Served(**values)
                except (ForkError, TypeError, ValueError) as error:
                    raise ForkError(f"{path.name}:{number}: {error}") from error


def table(lines: Sequence[Served]) -> str:
    """A Markdown table: one line an arm, case by case, with the ratio of TPOT against stock's."""
    head = (
        "preset",
        "users",
        "arm",
        "TTFT ms",
        "TPOT ms [95 %]",
        "ITL p99 ms",
        "tokens/s a user",
        "tokens/s",
        "accepted",
        "covered",
        "against stock",
    )
    stock = {line.case: line for line in lines if line.arm == "stock"}
    rows = []
    for line in lines:
        against = ""
        if line.arm == "mega" and line.case in stock:
            base = stock[line.case]
            against = (
                f"{base.tpot_ms / line.tpot_ms:.2f}x (at worst {base.tpot_low_ms / line.tpot_high_ms:.2f}x)"
            )
        rows.append(
            (
                f"{line.preset}, {line.weights} weights",
                str(line.concurrency),
                f"{line.arm} {line.slots}".strip(),
                f"{line.ttft_ms:.1f}",
                f"{line.tpot_ms:.2f} [{line.tpot_low_ms:.2f}, {line.tpot_high_ms:.2f}]",
                f"{line.itl_p99_ms:.2f}",
                f"{line.user_tokens_s:.0f}",
                f"{line.total_tokens_s:.0f}",
                f"{line.accept_length:.2f}" if line.accept_length else "",
                f"{line.coverage:.0%}" if line.coverage >= 0 else "",
                against,
            )
        )
    out = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    return "\n".join([*out, *("| " + " | ".join(row) + " |" for row in rows)])


def latest(lines: Iterable[Served]) -> list[Served]:
    """The last line of each case, arm and slot list."""
    kept = {(line.case, line.arm, line.slots): line for line in lines}
    return sorted(kept.values(), key=lambda s: (s.is_plumbing, s.preset, s.weights, s.concurrency, s.arm))
