# SPDX-License-Identifier: Apache-2.0
"""Drives one family's covered step in this process, on the CPU, and prints what it saw as one line of JSON.

Run by ``test_families.py`` in a process of its own, because a model runner claims process-wide state.
``family_scenarios.py FAMILY CHECKPOINT SLOTS``, with the CPU build's environment.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

os.environ.update(
    SGLANG_MEGAKERNEL_EMULATE="1",
    SGLANG_MEGAKERNEL_PARITY="1",
    SGLANG_MAMBA_CONV_DTYPE="bfloat16",
    SGLANG_NVIDIA_MEGAKERNEL_SLOTS=sys.argv[3] if len(sys.argv) > 3 else "",
)

from sglang_fork import cpu_flags
from sglang_fork.bench import engine

PROMPTS = [[5, 6, 7, 8, 9, 30, 41], [11, 12, 13], [400, 3, 77, 250] * 25]
STEPS = 3

# (slot, object whose id is the kernel's key, layer's number, the stock part)
Seam = tuple[str, Any, int, Callable[..., Any]]


def seams(family: str, model: Any) -> Iterator[Seam]:
    """Every place where a kernel of the family's slots can stand."""
    if family == "deepseek_v4":
        from sglang.srt.mega.models.deepseek_v4.stages import stock_seam
    for number, layer in enumerate(model.model.layers):
        yield "moe", layer, number, layer.mlp
        if family == "kimi_k3":
            yield "mla" if hasattr(layer.self_attn, "attn_mqa") else "kda", layer, number, layer.self_attn
            continue
        yield "attention", layer, number, layer.self_attn
        if family == "glm_moe_dsa":
            yield "sparse_mla", layer.self_attn, number, layer.self_attn.attn_mqa
            yield "q_norm", layer.self_attn, number, layer.self_attn.q_a_layernorm
        else:
            yield "mhc", layer.ffn_hc.norm, number, stock_seam


def right(stock: Callable[..., Any], calls: list[int]) -> Any:
    """A kernel that does what the stock part does."""

    def kernel(view: Any, *args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        return stock(*args, **kwargs)

    return kernel


def wrong(stock: Callable[..., Any]) -> Any:
    """A kernel whose result is off in one element."""

    def kernel(view: Any, *args: Any, **kwargs: Any) -> Any:
        result = stock(*args, **kwargs)
        first = result[0] if isinstance(result, tuple) else result
        spoiled = first.clone()
        spoiled.view(-1)[-1] += spoiled.abs().max()
        return (spoiled, *result[1:]) if isinstance(result, tuple) else spoiled

    return kernel


class Steps:
    """Prefill and decode steps of a fresh batch."""

    def __init__(self, runner: Any) -> None:
        self.runner = runner

    def run(self, prompts: list[list[int]], steps: int = STEPS) -> tuple[list[list[int]], list[Any]]:
        """Greedy tokens of each prompt, one from the prefill and one a decode step; logits of the first."""
        from sglang.benchmark import one_batch

        self.runner.req_to_token_pool.clear()
        self.runner.token_to_kv_pool_allocator.clear()
        requests = one_batch.prepare_synthetic_inputs_for_latency_test(len(prompts), 0, prompts)
        tokens, _, batch = one_batch.extend(requests, self.runner)
        out, first = [tokens.tolist()], None
        for _ in range(steps):
            tokens, logits = one_batch.decode(tokens, batch, self.runner)
            first = logits.float().clone() if first is None else first
            out.append(tokens.tolist())
        return [list(row) for row in zip(*out, strict=True)], first.tolist()


def main(family: str, checkpoint: str, slots: str) -> None:
    from sglang.srt.mega.parity import ParityError

    runner = engine.start(
        cpu_flags.engine_arguments(
            {"deepseek_v4": "deepseek_v41"}.get(family, family),
            model_path=checkpoint,
            dtype="bfloat16",
            context_length=512,
            max_total_tokens=2048,
            enable_nvidia_megakernel=True,
            disable_radix_cache=True,
            max_running_requests=4,
            log_level="error",
            cuda_graph_backend_decode="disabled",
        )
    )
    runner.init_cuda_graphs()
    assert os.environ["SGLANG_NVIDIA_MEGAKERNEL_SLOTS"] == slots
    built = runner.model.__dict__["_megakernel_dispatch"].built
    places, steps, seen = list(seams(family, runner.model)), Steps(runner), {}
    real, parity = dict(built.kernels_by_width), built.parity

    def plant(make: Callable[[Seam], Any], chosen: Callable[[Seam], bool] = lambda seam: True) -> None:
        planted = {(seam[0], id(seam[1])): make(seam) for seam in places if chosen(seam)}
        for rows in built.kernels_by_width:
            built.kernels_by_width[rows] = dict(planted)

    def worst() -> dict[str, tuple[int, float]]:
        found = dict(parity.seen)
        parity.seen.clear()
        return found

    seen["slots"] = sorted({seam[0] for seam in places})
    seen["plan"] = {rows: sorted(built.step_plan.kernels(rows)) for rows in built.widths}
    seen["kernels_tokens"], _ = steps.run(PROMPTS)
    seen["kernels"] = worst()
    built.parity = None
    _, seen["kernels_logits"] = steps.run(PROMPTS)
    for rows in real:
        built.kernels_by_width[rows] = {}
    seen["covered_tokens"], _ = steps.run(PROMPTS)
    built.parity = parity
    seen["stock_tokens"], seen["stock_logits"] = steps.run(PROMPTS)
    seen["stock"] = worst()

    calls: dict[str, list[int]] = {slot: [] for slot in seen["slots"]}
    plant(lambda seam: right(seam[3], calls[seam[0]]))
    seen["right_tokens"], _ = steps.run(PROMPTS, 1)
    seen["right_calls"] = {slot: len(made) for slot, made in calls.items()}
    seen["right"] = worst()

    seen["planted"] = []
    for slot in seen["slots"]:
        seam = next(seam for seam in reversed(places) if seam[0] == slot)
        plant(lambda each: wrong(each[3]), lambda each, seam=seam: each is seam)
        try:
            steps.run(PROMPTS, 1)
            message = "no error"
        except ParityError as error:
            message = str(error)
        seen["planted"].append((slot, seam[2], message))
    print("RESULT " + json.dumps(seen))


if __name__ == "__main__":
    main(*sys.argv[1:])
