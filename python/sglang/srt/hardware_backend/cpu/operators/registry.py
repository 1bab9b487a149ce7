# SPDX-License-Identifier: Apache-2.0
"""Definition of the missing CPU operators in the ``sgl_kernel`` namespace."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from . import gated_delta, normalization, speculative

NAMESPACE = "sgl_kernel"


@dataclass(frozen=True)
class Operator:
    """One operator: its schema (without the namespace) and its body."""

    schema: str
    body: Callable[..., object]

    @property
    def name(self) -> str:
        return self.schema.split("(", 1)[0]


OPERATORS = tuple(
    Operator(schema, body)
    for module in (normalization, gated_delta, speculative)
    for schema, body in module.OPERATORS.items()
)

_library: torch.library.Library | None = None


def install() -> None:
    """Load ``sgl_kernel`` and define what it lacks; what a CPU engine's process calls before its models."""
    import sgl_kernel  # noqa: F401

    register()


def register() -> tuple[str, ...]:
    """Define the operators that ``torch.ops.sgl_kernel`` lacks; returns their names.

    ``sgl_kernel`` must be imported before (its extension defines the namespace). A second call defines
    nothing and returns an empty tuple.
    """
    global _library
    present = getattr(torch.ops, NAMESPACE)
    missing = [operator for operator in OPERATORS if not hasattr(present, operator.name)]
    if not missing:
        return ()
    if _library is None:
        _library = torch.library.Library(NAMESPACE, "FRAGMENT")
    for operator in missing:
        _library.define(operator.schema)
        _library.impl(operator.name, operator.body, "CPU")
    return tuple(operator.name for operator in missing)
