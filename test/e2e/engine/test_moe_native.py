# SPDX-License-Identifier: Apache-2.0
"""The native MoE, which is the CPU engine's, limits the inputs of its experts' SwiGLU."""

from __future__ import annotations

import random
from types import SimpleNamespace

import pytest

pytestmark = pytest.mark.e2e
ROWS, HIDDEN, WIDTH, EXPERTS, TOP_K = 5, 16, 8, 4, 2


@pytest.mark.parametrize("limit", (None, 0.5))
@pytest.mark.parametrize("name", ("moe_forward_native", "fused_moe_forward_native"))
def test_both_bodies_equal_a_loop_in_float64(name, limit) -> None:
    import torch

    from sglang.srt.layers.moe import fused_moe_native
    from sglang.srt.layers.moe.moe_runner import MoeRunnerConfig
    from sglang.srt.layers.moe.token_dispatcher import StandardDispatchOutput
    from sglang.srt.layers.moe.topk import StandardTopKOutput

    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(ROWS, HIDDEN, generator=draw)
    layer = SimpleNamespace(
        num_experts=EXPERTS,
        w13_weight=torch.randn(EXPERTS, 2 * WIDTH, HIDDEN, generator=draw),
        w2_weight=torch.randn(EXPERTS, HIDDEN, WIDTH, generator=draw),
        moe_runner_config=MoeRunnerConfig(activation="silu", swiglu_limit=limit),
    )
    ids = torch.stack([torch.randperm(EXPERTS, generator=draw)[:TOP_K] for _ in range(ROWS)])
    weights = torch.rand(ROWS, TOP_K, generator=draw)
    wanted = torch.zeros(ROWS, HIDDEN, dtype=torch.float64)
    clamped = 0
    for row in range(ROWS):
        for expert, weight in zip(ids[row].tolist(), weights[row].double(), strict=True):
            gate, up = (layer.w13_weight[expert].double() @ x[row].double()).chunk(2)
            if limit is not None:
                clamped += int((gate > limit).sum()) + int((up.abs() > limit).sum())
                gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
            hidden = gate * torch.sigmoid(gate) * up
            wanted[row] += weight * (layer.w2_weight[expert].double() @ hidden)
    assert limit is None or clamped > ROWS, "nothing exceeds the limit"
    chosen = StandardTopKOutput(weights, ids, torch.zeros(ROWS, EXPERTS))
    if name == "moe_forward_native":
        found = fused_moe_native.moe_forward_native(layer, x, chosen, layer.moe_runner_config)
    else:
        step = StandardDispatchOutput(hidden_states=x, hidden_states_scale=None, topk_output=chosen)
        found = fused_moe_native.fused_moe_forward_native(layer, step).hidden_states
    torch.testing.assert_close(found.double(), wanted, rtol=1e-5, atol=1e-5)
