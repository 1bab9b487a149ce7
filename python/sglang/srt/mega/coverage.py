# SPDX-License-Identifier: Apache-2.0
"""Coverage: how many decode and verify steps ran the megakernel, counted where they run or where their graph
replays.
"""

from __future__ import annotations

import logging
from collections import Counter
from typing import Any

logger = logging.getLogger(__name__)

LOG_EVERY = 10_000


def capture_key(forward_batch: Any) -> tuple[str, int]:
    """A decode-phase step's graph family and size: (forward mode in lower case, requests)."""
    return forward_batch.forward_mode.name.lower(), int(forward_batch.batch_size)


def counts(forward_batch: Any) -> bool:
    """Whether an eager forward is a step that serving counts: decode or verify, not a warm-up of a
    capture.
    """
    from sglang.srt.model_executor.runner_utils.capture_mode import get_is_capture_mode

    mode = forward_batch.forward_mode
    return (mode.is_decode() or mode.is_target_verify()) and not get_is_capture_mode()


def count_replay(model: Any, forward_batch: Any, graph_size: int) -> None:
    """Count the replay of ``model``'s captured graph of ``graph_size`` requests; a model without a megakernel
    counts nothing."""
    dispatch = model.__dict__.get("_megakernel_dispatch")
    if dispatch is not None and dispatch.coverage is not None:
        mode, _ = capture_key(forward_batch)
        dispatch.coverage.count(mode, dispatch.captured.get((mode, graph_size)) is not None)


class Coverage:
    """Steps of one model, by forward mode and by whether the megakernel ran them.

    ``count`` is host-only and cheap: it runs at every step. Every ``LOG_EVERY`` steps one line says the
    share; with metrics on, the Prometheus counter ``sglang:megakernel_steps_total`` carries it too.
    """

    def __init__(self, name: str, prometheus: bool = False) -> None:
        self.name = name
        self.steps: Counter[tuple[str, bool]] = Counter()
        self._metric: Any = _prometheus_counter() if prometheus else None

    def count(self, mode: str, covered: bool) -> None:
        """One step of ``mode`` (``decode``, ``target_verify``)."""
        self.steps[mode, covered] += 1
        if self._metric is not None:
            path = "mega" if covered else "stock"
            self._metric.labels(model=self.name, mode=mode, path=path).inc()
        if self.total % LOG_EVERY == 0:
            logger.info("%s", self)

    @property
    def total(self) -> int:
        return sum(self.steps.values())

    def share(self, mode: str | None = None) -> float:
        """Covered steps over all steps (of ``mode``); 0.0 before the first step."""
        mine = {key: n for key, n in self.steps.items() if mode in (None, key[0])}
        total = sum(mine.values())
        return sum(n for (_, covered), n in mine.items() if covered) / total if total else 0.0

    def __str__(self) -> str:
        modes = sorted({mode for mode, _ in self.steps})
        parts = [
            f"{mode} {self.steps[mode, True]} of {sum(self.steps[mode, c] for c in (True, False))}"
            for mode in modes
        ]
        return f"NVIDIA megakernel coverage ({self.name}): " + (", ".join(parts) or "no step yet")


_counter: Any = None


def _prometheus_counter() -> Any:
    global _counter
    if _counter is None:
        from prometheus_client import Counter as PrometheusCounter

        _counter = PrometheusCounter(
            "sglang:megakernel_steps_total",
            "Decode and verify steps by the path that ran them",
            labelnames=["model", "mode", "path"],
        )
    return _counter
