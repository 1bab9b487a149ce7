# SPDX-License-Identifier: Apache-2.0
"""The two stages of training: the whole model with its drafts, then the MTP layer on the finished target.

A step is one function of fixed shapes; on a GPU it is captured once as a CUDA graph. Weights are FP32, matrix
products BF16 under autocast where ``mixed``. A batch depends on the seed and the step's number alone, so that
a run that was cut off continues with the batches that it would have seen.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from sglang_fork.checkpoints.train.data import Data
from sglang_fork.checkpoints.train.model import Qwen35

WARM_UP = 60
TRIAL = 20
DRAFT_STEPS = 3
DRAFT_WEIGHTS = (1.0, 0.8, 0.6)
Loss = Callable[[Qwen35, Tensor, int], dict[str, Tensor]]


@dataclass(frozen=True)
class Stage:
    """``steps``: their number, or 0 for as many as fit into ``seconds``. ``rate``: the peak learning rate."""

    name: str
    steps: int
    seconds: float
    rate: float
    batch: int
    window: int
    seed: int

    @property
    def length(self) -> int:
        return self.window + 1 + DRAFT_STEPS


def draft_loss(model: Qwen35, hidden: Tensor, logits: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Cross-entropy of each draft step with the target's own distribution, weighted; and the imbalance."""
    window = hidden.shape[1]
    loss = balance = logits.new_zeros(())
    drafts = model.draft(hidden, tokens[:, : window + DRAFT_STEPS], DRAFT_STEPS)
    for step, (drafted, imbalance) in enumerate(drafts, 1):
        wanted = logits[:, step:].detach().softmax(-1)
        found = drafted[:, :-step].log_softmax(-1)
        loss = loss - DRAFT_WEIGHTS[step - 1] * (wanted * found).sum(-1).mean()
        balance = balance + imbalance
    return loss / sum(DRAFT_WEIGHTS), balance


def whole_loss(model: Qwen35, tokens: Tensor, window: int) -> dict[str, Tensor]:
    logits, hidden, imbalance = model(tokens[:, :window])
    text = functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1 : window + 1].flatten())
    drafts, more = draft_loss(model, hidden, logits, tokens)
    return {"loss": text + 0.3 * drafts + 0.01 * (imbalance + more), "text": text, "drafts": drafts}


def mtp_loss(model: Qwen35, tokens: Tensor, window: int) -> dict[str, Tensor]:
    """The target is finished: it gives its states without gradient and without dropout."""
    model.model.eval()
    with torch.no_grad():
        logits, hidden, _ = model(tokens[:, :window])
    drafts, imbalance = draft_loss(model, hidden, logits, tokens)
    return {"loss": drafts + 0.01 * imbalance, "drafts": drafts}


class Stepper:
    """Takes optimiser steps on given tokens; on a GPU from one captured graph."""

    def __init__(self, model: Qwen35, loss: Loss, stage: Stage, graph: bool, mixed: bool) -> None:
        self.model, self.loss, self.window, self.mixed = model, loss, stage.window, mixed
        device = model.lm_head.weight.device
        on_gpu = device.type == "cuda"
        weights = [p for p in model.parameters() if p.requires_grad]
        self.rate = torch.zeros((), device=device)
        groups = [
            {"params": [p for p in weights if p.dim() > 1], "weight_decay": 0.1},
            {"params": [p for p in weights if p.dim() <= 1], "weight_decay": 0.0},
        ]
        self.optimiser = torch.optim.AdamW(
            groups, lr=self.rate, betas=(0.9, 0.95), fused=True if on_gpu else None, capturable=on_gpu
        )
        self.weights = weights
        self.tokens = torch.zeros(stage.batch, stage.length, dtype=torch.long, device=device)
        self.graph: torch.cuda.CUDAGraph | None = None
        self.wants_graph = graph and on_gpu
        self.eager_steps = 0
        self.said: dict[str, Tensor] = {}

    def step(self, tokens: Tensor, rate: float) -> dict[str, Tensor]:
        """The losses as device tensors; those of a graph are overwritten by the next step."""
        self.tokens.copy_(tokens)
        self.rate.fill_(rate)
        if self.graph is not None:
            self.graph.replay()
        elif self.wants_graph and self.eager_steps >= 3:
            self._capture()
        elif self.wants_graph:
            with _side_stream():
                self._once()
        else:
            self._once()
        self.eager_steps += 1
        return self.said

    def _capture(self) -> None:
        self.optimiser.zero_grad(set_to_none=True)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self._once(zero=False)
        self.graph.replay()

    def _once(self, zero: bool = True) -> None:
        if zero:
            self.optimiser.zero_grad(set_to_none=True)
        with torch.autocast(self.tokens.device.type, torch.bfloat16, enabled=self.mixed):
            said = self.loss(self.model, self.tokens, self.window)
        said["loss"].backward()
        torch.nn.utils.clip_grad_norm_(self.weights, 1.0)
        self.optimiser.step()
        self.said = {name: value.detach() for name, value in said.items()}


