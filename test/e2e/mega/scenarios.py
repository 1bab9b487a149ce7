# SPDX-License-Identifier: Apache-2.0
"""Drives Qwen3.5's covered step in this process, on the CPU, and prints what it saw as one line of JSON.

Run by ``test_qwen3_5_step.py`` in a process of its own, because a model runner claims process-wide state.
``scenarios.py CHECKPOINT``, with the CPU build's environment.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from typing import Any

os.environ.update(
    SGLANG_MEGAKERNEL_EMULATE="1", SGLANG_MEGAKERNEL_PARITY="1", SGLANG_MAMBA_CONV_DTYPE="bfloat16"
)

import torch

from sglang_fork import cpu_flags
from sglang_fork.bench import engine

PROMPTS = [[5, 6, 7, 8, 9, 30, 41], [11, 12, 13], [400, 3, 77, 250]]
STEPS = 5


class Steps:
    """Prefill and decode steps of a fresh batch."""

    def __init__(self, runner: Any) -> None:
        self.runner = runner

    def run(self, prompts: list[list[int]], steps: int = STEPS) -> list[list[int]]:
        """Greedy tokens of each prompt: one from the prefill, then one a decode step."""
        from sglang.benchmark import one_batch

        self.runner.req_to_token_pool.clear()
        self.runner.token_to_kv_pool_allocator.clear()
        requests = one_batch.prepare_synthetic_inputs_for_latency_test(len(prompts), 0, prompts)
        tokens, _, batch = one_batch.extend(requests, self.runner)
        out = [tokens.tolist()]
        for _ in range(steps):
            tokens, _ = one_batch.decode(tokens, batch, self.runner)
            out.append(tokens.tolist())
        return [list(row) for row in zip(*out, strict=True)]

    def logits(self, prompts: list[list[int]]) -> Any:
        """The logits of the first decode step: both arms decode the same prefill's tokens."""
        from sglang.benchmark import one_batch

        self.runner.req_to_token_pool.clear()
        self.runner.token_to_kv_pool_allocator.clear()
        requests = one_batch.prepare_synthetic_inputs_for_latency_test(len(prompts), 0, prompts)
        tokens, _, batch = one_batch.extend(requests, self.runner)
        return one_batch.decode(tokens, batch, self.runner)[1].float()


def stock_of(slot: str) -> Any:
    from sglang.srt.mega.models.qwen3_5 import stages

    return {"gdn": stages.gated_delta_net, "attention": stages.attention, "moe": stages.moe}[slot]


def right(slot: str, calls: list[str]) -> Any:
    """A kernel that does what the stock stage does."""

    def kernel(view: Any, *args: Any) -> Any:
        calls.append(slot)
        return stock_of(slot)(*args)

    return kernel


def wrong_result(slot: str) -> Any:
    def kernel(view: Any, *args: Any) -> Any:
        stream = stock_of(slot)(*args)
        return dataclasses.replace(stream, delta=stream.delta + stream.delta.abs().max())

    return kernel


def wrong_state(slot: str) -> Any:
    """A kernel with the right result that corrupts what the slot keeps for the next step."""

    def kernel(view: Any, layer: Any, *args: Any) -> Any:
        stream = stock_of(slot)(layer, *args)
        if slot == "gdn":
            rows = view.recurrent.slots.long()
            view.recurrent.pool.mamba2_layer_cache(layer.layer_id).temporal[rows] *= -1
        else:
            view.kv_pool.get_kv_buffer(layer.layer_id)[1][view.out_cache_loc] += 1
        return stream

    return kernel


