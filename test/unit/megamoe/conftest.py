# SPDX-License-Identifier: Apache-2.0
"""A stand-in ``flashinfer.moe_ep``: it keeps what it is given; its weight transforms are plain to see."""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs the built environment: ./sglang.sh build --profile cpu")
pytest.importorskip("sglang.srt.layers.moe.flashinfer_megamoe", reason="needs the built environment")
pytest.importorskip("sglang.srt.layers.moe.token_dispatcher")  # with the real FlashInfer, before any stand-in

sys.path.insert(0, str(Path(__file__).parent))

from moe_ep_twin import (  # noqa: E402
    Backend,
    Bf16Config,
    Bootstrap,
    Fleet,
    Fp4Config,
    Tensors,
    WeightPack,
    padded,
)


@pytest.fixture
def moe_ep(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The stand-in module; ``packs`` are the weights that it was given to transform, as copies."""
    module = ModuleType("flashinfer.moe_ep")
    module.packs = []

    def transform(weights: WeightPack, **_: Any) -> Any:
        planes = (weights.w13, weights.w13_scale), (weights.w2, weights.w2_scale)
        module.packs.append([plane.clone() for pair in planes for plane in pair])
        return tuple((weight ^ 0x11, padded(scale)) for weight, scale in planes)

    class Mega:
        supports_output_view = True

        def __init__(self, **given: Any) -> None:
            self.given = given
            self.said: list[tuple[Any, Any]] = []

        def forward(
            self, tensors: Tensors, workspace: Any = None, return_workspace_view: bool = False
        ) -> Any:
            assert return_workspace_view
            self.said.append((tensors, workspace))
            return tensors.hidden_states * 2

    module.MoEEpMegaLayer = Mega
    module.MoEWeightPack, module.MoEEpTensors = WeightPack, Tensors
    module.BootstrapConfig, module.FleetParams, module.MegaConfig = Bootstrap, Fleet, Backend
    module.Sm100_Bf16_Nvfp4_Bf16_Cutedsl_MegaMoeConfig = Bf16Config
    module.Nvfp4CutedslMegaMoeConfig = Fp4Config
    module.preprocess_bf16_nvfp4_cutedsl_mega_weights = transform
    module.preprocess_nvfp4_cutedsl_mega_weights = transform
    package = ModuleType("flashinfer")
    package.__spec__ = ModuleSpec("flashinfer", None)
    package.moe_ep = module
    monkeypatch.setitem(sys.modules, "flashinfer", package)
    monkeypatch.setitem(sys.modules, "flashinfer.moe_ep", module)
    monkeypatch.setenv("SGLANG_FLASHINFER_MEGAMOE_MAX_TOKENS_PER_RANK", "64")
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    return module


@pytest.fixture
def seed() -> int:
    drawn = int(torch.randint(0, 2**31, ()))
    print(f"seed {drawn}")
    torch.manual_seed(drawn)
    return drawn


@pytest.fixture
def layer(seed: int) -> Any:
    """An NVFP4 MoE layer of 4 experts, 128 x 128, as its loader leaves it."""

    class Layer(torch.nn.Module):
        pass

    made = Layer()
    experts, hidden, width = 4, 128, 128
    planes = {
        "w13_weight": torch.randint(0, 256, (experts, 2 * width, hidden // 2), dtype=torch.uint8),
        "w13_weight_scale": (torch.rand(experts, 2 * width, hidden // 16) + 0.5).to(torch.float8_e4m3fn),
        "w2_weight": torch.randint(0, 256, (experts, hidden, width // 2), dtype=torch.uint8),
        "w2_weight_scale": (torch.rand(experts, hidden, width // 16) + 0.5).to(torch.float8_e4m3fn),
    }
    for name, plane in planes.items():
        made.register_parameter(name, torch.nn.Parameter(plane, requires_grad=False))
    made.g1_alphas, made.g1_alphas_up = torch.rand(2, experts).clone()
    made.g1_alphas_up = made.g1_alphas.clone()
    made.w13_input_scale_quant = torch.tensor(3.0)
    made.moe_runner_config = SimpleNamespace(
        is_gated=True,
        activation="silu",
        swiglu_limit=None,
        gemm1_alpha=None,
        gemm1_clamp_limit=None,
        apply_router_weight_on_input=False,
        routed_scaling_factor=2.5,
    )
    made.quant_config = SimpleNamespace(use_per_token_activation=False)
    made.hidden_size, made.intermediate_size_per_partition = hidden, width
    made.num_experts = made.num_local_experts = experts
    made.moe_ep_size, made.moe_ep_rank, made.top_k, made.layer_id = 1, 0, 2, 0
    return made
