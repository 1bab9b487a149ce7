# SPDX-License-Identifier: Apache-2.0
"""In real SGLang, on a GPU or emulated: each slot of Qwen3.5's covered step against its stock twin.

``qwen3_5_parity.py CONFIG.json OUT.json [STEPS]``: CONFIG is a model's config (a slice's or a whole one's).
The weights are random with the spread of trained ones. The numerics are first measured without a limit, then
held to what the slots declare. Where the model's positions have three axes they are made to differ, as after
an image.
"""

from __future__ import annotations

import functools
import json
import os
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ["SGLANG_MEGAKERNEL_PARITY"] = "1"

import torch

CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"
if not CUDA:
    os.environ |= {"SGLANG_MEGAKERNEL_EMULATE": "1", "SGLANG_MAMBA_CONV_DTYPE": "bfloat16"}

from sglang_fork import cpu_flags  # noqa: E402
from sglang_fork.bench import engine  # noqa: E402

PROMPTS = [[5 + i, 6, 7 + 2 * i, 80, 9, 30, 41][: 3 + i % 5] for i in range(8)]


def spread(model: torch.nn.Module, seed: int = 0) -> None:
    """Matrices get normal values of variance 1 / columns in place; vectors (norms, gates' biases) stay."""
    generator = torch.Generator(DEVICE).manual_seed(seed)
    for name, weight in model.named_parameters():
        if weight.dim() < 2:
            continue
        for part in weight.data if weight.dim() == 3 and weight.shape[0] > 64 else [weight.data]:
            values = torch.randn(part.shape, generator=generator, device=DEVICE, dtype=torch.float32)
            scale = 0.5 if "conv" in name else part.shape[-1] ** -0.5
            part.copy_(values.mul_(scale))


def decode(runner: Any, prompts: list[list[int]], steps: int) -> None:
    from sglang.benchmark import one_batch

    runner.req_to_token_pool.clear()
    runner.token_to_kv_pool_allocator.clear()
    requests = one_batch.prepare_synthetic_inputs_for_latency_test(len(prompts), 0, prompts)
    tokens, _, batch = one_batch.extend(requests, runner)
    for _ in range(steps):
        tokens, _ = one_batch.decode(tokens, batch, runner)


def three_axes(model: torch.nn.Module) -> None:
    """Give every decode step positions that differ by axis, as after an image."""
    forward = model.forward

    @functools.wraps(forward)
    def shifted(input_ids: Any, positions: Any, forward_batch: Any, *args: Any, **kwargs: Any) -> Any:
        if forward_batch.forward_mode.is_decode() and forward_batch.mrope_positions is not None:
            shift = torch.tensor([[0], [3], [5]], device=positions.device)
            forward_batch.mrope_positions = (forward_batch.mrope_positions + shift).contiguous()
        return forward(input_ids, positions, forward_batch, *args, **kwargs)

    model.forward = shifted


def arguments(folder: str) -> dict[str, Any]:
    common = {
        "model_path": folder,
        "load_format": "dummy",
        "skip_tokenizer_init": True,
        "dtype": "bfloat16",
        "context_length": 512,
        "max_running_requests": 12,
        "disable_radix_cache": True,
        "enable_nvidia_megakernel": True,
        "log_level": "warning",
        "random_seed": 1,
    }
    if not CUDA:
        return cpu_flags.engine_arguments("qwen3_5", **common)
    return {
        **common,
        "attention_backend": "triton",
        "sampling_backend": "pytorch",
        "mem_fraction_static": 0.9,
        "max_total_tokens": 8192,
        "max_mamba_cache_size": 48,
        "cuda_graph_config": {"decode": {"backend": "disabled"}, "prefill": {"backend": "disabled"}},
    }


def main(config: str, out: str, count: str = "6") -> None:
    from sglang.srt.mega.parity import ParityError

    seen: dict[str, Any] = {}
    steps = int(count)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(Path(config).read_text())
        runner = engine.start(arguments(folder))
    runner.init_cuda_graphs()
    model = runner.model
    spread(model)
    built = model.__dict__["_megakernel_dispatch"].built
    mrope = bool(getattr(model, "is_mrope_enabled", False))
    if mrope:
        three_axes(model)
    declared, parity = dict(built.slots), built.parity
    parity.slots = {
        name: replace(slot, numerics=replace(slot.numerics, rtol=1e9, ties=1e9))
        for name, slot in declared.items()
    }
    for rows in (1, 2, 4, 8):
        decode(runner, PROMPTS[:rows], steps)
    seen |= {
        "class": type(model).__name__,
        "mrope": mrope,
        "slots": {rows: sorted(built.step_plan.kernels(rows)) for rows in built.widths},
        "compared": {slot: n for slot, (n, _) in parity.seen.items()},
        "worst": {slot: worst for slot, (_, worst) in parity.seen.items()},
        "declared": {n: [s.numerics.rtol, s.numerics.ties] for n, s in declared.items()},
        "moe_rows": parity.rows["moe"],
        "ties": len(parity.ties),
        "margins": sorted((tie.margin for tie in parity.ties), reverse=True)[:20],
    }
    parity.slots = declared
    parity.choosers, choosers = {}, parity.choosers
    parity.seen = {}
    parity.slots = {
        name: replace(slot, numerics=replace(slot.numerics, rtol=1e9)) for name, slot in declared.items()
    }
    decode(runner, PROMPTS, steps)
    seen["worst_with_ties"] = parity.seen["moe"][1]  # what rows of another choice would show
    parity.slots, parity.choosers, parity.seen = declared, choosers, {}
    try:
        decode(runner, PROMPTS, steps)
        seen["held"] = "within the declared numerics"
    except ParityError as error:
        seen["held"] = str(error)
    Path(out).write_text(json.dumps(seen, indent=1))
    print(json.dumps(seen))


if __name__ == "__main__":
    with torch.inference_mode():
        main(*sys.argv[1:])
