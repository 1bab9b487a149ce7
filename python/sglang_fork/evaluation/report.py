# SPDX-License-Identifier: Apache-2.0
"""What a user reads of an evaluation, and the same as one JSON object."""

from __future__ import annotations

from typing import Any

from sglang_fork.evaluation import divergence
from sglang_fork.evaluation.statistics import Paired, wilson
from sglang_fork.evaluation.tasks import Outcome


def figures(outcome: Outcome) -> dict[str, Any]:
    """Accuracies with their 95 % intervals, and the divergence's summary in nats."""
    said: dict[str, Any] = {}
    for task, right in outcome.right.items():
        low, high = wilson(sum(right), len(right))
        interval = [round(low, 4), round(high, 4)]
        said[task] = {"right": sum(right), "of": len(right), "interval_95": interval}
    if outcome.kl:
        said["kl_decode_from_prefill"] = {"steps": len(outcome.kl), **divergence.summary(outcome.kl)}
    return said


def lines(name: str, outcome: Outcome) -> list[str]:
    said = [f"{name}:"]
    for task, entry in figures(outcome).items():
        if task == "kl_decode_from_prefill":
            shown = ", ".join(f"{key} {entry[key]:.2e}" for key in ("mean", "p99", "max"))
            said.append(f"  KL of decode from prefill   {shown} nats over {entry['steps']} steps")
        else:
            low, high = entry["interval_95"]
            share = entry["right"] / entry["of"]
            counts = f"{entry['right']} of {entry['of']}"
            said.append(f"  {task:<12} {counts:>12}  {share:6.1%}  (95 % interval {low:.1%} to {high:.1%})")
    return said


def comparison(first: Outcome, second: Outcome) -> dict[str, dict[str, Any]]:
    """For each task that both answered, the paired counts and the exact McNemar test."""
    tests: dict[str, dict[str, Any]] = {}
    for task in first.right.keys() & second.right.keys():
        paired = Paired.of(first.right[task], second.right[task])
        tests[task] = {**vars(paired), "p_value": paired.p_value}
    return tests


def comparison_lines(tests: dict[str, dict[str, Any]]) -> list[str]:
    said = ["megakernel on against off, question by question (exact McNemar test):"]
    for task, entry in sorted(tests.items()):
        said.append(
            f"  {task:<12} right in both {entry['both']}, on alone {entry['first_alone']},"
            f" off alone {entry['second_alone']}, neither {entry['neither']}; p = {entry['p_value']:.3g}"
        )
    return said
