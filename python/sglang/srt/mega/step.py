# SPDX-License-Identifier: Apache-2.0
"""The covered step that is running, and the guarded calls by which the model files reach it.

A model file's patch replaces ``self.part(x)`` by ``mega.call("slot", self, self.part, x)``. Outside a covered
step that is ``self.part(x)``. Inside, the slot's kernel for this layer runs when the plan says so, else the
stock part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

from sglang.srt.mega.view import StepView

Stock = Callable[..., Any]


class Kernel(Protocol):
    """One slot's kernel, bound to one layer's weights at build. Called as the stock part is, after the
    view.
    """

    def __call__(self, view: StepView, *args: Any, **kwargs: Any) -> Any: ...


class Runner(Protocol):
    """How a slot's kernel is run: directly, or beside its stock twin (parity)."""

    def __call__(
        self, step: ActiveStep, slot: str, layer: Any, kernel: Kernel, stock: Stock, args: tuple, kwargs: dict
    ) -> Any: ...


def run_kernel(
    step: ActiveStep, slot: str, layer: Any, kernel: Kernel, stock: Stock, args: tuple, kwargs: dict
) -> Any:
    """The plain runner."""
    return kernel(step.view, *args, **kwargs)


@dataclass
class ActiveStep:
    """A covered step while its model's forward runs.

    ``kernels`` maps (slot, id of the layer module) to the bound kernel, only for slots whose plan at this
    width is a kernel. ``inside`` holds the calls whose stock twin is running, so that a stock part that
    reaches its own seam again does not enter the kernel.
    """

    view: StepView
    kernels: Mapping[tuple[str, int], Kernel]
    runner: Runner = run_kernel
    inside: set[tuple[str, int]] = field(default_factory=set)

    def kernel(self, slot: str, layer: Any) -> Kernel | None:
        key = (slot, id(layer))
        return None if key in self.inside else self.kernels.get(key)

    @contextmanager
    def stock(self, slot: str, layer: Any) -> Iterator[None]:
        """Within it, ``layer``'s ``slot`` runs stock."""
        key = (slot, id(layer))
        self.inside.add(key)
        try:
            yield
        finally:
            self.inside.discard(key)


_active: ActiveStep | None = None


@contextmanager
def activate(step: ActiveStep) -> Iterator[None]:
    """Make ``step`` the running one. A forward runs on one thread, so a module global serves, as upstream's
    context.
    """
    global _active
    if _active is not None:
        raise RuntimeError("a covered megakernel step is already running")
    _active = step
    try:
        yield
    finally:
        _active = None


def running() -> bool:
    """Whether a covered step runs, so that a model's forward takes its covered branch."""
    return _active is not None


def covers(slot: str, layer: Any) -> bool:
    """Whether the running step has a kernel for ``layer``'s ``slot``; False outside a covered step."""
    return _active is not None and _active.kernel(slot, layer) is not None


def call(slot: str, layer: Any, stock: Stock, /, *args: Any, **kwargs: Any) -> Any:
    """Run ``layer``'s ``slot``: its kernel when the running step has one, else ``stock``."""
    step = _active
    kernel = None if step is None else step.kernel(slot, layer)
    if step is None or kernel is None:
        return stock(*args, **kwargs)
    return step.runner(step, slot, layer, kernel, stock, args, kwargs)