def main(checkpoint: str) -> None:
    from sglang.srt.mega.models.qwen3_5.slots import mixer_slot
    from sglang.srt.mega.parity import ParityError
    from sglang.srt.mega.step import run_kernel

    runner = engine.start(
        cpu_flags.engine_arguments(
            "qwen3_5",
            model_path=checkpoint,
            dtype="bfloat16",
            context_length=256,
            enable_nvidia_megakernel=True,
            disable_radix_cache=True,
            max_running_requests=16,
            log_level="error",
        )
    )
    runner.init_cuda_graphs()
    dispatch = runner.model.__dict__["_megakernel_dispatch"]
    built, layers = dispatch.built, runner.model.model.layers
    steps, seen = Steps(runner), {}

    def plant(make: Any, chosen: Any) -> None:
        """Put ``make(slot)`` on each (slot, layer) that ``chosen`` accepts, at every width."""
        for rows in built.kernels_by_width:
            built.kernels_by_width[rows] = {
                (slot, id(layer)): make(slot)
                for layer in layers
                for slot in (mixer_slot(layer), "moe")
                if chosen(slot, layer)
            }

    real = {rows: dict(kernels) for rows, kernels in built.kernels_by_width.items()}
    seen["layers"] = [mixer_slot(layer) for layer in layers]
    seen["real_slots"] = {rows: sorted(built.step_plan.kernels(rows)) for rows in built.widths}
    seen["real_parity"] = [steps.run(PROMPTS[:n]) for n in (1, 3)]
    seen["real_rows"] = dict(built.parity.rows)
    seen["real_ties"] = [[tie.layer, tie.row, tie.margin] for tie in built.parity.ties]
    built.parity.choosers = {}  # planted kernels do not fill the workspace that a chooser reads
    seen["real_worst"] = {slot: worst for slot, (_, worst) in built.parity.seen.items()}
    parity, built.parity = built.parity, None
    seen["real"] = [steps.run(PROMPTS[:n]) for n in (1, 3)]
    seen["real_logits"] = [logits.tolist() for logits in steps.logits(PROMPTS)]
    built.parity = parity
    built.parity.seen.clear()

    for rows in real:
        built.kernels_by_width[rows] = {}
    seen["parity_stock"] = steps.run(PROMPTS)
    seen["parity_stock_compared"] = built.parity.seen["step"]

    calls: list[str] = []
    plant(lambda slot: right(slot, calls), lambda slot, layer: True)
    seen["parity_right"] = steps.run(PROMPTS)
    seen["parity_right_calls"] = {slot: calls.count(slot) for slot in ("gdn", "attention", "moe")}
    seen["parity_right_worst"] = {slot: worst for slot, (_, worst) in built.parity.seen.items()}

    seen["planted"] = []
    for slot in ("gdn", "attention", "moe"):
        layer = [each for each in layers if slot in (mixer_slot(each), "moe")][-1]
        for make in (wrong_result, wrong_state) if slot != "moe" else (wrong_result,):
            plant(make, lambda s, each, slot=slot, layer=layer: s == slot and each is layer)
            try:
                steps.run(PROMPTS, steps=1)
                message = "nothing was noticed"
            except ParityError as error:
                message = str(error)
            seen["planted"].append([slot, layer.layer_id, make.__name__, message])

    parity, built.parity = built.parity, None
    assert parity is not None and run_kernel is not parity
    calls.clear()
    plant(lambda slot: right(slot, calls), lambda slot, layer: True)
    seen["kernels"] = steps.run(PROMPTS)
    seen["kernel_calls"] = len(calls)

    before = dict(dispatch.coverage.steps)
    wide = [[3 + i, 9, 27] for i in range(9)]
    seen["wide"] = steps.run(wide, steps=2)
    seen["wide_counted"] = {
        f"{mode} {covered}": n - before.get((mode, covered), 0)
        for (mode, covered), n in dispatch.coverage.steps.items()
        if n != before.get((mode, covered), 0)
    }
    seen["narrow_share"] = dispatch.coverage.steps["decode", True]

    runner.model.forward = dispatch.original
    seen["stock"] = steps.run(PROMPTS)
    seen["stock_logits"] = [logits.tolist() for logits in steps.logits(PROMPTS)]
    seen["stock_wide"] = steps.run(wide, steps=2)
    print("RESULT " + json.dumps(seen))


if __name__ == "__main__":
    with torch.inference_mode():
        main(sys.argv[1])
