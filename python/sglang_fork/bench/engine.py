# SPDX-License-Identifier: Apache-2.0
"""SGLang's model runner in this process, on a slice with dummy weights, and its decode graphs captured once
an arm.

A served SGLang runs its scheduler in another process, where a benchmark cannot replay graphs. This builds the
same ``ModelRunner`` as ``sglang.benchmark.one_batch`` does, then captures every arm of a step as a variant of
the same graph runner: same static buffers, same memory pool, same metadata.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from sglang_fork.bench.routing import Routing
from sglang_fork.errors import ForkError

SGLANG_READS = {
    "sig benchmark/one_batch.py::load_model",
    "body srt/model_executor/runner/decode_cuda_graph_runner.py::DecodeCudaGraphRunner._capture_one_stream",
    "sig srt/model_executor/runner/decode_cuda_graph_runner.py::DecodeCudaGraphRunner.capture_one_shape",
    "sig srt/model_executor/runner/decode_cuda_graph_runner.py::DecodeCudaGraphRunner.capture_prepare",
    "sig srt/model_executor/runner/decode_cuda_graph_runner.py::DecodeCudaGraphRunner.load_batch",
}

FULL, LAYERS = "full", "layers"


def start(arguments: Mapping[str, Any]) -> Any:
    """A ``ModelRunner`` for these server arguments: weights loaded, pools and attention backends made, no
    graphs.
    """
    from sglang.benchmark import one_batch
    from sglang.srt.configs.hybrid_arch import mambaish_config
    from sglang.srt.configs.model_config import ModelConfig
    from sglang.srt.distributed import bootstrap
    from sglang.srt.entrypoints.engine import _set_envs_and_config
    from sglang.srt.model_executor.model_runner import ModelRunner
    from sglang.srt.runtime_context import SpawnRanks, get_device, publish, spawn_world_rank
    from sglang.srt.server_args import PortArgs, ServerArgs

    server_args = ServerArgs(**arguments)
    server_args.resolve_once()
    _set_envs_and_config(server_args)
    ports = PortArgs.init_new(server_args)
    ranks = SpawnRanks(world_rank=spawn_world_rank(server_args, tp_rank=0, pp_rank=0), gpu_id=0)
    publish(server_args, role="scheduler", ranks=ranks)
    one_batch._init_process_global_configs()
    config = ModelConfig.from_server_args(server_args)
    bootstrap.init_parallel_runtime(
        server_args=server_args, device=get_device().device, dist_port=ports.nccl_port
    )
    bootstrap.init_layer_runtime(model_config=config)
    from sglang.srt.arg_groups.overrides import resolving_view

    runner = ModelRunner(
        model_config=config,
        mem_fraction_static=resolving_view(server_args).mem_fraction_static,
        gpu_id=0,
        nccl_port=ports.nccl_port,
        server_args=server_args,
    )
    runner.alloc_memory_pool()
    runner.init_attention_backends()
    if mambaish_config(config) is not None:
        from sglang.kernels.ops.mamba.triton_ops import initialize_mamba_selective_state_update_backend

        initialize_mamba_selective_state_update_backend(server_args)
    return runner


def backbone(model: torch.nn.Module) -> torch.nn.Module:
    """The part of a causal model below its head. Raises ``ForkError`` when it has none that this knows."""
    inner = getattr(model, "model", None) or getattr(model, "language_model", None)
    if inner is None:
        raise ForkError(f"{type(model).__name__} has no backbone that the step benchmark can time alone")
    return inner


def layers_forward(model: torch.nn.Module, arm: str) -> Callable[..., Any]:
    """A forward of the backbone alone, with a model's signature; the ``mega`` arm runs it as a covered
    step.
    """
    inner, built = backbone(model), model.__dict__.get("_megakernel")

    def stock(input_ids: Any, positions: Any, forward_batch: Any) -> Any:
        if getattr(model, "is_mrope_enabled", False):
            positions = forward_batch.mrope_positions
        return inner(input_ids, positions, forward_batch)

    def mega(input_ids: Any, positions: Any, forward_batch: Any) -> Any:
        step = built.plan(input_ids, forward_batch)
        if step is None:
            return stock(input_ids, positions, forward_batch)
        return built.forward(step, stock, input_ids, positions, forward_batch)

    return mega if arm == "mega" else stock


def arms_of(model: torch.nn.Module) -> dict[str, Callable[..., Any]]:
    """Forwards by arm: ``stock`` always, ``mega`` when a megakernel is installed on the model."""
    dispatch = model.__dict__.get("_megakernel_dispatch")
    if dispatch is None:
        return {"stock": model.forward}
    return {"stock": dispatch.original, "mega": model.forward}


def capture(runner: Any, arms: Mapping[str, Callable[..., Any]]) -> Any:
    """Capture every arm of every batch size, layers with head and layers alone; returns the graph runner.

    The graph of ``arm`` at a batch size has the variant label ``arm:full`` or ``arm:layers``.
    """
    from sglang.srt.model_executor.runner.decode_cuda_graph_runner import DecodeCudaGraphRunner

    alone = {arm: layers_forward(runner.model, arm) for arm in arms}

    def capture_arms(self: Any, stream_idx: int | None = None) -> None:
        for size in reversed(self.capture_bs):
            for arm, forward in arms.items():
                self.capture_one_shape(size, forward, stream_idx, f"{arm}:{FULL}")
                self.capture_one_shape(size, alone[arm], stream_idx, f"{arm}:{LAYERS}")

    stock_capture = DecodeCudaGraphRunner._capture_one_stream
    DecodeCudaGraphRunner._capture_one_stream = capture_arms
    try:
        runner.init_cuda_graphs()
    finally:
        DecodeCudaGraphRunner._capture_one_stream = stock_capture
    return runner.decode_cuda_graph_runner


def fill_step(graph_runner: Any, requests: int, context: int, vocab: int, seed: int = 0) -> Any:
    """Fill the runner's static buffers as a step of ``requests`` requests at ``context`` tokens each would;
    returns the batch to replay. Each request has KV rows, a request slot and a recurrent state of its own."""
    runner = graph_runner.model_runner
    width = graph_runner.captured_req_width
    device = runner.device
    tables, pool_rows = runner.req_to_token_pool.req_to_token, runner.max_total_num_tokens
    page = max(1, runner.page_size)
    span = -(-(context + width) // page) * page
    if page + requests * span > pool_rows:
        raise ForkError(
            f"{requests} requests of {context} tokens need {requests * span} KV rows; the pool has "
            f"{pool_rows}"
        )
    forward_batch, _, _ = graph_runner.capture_prepare(requests, num_tokens=requests * width)
    slots = torch.arange(1, requests + 1, device=device)
    for row in range(requests):
        first = page + row * span
        tables[row + 1, : context + width] = torch.arange(
            first, first + context + width, device=device, dtype=tables.dtype
        )
    positions = (context + torch.arange(width, device=device)).repeat(requests)
    out = torch.cat([page + r * span + context + torch.arange(width, device=device) for r in range(requests)])
    generator = torch.Generator().manual_seed(seed)
    forward_batch.input_ids.copy_(torch.arange(requests * width, device=device) % vocab)
    forward_batch.req_pool_indices.copy_(slots)
    verify = forward_batch.forward_mode.is_target_verify()
    forward_batch.seq_lens.fill_(context if verify else context + 1)
    forward_batch.seq_lens_cpu.fill_(context if verify else context + 1)
    forward_batch.seq_lens_sum = int(forward_batch.seq_lens_cpu.sum())
    forward_batch.out_cache_loc.copy_(out)
    forward_batch.positions.copy_(positions)
    if forward_batch.mrope_positions is not None:
        forward_batch.mrope_positions.copy_(positions.expand_as(forward_batch.mrope_positions))
    mapping = getattr(runner.req_to_token_pool, "req_index_to_mamba_index_mapping", None)
    if mapping is not None:
        mapping[1 : requests + 1] = slots.to(mapping.dtype)
        cache = runner.req_to_token_pool.mamba_pool.mamba_cache
        for state in [*cache.conv, cache.temporal]:
            state[:, 1 : requests + 1] = (
                torch.randn(state[:, 1 : requests + 1].shape, generator=generator, dtype=torch.float32)
                .mul_(0.1)
                .to(state)
            )
    return forward_batch


def replayer(graph_runner: Any, forward_batch: Any, arm: str, part: str) -> Callable[[], object]:
    """A call that replays the graph of one arm and part for ``forward_batch``, planned once here."""
    graph_runner.load_batch(forward_batch)
    key = graph_runner._make_graph_key(
        graph_runner._capture_graph_size(
            bs=graph_runner.bs, num_tokens=graph_runner.bs * graph_runner.captured_req_width
        ),
        None,
        f"{arm}:{part}",
        graph_runner._resolve_attention_variant(forward_batch, graph_runner.bs),
    )
    return lambda: graph_runner.backend.replay(key, forward_batch)


# Row r's token carries its number in this many of the first hidden dimensions; routers read it from there.
CODE = 64.0


def routers(model: torch.nn.Module, experts: int) -> list[torch.nn.Module]:
    """The router projections in layer order: modules named ``gate`` with one weight row an expert."""
    found = [
        module
        for name, module in model.named_modules()
        if name.rsplit(".", 1)[-1] == "gate" and getattr(module, "weight", None) is not None
    ]
    return [m for m in found if m.weight.dim() == 2 and m.weight.shape[0] == experts]


def impose_routing(model: torch.nn.Module, routing: Routing, experts: int) -> None:
    """Make row ``r`` (whose token id is ``r``) choose ``routing.experts[layer][r]``, by weights alone.

    Token ``r``'s embedding carries ``CODE`` in hidden dimension ``r``. It outweighs every layer's
    contribution, so it is in each normalised hidden state; each router's column ``r`` ranks the wanted
    experts. Both arms run the same weights, and no kernel is added.
    """
    gates = routers(model, experts)
    if len(gates) != len(routing.experts):
        raise ForkError(f"{len(gates)} routers found, routing drawn for {len(routing.experts)} layers")
    rows = len(routing.experts[0])
    embedding = backbone(model).embed_tokens.weight
    with torch.no_grad():
        embedding[:, :rows] = 0
        for row in range(rows):
            embedding[row, row] = CODE
        for gate, chosen in zip(gates, routing.experts, strict=True):
            gate.weight[:, :rows] = 0
            for row, wanted in enumerate(chosen):
                for rank, expert in enumerate(wanted):
                    gate.weight[expert, row] = 2.0 - rank / len(wanted)
            bias = getattr(gate, "e_score_correction_bias", None)
            if bias is not None:
                bias.zero_()


def check_routing(gate_outputs: Sequence[torch.Tensor], routing: Routing) -> None:
    """Raise ``ForkError`` when the routers' outputs (``[rows, experts]`` a layer) do not choose what was
    drawn.
    """
    for layer, (logits, chosen) in enumerate(zip(gate_outputs, routing.experts, strict=True)):
        top_k = len(chosen[0])
        for row, wanted in enumerate(chosen):
            got = set(torch.topk(logits[row].float(), top_k).indices.tolist())
            if got != set(wanted):
                raise ForkError(
                    f"layer {layer}, row {row}: the router chose {sorted(got)}, drawn was {sorted(wanted)}",
                    "the row's code no longer dominates its hidden state; report the model",
                    code=1,
                )