def _side_stream() -> Any:
    """A stream beside the current one, joined on both ends: a capture wants the steps before it there."""

    class Side:
        def __enter__(self) -> None:
            self.stream = torch.cuda.Stream()
            self.stream.wait_stream(torch.cuda.current_stream())
            self.context = torch.cuda.stream(self.stream)
            self.context.__enter__()

        def __exit__(self, *raised: object) -> None:
            self.context.__exit__(*raised)
            torch.cuda.current_stream().wait_stream(self.stream)

    return Side()


def scheduled(step: int, steps: int, peak: float) -> float:
    """Linear warm-up, then a cosine down to a hundredth."""
    if step < WARM_UP:
        return peak * (step + 1) / WARM_UP
    done = (step - WARM_UP) / max(1, steps - WARM_UP)
    return peak * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * min(1.0, done))))


def run(
    model: Qwen35,
    data: Data,
    stage: Stage,
    loss: Loss,
    state: Path | None = None,
    graph: bool = True,
    mixed: bool = True,
    report: int = 100,
) -> Iterator[dict[str, Any]]:
    """Train one stage; yields its log lines. With ``state``, continues from that file and renews it."""
    stepper = Stepper(model, loss, stage, graph, mixed)
    first, steps = 0, stage.steps
    if state is not None and state.is_file():
        kept = torch.load(state, map_location=data.held_out.device, weights_only=True)
        if kept["stage"] == stage.name:
            model.load_state_dict(kept["model"])
            stepper.optimiser.load_state_dict(kept["optimiser"])
            for group in stepper.optimiser.param_groups:
                group["lr"] = stepper.rate
            first, steps = kept["step"], kept["steps"]
    model.train()
    began = mark = time.monotonic()
    for step in range(first, 10**9):
        if steps == 0 and step == TRIAL:
            _wait(data)
            each = (time.monotonic() - mark) / (TRIAL - TRIAL // 2)
            left = stage.seconds - (time.monotonic() - began)
            steps = max(WARM_UP + 1, step + int(left / each))
        if steps and step >= steps:
            break
        if steps == 0 and step == TRIAL // 2:
            _wait(data)
            mark = time.monotonic()
        tokens = data.windows(stage.batch, stage.length, stage.seed * 1_000_003 + step)
        said = stepper.step(tokens, scheduled(step, steps or 10**6, stage.rate))
        if (step + 1) % report == 0 or step + 1 == steps:
            losses = {name: round(float(value), 4) for name, value in said.items()}
            seconds = round(time.monotonic() - began, 2)
            if state is not None:
                _save_state(state, stage.name, step + 1, steps, model, stepper)
            yield {"stage": stage.name, "step": step + 1, "of": steps, "seconds": seconds, **losses}


def _save_state(path: Path, stage: str, step: int, steps: int, model: Qwen35, stepper: Stepper) -> None:
    partial = path.with_name(path.name + ".partial")
    kept = {"model": model.state_dict(), "optimiser": stepper.optimiser.state_dict()}
    torch.save({"stage": stage, "step": step, "steps": steps, **kept}, partial)
    partial.replace(path)


def _wait(data: Data) -> None:
    if data.held_out.is_cuda:
        torch.cuda.synchronize()
