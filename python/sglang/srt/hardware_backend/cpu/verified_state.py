# SPDX-License-Identifier: Apache-2.0
"""Keeps, after a verify step, the recurrent state of each request's last accepted token.

A verify step leaves the state after every token of its window in a buffer beside the pool; acceptance then
copies one of them into the request's slot, so that rejected drafts leave no trace.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def commit(pool: Tensor, window: Tensor, slots: Tensor, steps: Tensor, rows: Tensor | None = None) -> None:
    """``pool[:, slots[i]] = window[:, rows[i], steps[i]]`` for each request i.

    ``pool`` [layers, slots, ...], ``window`` [layers, rows, tokens, ...]; ``rows`` defaults to 0, 1, ... A
    negative step or slot skips its request.
    """
    if rows is None:
        rows = torch.arange(steps.shape[0])
    kept = (steps >= 0) & (slots >= 0)
    pool[:, slots[kept].long()] = window[:, rows[kept].long(), steps[kept].long()].to(pool.dtype)


def commit_all(
    caches: Any,
    slots: Tensor,
    steps: Tensor,
    track_slots: Tensor | None,
    track_steps: Tensor | None,
    rows: Tensor | None,
) -> None:
    """``scatter_mamba_states_after_mtp_verify`` on the CPU: recurrent and convolution states of all layers,
    into the requests' slots and, where prefix tracking asks for it, into the tracked ones.
    """
    pairs = [(caches.temporal, caches.intermediate_ssm)]
    pairs += zip(caches.conv, caches.intermediate_conv_window, strict=True)
    for pool, window in pairs:
        if pool.numel() == 0:
            continue
        commit(pool, window, slots, steps, rows)
        if track_slots is not None and track_steps is not None:
            commit(pool, window, track_slots, track_steps, rows)
