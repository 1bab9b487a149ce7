# SPDX-License-Identifier: Apache-2.0
"""The activation contract of the Marlin MoE runner: every argument is applied or refused by name.

``MoeRunnerConfig`` can name an activation and five numbers that change it. A runner that reads some of them
and ignores the rest serves a model that is nearly right, which is worse than one that does not start.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

if TYPE_CHECKING:
    from sglang.srt.layers.moe.moe_runner.base import MoeRunnerConfig

GELU = frozenset({"gelu", "gelu_tanh"})
GATED = frozenset({"silu", "situ"}) | GELU
PLAIN = frozenset({"silu", "relu2"}) | GELU

_WAY_OUT = "; choose another --moe-runner-backend for this model"


def check(config: MoeRunnerConfig) -> None:
    """Refuse what Marlin's MoE would not compute.

    Raises:
        ValueError: names the argument that the runner has no place for.
    """
    activation, gated = config.activation, config.is_gated
    kind = "gated" if gated else "plain"
    if activation not in (GATED if gated else PLAIN):
        allowed = ", ".join(sorted(GATED if gated else PLAIN))
        raise ValueError(f"Marlin MoE has no {kind} activation {activation!r} (it has: {allowed}){_WAY_OUT}")
    if config.apply_router_weight_on_input:
        raise ValueError(f"Marlin MoE cannot apply the router weight to its input{_WAY_OUT}")
    silu_gated = gated and activation == "silu"
    for name in ("gemm1_alpha", "gemm1_clamp_limit", "swiglu_limit"):
        if getattr(config, name) is not None and not silu_gated and not (gated and activation == "situ"):
            raise ValueError(f"Marlin MoE has no {name} for {kind} {activation!r}{_WAY_OUT}")
    if config.gemm1_beta and (not silu_gated or config.gemm1_alpha is None):
        raise ValueError(
            f"Marlin MoE takes gemm1_beta only beside gemm1_alpha of gated 'silu', got "
            f"{config.gemm1_beta} for {kind} {activation!r}{_WAY_OUT}"
        )
    limits = {config.gemm1_clamp_limit, config.swiglu_limit} - {None}
    if len(limits) > 1:
        raise ValueError(
            f"gemm1_clamp_limit {config.gemm1_clamp_limit} and swiglu_limit {config.swiglu_limit} disagree"
        )
    if silu_gated and config.gemm1_alpha is not None and not limits:
        raise ValueError(f"Marlin MoE takes gemm1_alpha only with a clamp limit{_WAY_OUT}")


def clamp_limit(config: MoeRunnerConfig) -> float | None:
    """The one limit of gate and up (SwiGLU), or SiTU's linear beta; None where the model states none."""
    if config.gemm1_clamp_limit is not None:
        return config.gemm1_clamp_limit
    return config.swiglu_limit


def beta(config: MoeRunnerConfig) -> float:
    """What SwiGLU-OAI adds to the up half: 1.0 unless the model says otherwise."""
    return 1.0 if config.gemm1_beta is None else config.gemm1_beta


def gelu(activation: str, is_gated: bool, x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """GELU (exact for "gelu", tanh form for "gelu_tanh") of ``x``.

    Args:
        x: ``[rows, 2N]`` as gate then up where gated, else ``[rows, N]``; BF16 or FP16.
        out: ``[rows, N]``, written where gated.

    Returns:
        ``out`` where gated, else a new tensor.
    """
    approximate = "tanh" if activation == "gelu_tanh" else "none"
    if not is_gated:
        return F.gelu(x, approximate=approximate)
    if x.is_cuda:
        from sglang.kernels.ops.activation.activation import run_activation

        run_activation(activation, x, out)
        return out
    gate, up = x.float().chunk(2, dim=-1)
    out.copy_(F.gelu(gate, approximate=approximate) * up)
    return out


def reference(config: MoeRunnerConfig, x: torch.Tensor) -> torch.Tensor:
    """The activation in float32 torch, for the start-up self-test and tests.

    Args:
        x: float32 ``[rows, 2N]`` (gate, up) where gated, else ``[rows, N]``.
    """
    if not config.is_gated:
        if config.activation == "relu2":
            return F.relu(x).square()
        if config.activation == "silu":
            return F.silu(x)
        return F.gelu(x, approximate="tanh" if config.activation == "gelu_tanh" else "none")
    gate, up = x.chunk(2, dim=-1)
    limit = clamp_limit(config)
    if config.activation in GELU:
        return F.gelu(gate, approximate="tanh" if config.activation == "gelu_tanh" else "none") * up
    if config.activation == "situ":
        situ_beta = 4.0 if config.gemm1_alpha is None else config.gemm1_alpha
        up = up if limit is None else limit * torch.tanh(up / limit)
        return situ_beta * torch.tanh(gate / situ_beta) * torch.sigmoid(gate) * up
    if limit:
        gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    if config.gemm1_alpha is not None:
        return gate * torch.sigmoid(config.gemm1_alpha * gate) * (up + beta(config))
    return F.silu(gate) * up
