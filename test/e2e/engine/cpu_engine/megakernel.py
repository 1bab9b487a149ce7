# SPDX-License-Identifier: Apache-2.0
"""What a scheduler with the megakernel on is asked: which decode steps it covered, and to run without it."""

from __future__ import annotations

from typing import Any

from .local import Shop


def _dispatch(shop: Shop) -> tuple[Any, Any]:
    model = shop.scheduler.tp_worker.model_runner.model
    return model, model.__dict__["_megakernel_dispatch"]


def covered(shop: Shop) -> tuple[int, int]:
    """Decode steps that the megakernel ran, and those that it did not."""
    _, dispatch = _dispatch(shop)
    return dispatch.coverage.steps["decode", True], dispatch.coverage.steps["decode", False]


def turn_off(shop: Shop) -> None:
    """The model's own forward serves, until ``turn_on``."""
    model, dispatch = _dispatch(shop)
    assert model.forward is not dispatch.original
    dispatch.engaged, model.forward = model.forward, dispatch.original


def turn_on(shop: Shop) -> None:
    model, dispatch = _dispatch(shop)
    model.forward = dispatch.engaged
