# SPDX-License-Identifier: Apache-2.0
"""Parity mode: every kernel call is compared with its stock twin on the same inputs.

``SGLANG_MEGAKERNEL_PARITY=1`` runs each covered slot twice: the kernel on copies of the inputs, with every
buffer that the slot declares as written snapshot before and restored after; then the stock part, whose
results the step keeps. The first difference beyond the slot's declared numerics raises ``ParityError`` on the
rank that saw it. Eager steps only.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from sglang.srt.mega.slots import BITWISE, Numerics, Slot
from sglang.srt.mega.step import ActiveStep, Kernel, Stock

# The whole step, compared with SGLang's own forward.
STEP = "step"
# name -> (buffer, index of the rows that the slot writes)
Written = Mapping[str, tuple[torch.Tensor, Any]]


class ParityError(RuntimeError):
    """A kernel whose result differs from its stock twin's beyond the slot's numerics."""


@dataclass
class Difference:
    """The worst difference of one tensor: ``worst = max |kernel - stock| / max |stock|``."""

    tensor: str
    worst: float


@dataclass
class ParityRunner:
    """A ``step.Runner`` that compares. ``written(slot, layer, view)`` gives the buffers to snapshot.

    ``seen`` counts comparisons by slot and keeps the worst relative difference of each.
    """

    slots: Mapping[str, Slot]
    written: Callable[[str, Any, Any], Written]
    rank: int
    seen: dict[str, tuple[int, float]] = field(default_factory=dict)

    def __call__(
        self, step: ActiveStep, slot: str, layer: Any, kernel: Kernel, stock: Stock, args: tuple, kwargs: dict
    ) -> Any:
        buffers = self.written(slot, layer, step.view)
        before = {name: buffer[index].clone() for name, (buffer, index) in buffers.items()}
        kernel_out = kernel(step.view, *_clone(args), **_clone(kwargs))
        kernel_out = _clone(kernel_out)
        kernel_written = {name: buffer[index].clone() for name, (buffer, index) in buffers.items()}
        for name, (buffer, index) in buffers.items():
            buffer[index] = before[name]
        with step.stock(slot, layer):
            stock_out = stock(*args, **kwargs)
        pairs = {f"output{path}": pair for path, pair in _tensors(kernel_out, stock_out)}
        pairs |= {name: (kernel_written[name], buffer[index]) for name, (buffer, index) in buffers.items()}
        self._judge(slot, layer, pairs)
        return stock_out

    def compare_step(
        self, step: ActiveStep, covered: Stock, original: Stock, args: tuple, kwargs: dict
    ) -> Any:
        """Run the covered step beside SGLang's own forward, which must agree bit for bit: in parity mode
        every slot keeps its stock twin's result. Returns the forward's."""
        buffers = self.written(STEP, None, step.view)
        before = {name: buffer[index].clone() for name, (buffer, index) in buffers.items()}
        mine = _clone(covered(*_clone(args), **_clone(kwargs)))
        written = {name: buffer[index].clone() for name, (buffer, index) in buffers.items()}
        for name, (buffer, index) in buffers.items():
            buffer[index] = before[name]
        theirs = original(*args, **kwargs)
        pairs = {f"output{path}": pair for path, pair in _tensors(mine, theirs)}
        pairs |= {name: (written[name], buffer[index]) for name, (buffer, index) in buffers.items()}
        self._judge(STEP, None, pairs)
        return theirs

    def _judge(self, slot: str, layer: Any, pairs: Mapping[str, tuple[torch.Tensor, torch.Tensor]]) -> None:
        numerics = Numerics(BITWISE, test="parity mode") if slot == STEP else self.slots[slot].numerics
        for name, (mine, theirs) in pairs.items():
            worst = difference(mine, theirs)
            count, so_far = self.seen.get(slot, (0, 0.0))
            self.seen[slot] = (count + 1, max(so_far, worst))
            allowed = 0.0 if numerics.kind == BITWISE else numerics.rtol
            if not worst <= allowed:
                raise ParityError(
                    f"megakernel parity: slot {slot}, layer {getattr(layer, 'layer_id', '?')}, "
                    f"rank {self.rank}: {name} differs by {worst:.3e} of its largest value, "
                    f"allowed {allowed:.3e} ({numerics.kind})"
                )


def difference(mine: torch.Tensor, theirs: torch.Tensor) -> float:
    """``max |mine - theirs| / max |theirs|`` in float64; inf when shapes, dtypes or non-finite places
    differ.
    """
    if mine.shape != theirs.shape or mine.dtype != theirs.dtype:
        return float("inf")
    if mine.numel() == 0 or torch.equal(mine, theirs):
        return 0.0
    a, b = mine.double(), theirs.double()
    finite = torch.isfinite(b)
    if not torch.equal(finite, torch.isfinite(a)) or not torch.equal(
        a[~finite].nan_to_num(), b[~finite].nan_to_num()
    ):
        return float("inf")
    a, b = a[finite], b[finite]
    gap = (a - b).abs().max().item() if a.numel() else 0.0
    scale = b.abs().max().item() if b.numel() else 0.0
    return gap / scale if scale > 0 else (0.0 if gap == 0 else float("inf"))


def _clone(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.clone()
    if isinstance(value, (tuple, list)) and not hasattr(value, "_fields"):
        return type(value)(_clone(v) for v in value)
    if isinstance(value, dict):
        return {k: _clone(v) for k, v in value.items()}
    if dataclasses.is_dataclass(value) and hasattr(value, "parity_tensors"):
        fields = {f.name: _clone(getattr(value, f.name)) for f in dataclasses.fields(value)}
        return dataclasses.replace(value, **fields)
    return value


def _tensors(mine: Any, theirs: Any, path: str = "") -> Iterator[tuple[str, tuple[Any, Any]]]:
    """Pairs of tensors at the same place in two results.

    A result is a tensor, None, a sequence of results, SGLang's logits output, or an object whose
    ``parity_tensors()`` names what it stands for. Raises ``ParityError`` for any other, and for unlike
    results: what cannot be compared must not pass.
    """
    if hasattr(mine, "parity_tensors") and hasattr(theirs, "parity_tensors"):
        mine, theirs = mine.parity_tensors(), theirs.parity_tensors()
    if hasattr(mine, "next_token_logits") and hasattr(theirs, "next_token_logits"):
        mine = (mine.next_token_logits, mine.hidden_states)
        theirs = (theirs.next_token_logits, theirs.hidden_states)
    if isinstance(mine, torch.Tensor) and isinstance(theirs, torch.Tensor):
        yield path, (mine, theirs)
    elif isinstance(mine, (tuple, list)) and isinstance(theirs, (tuple, list)) and len(mine) == len(theirs):
        for i, (m, t) in enumerate(zip(mine, theirs, strict=True)):
            yield from _tensors(m, t, f"{path}[{i}]")
    elif isinstance(mine, dict) and isinstance(theirs, dict) and mine.keys() == theirs.keys():
        for name in mine:
            yield from _tensors(mine[name], theirs[name], f"{path} {name}")
    elif not (mine is None and theirs is None):
        raise ParityError(
            f"megakernel parity cannot compare a {type(mine).__name__} with a {type(theirs).__name__}"
        )
