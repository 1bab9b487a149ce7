# SPDX-License-Identifier: Apache-2.0
"""Parity mode: every kernel call is compared with its stock twin on the same inputs.

``SGLANG_MEGAKERNEL_PARITY=1`` runs each covered slot twice: the kernel on copies of the inputs, with every
buffer that the slot declares as written snapshot before and restored after; then the stock part, whose
results the step keeps. The first difference beyond the slot's declared numerics raises ``ParityError`` on the
rank that saw it. Eager steps only.

A slot that chooses (experts by router logits) may fall on the other side of a tie. Its ``Chooser`` says what
both arms chose: rows with the same choice are held to ``rtol``, a row with another choice must be a tie
within the slot's ``ties``, and is counted.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from sglang.srt.mega.slots import BITWISE, Numerics, Slot
from sglang.srt.mega.step import ActiveStep, Kernel, Stock

# The whole step, compared with SGLang's own forward.
STEP = "step"
# name -> (buffer, index of the rows that the slot writes)
Written = Mapping[str, tuple[torch.Tensor, Any]]


class ParityError(RuntimeError):
    """A kernel whose result differs from its stock twin's beyond the slot's numerics."""


@dataclass(frozen=True)
class Choices:
    """What one arm chose: ``ids`` [rows, k] out of ``scores`` [rows, n]."""

    ids: torch.Tensor
    scores: torch.Tensor


class Chooser(Protocol):
    """How parity sees the choices of a slot's two arms."""

    def of_kernel(self, rows: int) -> Choices:
        """What the kernel that ran last chose."""

    def of_stock(self, layer: Any) -> AbstractContextManager[list[Choices]]:
        """Collects what ``layer``'s stock part chooses while the block runs."""


@dataclass(frozen=True)
class Tie:
    """A row in which the arms chose differently. ``margin``: the widest gap between the scores that they
    disagree about, in either arm's scores, over the row's largest score in magnitude."""

    slot: str
    layer: int
    row: int
    margin: float


@dataclass
class ParityRunner:
    """A ``step.Runner`` that compares. ``written(slot, layer, view)`` gives the buffers to snapshot.

    ``seen`` counts comparisons by slot and keeps the worst relative difference of each; ``rows`` counts a
    choosing slot's rows, ``ties`` lists those in which the arms chose differently.
    """

    slots: Mapping[str, Slot]
    written: Callable[[str, Any, Any], Written]
    rank: int
    choosers: Mapping[str, Chooser] = field(default_factory=dict)
    seen: dict[str, tuple[int, float]] = field(default_factory=dict)
    rows: Counter[str] = field(default_factory=Counter)
    ties: list[Tie] = field(default_factory=list)

    def __call__(
        self, step: ActiveStep, slot: str, layer: Any, kernel: Kernel, stock: Stock, args: tuple, kwargs: dict
    ) -> Any:
        buffers = self.written(slot, layer, step.view)
        before = {name: buffer[index].clone() for name, (buffer, index) in buffers.items()}
        kernel_out = kernel(step.view, *_clone(args), **_clone(kwargs))
        kernel_out = _clone(kernel_out)
        chooser = self.choosers.get(slot)
        mine = None if chooser is None else _clone(chooser.of_kernel(step.view.rows))
        kernel_written = {name: buffer[index].clone() for name, (buffer, index) in buffers.items()}
        for name, (buffer, index) in buffers.items():
            buffer[index] = before[name]
        watch = nullcontext([]) if chooser is None else chooser.of_stock(layer)
        with step.stock(slot, layer), watch as theirs:
            stock_out = stock(*args, **kwargs)
        pairs = {f"output{path}": pair for path, pair in _tensors(kernel_out, stock_out)}
        if mine is not None:
            agree = self._compare_choices(slot, layer, mine, theirs)
            pairs = {name: (a[agree], b[agree]) for name, (a, b) in pairs.items()}
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

    def _compare_choices(self, slot: str, layer: Any, mine: Choices, theirs: list[Choices]) -> torch.Tensor:
        """Which rows chose alike, ``[rows]`` bool; others are recorded and raise where they are no ties."""
        if len(theirs) != 1:
            raise ParityError(f"megakernel parity: slot {slot}: the stock part chose {len(theirs)} times")
        allowed = self.slots[slot].numerics.ties
        agree = torch.ones(mine.ids.shape[0], dtype=torch.bool, device=mine.ids.device)
        self.rows[slot] += mine.ids.shape[0]
        for row, margin in differing_choices(mine, theirs[0]).items():
            agree[row] = False
            self.ties.append(Tie(slot, int(getattr(layer, "layer_id", -1)), row, margin))
            if margin > allowed:
                raise ParityError(
                    f"{self._where(slot, layer)}: row {row} chooses otherwise than stock by {margin:.3e} of "
                    f"its largest score, ties are within {allowed:.3e}"
                )
        return agree

    def _where(self, slot: str, layer: Any) -> str:
        number = getattr(layer, "layer_id", getattr(layer, "layer_idx", "?"))
        return f"megakernel parity: slot {slot}, layer {number}, rank {self.rank}"

    def _judge(self, slot: str, layer: Any, pairs: Mapping[str, tuple[torch.Tensor, torch.Tensor]]) -> None:
        numerics = Numerics(BITWISE, test="parity mode") if slot == STEP else self.slots[slot].numerics
        for name, (mine, theirs) in pairs.items():
            worst = difference(mine, theirs)
            count, so_far = self.seen.get(slot, (0, 0.0))
            self.seen[slot] = (count + 1, max(so_far, worst))
            allowed = 0.0 if numerics.kind == BITWISE else numerics.rtol
            if not worst <= allowed:
                raise ParityError(
                    f"{self._where(slot, layer)}: {name} differs by {worst:.3e} of its largest value, "
                    f"allowed {allowed:.3e} ({numerics.kind})"
                )


def differing_choices(mine: Choices, theirs: Choices) -> dict[int, float]:
    """Row -> margin (see ``Tie``) of every row whose chosen sets differ; inf where a score is NaN."""
    margins: dict[int, float] = {}
    for row, (a, b) in enumerate(zip(mine.ids.tolist(), theirs.ids.tolist(), strict=True)):
        disputed = sorted(set(a) ^ set(b))
        if not disputed:
            continue
        margins[row] = 0.0
        for scores in (mine.scores[row].double(), theirs.scores[row].double()):
            gap = (scores[disputed].max() - scores[disputed].min()) / scores.abs().max()
            margins[row] = max(margins[row], float(gap.nan_to_num(float("inf"))))
    return margins


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
    if isinstance(value, Choices):
        return Choices(value.ids.clone(), value.scores.clone())
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
