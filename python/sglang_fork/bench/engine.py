# SPDX-License-Identifier: Apache-2.0
"""SGLang's model runner in this process, on a slice with dummy weights, and its decode graphs captured once
an arm.

A served SGLang runs its scheduler in another process, where a benchmark cannot replay graphs. This builds the
same ``ModelRunner`` as ``sglang.benchmark.one_batch`` does, then captures every arm of a step as a variant of
the same graph runner: same static buffers, same memory pool, same metadata.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from sglang_fork.bench.routing import Routing
from sglang_fork.bench.slot_lists import slot_lists
from sglang_fork.errors import ForkError

SGLANG_READS = {
    "sig srt/models/deepseek_v4.py::MqaAttentionBase._kernel_num_heads",
    "body srt/models/deepseek_v4.py::MqaAttentionBase._local_attn_sink",
    "sig srt/layers/quantization/marlin_utils_fp4.py::_repack_moe_fp4_weight_for_marlin",
    "sig srt/layers/quantization/marlin_utils_fp4.py::_permute_moe_fp4_scales_for_marlin",
    "sig benchmark/one_batch.py::load_model",
    "body srt/model_executor/runner/decode_cuda_graph_runner.py::DecodeCudaGraphRunner._capture_one_stream",
    "sig srt/model_executor/runner/decode_cuda_graph_runner.py::DecodeCudaGraphRunner.capture_one_shape",
    "sig srt/model_executor/runner/decode_cuda_graph_runner.py::DecodeCudaGraphRunner.capture_prepare",
    "sig srt/model_executor/runner/decode_cuda_graph_runner.py::DecodeCudaGraphRunner.load_batch",
}

FULL, LAYERS, CHECK = "full", "layers", "check"


class Weights:
    """Keeps one dummy model between runners, so that several modes of one slice load it once."""

    def __init__(self) -> None:
        self._config = ""
        self._model: torch.nn.Module | None = None

    def install(self) -> None:
        """Make SGLang's dummy loader return the kept model where the configuration is the same."""
        from sglang.srt.model_loader import loader

        load, finish = loader.DummyModelLoader.load_model, loader.post_load_weights

        def load_once(self_: Any, *, model_config: Any, device_config: Any) -> torch.nn.Module:
            config = model_config.hf_config.to_json_string()
            if self._model is None or config != self._config:
                self._model = None
                torch.cuda.empty_cache()
                self._model = load(self_, model_config=model_config, device_config=device_config)
                self._config = config
            _without_megakernel(self._model)
            return self._model

        one_expert_repacked()

        def finish_all(model: torch.nn.Module) -> None:
            settle(model)
            pad_heads(model)
            finish(model)

        loader.DummyModelLoader.load_model = load_once
        loader.post_load_weights = finish_all


# Block scales of 2**-12 (E8M0 and float), or 1 with a global 2**-12, keep what quantised layers add finite
# and far below the rows' codes.
SMALL = 2.0**-12
SMALL_E8M0 = 115
SCALE = re.compile(r"(^|_)(weight_scale|input_scale|k_scale|v_scale)")


def settle(model: torch.nn.Module) -> None:
    """Give a dummy model values that a forward can use: SGLang's own leave packed weights as allocated and
    draw scales, and norms' weights, that may be negative. Norms that add 1 to their weight need nothing."""
    for module in model.modules():
        kind = type(module).__name__
        weight = getattr(module, "weight", None)
        if "Norm" in kind and "Gemma" not in kind and isinstance(weight, torch.Tensor):
            weight.data.fill_(1.0)
    for name, tensor in model.state_dict().items():
        leaf = name.rsplit(".", 1)[-1]
        scale = SCALE.search(leaf)
        if tensor.dtype == torch.float8_e8m0fnu:
            tensor.view(torch.uint8).fill_(SMALL_E8M0)
        elif tensor.dtype in (torch.uint8, torch.int8):
            if scale:
                tensor.fill_(SMALL_E8M0)
            else:
                tensor.view(torch.uint8).random_(0, 256)
        elif scale and (tensor.dtype == torch.float8_e4m3fn or scale[2] != "weight_scale"):
            tensor.fill_(1.0)
        elif scale:
            tensor.fill_(SMALL)
        elif tensor.dtype == torch.float8_e4m3fn:
            for part in tensor.view(-1).split(1 << 28):
                part.copy_(torch.empty_like(part, dtype=torch.bfloat16).uniform_(-1, 1))


def _without_megakernel(model: torch.nn.Module) -> None:
    """Leave the model as loaded: a megakernel is bound to one runner's pools."""
    for name in ("_megakernel_dispatch", "_megakernel", "forward"):
        model.__dict__.pop(name, None)


def one_expert_repacked() -> None:
    """Let Marlin's repacking of dummy experts do the first one and copy it: one by one takes a minute."""
    from sglang.srt.layers.quantization import marlin_utils_fp4 as marlin

    def first_for_all(repack: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        def repacked(tensor: torch.Tensor, *, num_experts: int, **shape: Any) -> torch.Tensor:
            one = repack(tensor[:1], num_experts=1, **shape)
            return one.expand(num_experts, *one.shape[1:]).contiguous()

        return repacked

    for name in ("_repack_moe_fp4_weight_for_marlin", "_permute_moe_fp4_scales_for_marlin"):
        setattr(marlin, name, first_for_all(getattr(marlin, name)))


# FlashMLA's sparse decode takes 64 or 128 query heads.
FLASHMLA_HEADS = 64


def pad_heads(model: torch.nn.Module) -> None:
    """DeepSeek-V4.1 pads a rank's heads for FlashMLA only where there are several ranks; a slice is one of
    several."""
    for module in model.modules():
        if hasattr(module, "_kernel_num_heads") and module.n_local_heads < FLASHMLA_HEADS:
            sink = module.attn_sink.data.new_zeros(FLASHMLA_HEADS)
            sink[: module.n_local_heads] = module.attn_sink.data
            module._kernel_num_heads = lambda rows: FLASHMLA_HEADS
            module._local_attn_sink = lambda heads=None, sink=sink: sink


def without_tokenizer(config: Any) -> None:
    """DeepSeek-V4.1's Engram folds the tokenizer's vocabulary; a slice has none and gets a stand-in of the
    same size."""
    size = getattr(config, "engram_compressed_vocab_size", 0)
    if not size:
        return
    from sglang.srt.layers import engram

    folded = [token % size for token in range(config.vocab_size)]
    engram.get_tokenizer = lambda *args, **kwargs: None
    engram.build_compressed_token_map = lambda tokenizer: (folded, size)


def start(arguments: Mapping[str, Any]) -> Any:
    """A ``ModelRunner`` for these server arguments: weights loaded, pools and attention backends made, no
    graphs. A later call in the same process replaces the published arguments.
    """
    from sglang.benchmark import one_batch
    from sglang.srt.configs.hybrid_arch import mambaish_config
    from sglang.srt.configs.model_config import ModelConfig
    from sglang.srt.distributed import bootstrap
    from sglang.srt.entrypoints.engine import _set_envs_and_config
    from sglang.srt.model_executor.model_runner import ModelRunner
    from sglang.srt.runtime_context import get_device
    from sglang.srt.server_args import PortArgs, ServerArgs

    server_args = ServerArgs(**arguments)
    server_args.resolve_once()
    _set_envs_and_config(server_args)
    ports = PortArgs.init_new(server_args)
    _publish(server_args)
    one_batch._init_process_global_configs()
    config = ModelConfig.from_server_args(server_args)
    without_tokenizer(config.hf_text_config)
    if not torch.distributed.is_initialized():
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


def _publish(server_args: Any) -> None:
    from sglang.srt.runtime_context import SpawnRanks, get_resources, publish, spawn_world_rank

    ranks = SpawnRanks(world_rank=spawn_world_rank(server_args, tp_rank=0, pp_rank=0), gpu_id=0)
    publish(server_args, role="scheduler", ranks=ranks)
    # A process publishes these once, and refuses a second runner's.
    resources = get_resources()
    resources.expert_location_metadata = resources.expert_distribution_recorder = None


def activate(runner: Any) -> None:
    """Make ``runner``'s arguments this process's again, after another runner was started."""
    _publish(runner.server_args)


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
    from sglang.srt.layers.layer_boundary.adapters.attention import get_attn_tp_context

    inner, built = backbone(model), model.__dict__.get("_megakernel")
    asked = inspect.signature(inner.forward).parameters.get("input_embeds")
    embeds = {} if asked is None or asked.default is None else {"input_embeds": None}

    def stock(input_ids: Any, positions: Any, forward_batch: Any) -> Any:
        if getattr(model, "is_mrope_enabled", False):
            positions = forward_batch.mrope_positions
        with get_attn_tp_context().maybe_input_scattered(forward_batch):
            return inner(input_ids, positions, forward_batch, **embeds)

    def mega(input_ids: Any, positions: Any, forward_batch: Any) -> Any:
        step = built.plan(input_ids, forward_batch)
        if step is None:
            return stock(input_ids, positions, forward_batch)
        return built.forward(step, stock, input_ids, positions, forward_batch)

    if arm == "stock":
        return stock
    _, _, listed = arm.partition(":")
    return _with_slots(built, listed.split(","), mega) if listed else mega


def arms_of(model: torch.nn.Module, lists: str = "") -> dict[str, Callable[..., Any]]:
    """Forwards by arm: ``stock`` always, ``mega`` when a megakernel is installed on the model; with ``lists``
    (see ``slot_lists``) also ``mega:SLOTS`` for parts of its slots."""
    dispatch = model.__dict__.get("_megakernel_dispatch")
    if dispatch is None:
        return {"stock": model.forward}
    arms = {"stock": dispatch.original, "mega": model.forward}
    built = model.__dict__["_megakernel"]
    needs = {name: slot.needs for name, slot in built.slots.items()}
    for listed in slot_lists(needs, _bound(built), lists):
        arms[f"mega:{','.join(listed)}"] = _with_slots(built, listed, model.forward)
    return arms


def _bound(built: Any) -> list[str]:
    """The slots that run a kernel at some width, in table order."""
    names = {slot for kernels in built.kernels_by_width.values() for slot, _ in kernels}
    return [slot for slot in built.slots if slot in names]


def _with_slots(built: Any, listed: Sequence[str], forward: Callable[..., Any]) -> Callable[..., Any]:
    """``forward`` as if the megakernel had only the ``listed`` slots."""

    def limited(*args: Any, **kwargs: Any) -> Any:
        whole = built.kernels_by_width
        built.kernels_by_width = {
            rows: {key: kernel for key, kernel in kernels.items() if key[0] in listed}
            for rows, kernels in whole.items()
        }
        try:
            return forward(*args, **kwargs)
        finally:
            built.kernels_by_width = whole

    return limited


def capture(runner: Any, arms: Mapping[str, Callable[..., Any]]) -> tuple[Any, dict[int, list[torch.Tensor]]]:
    """Capture every arm of every batch size, layers with head and layers alone.

    The graph of ``arm`` at a batch size has the variant label ``arm:full`` or ``arm:layers``. One more,
    ``stock:check``, is never timed: its replay leaves the experts that each MoE layer ran in tensors. Returns
    the graph runner and those tensors by batch size.
    """
    from sglang.srt.model_executor.runner.decode_cuda_graph_runner import DecodeCudaGraphRunner

    alone = {arm: layers_forward(runner.model, arm) for arm in arms}
    chosen: dict[int, list[torch.Tensor]] = {}

    def checked(size: int) -> Callable[..., Any]:
        kept = chosen.setdefault(size, [])
        stock = layers_forward(runner.model, "stock")
        return lambda *args: chosen_experts(runner.model, lambda: stock(*args), kept)

    def capture_arms(self: Any, stream_idx: int | None = None) -> None:
        for size in reversed(self.capture_bs):
            self.capture_one_shape(size, checked(size), stream_idx, f"stock:{CHECK}")
            for arm, forward in arms.items():
                self.capture_one_shape(size, forward, stream_idx, f"{arm}:{FULL}")
                self.capture_one_shape(size, alone[arm], stream_idx, f"{arm}:{LAYERS}")

    stock_capture = DecodeCudaGraphRunner._capture_one_stream
    DecodeCudaGraphRunner._capture_one_stream = capture_arms
    try:
        runner.init_cuda_graphs()
    finally:
        DecodeCudaGraphRunner._capture_one_stream = stock_capture
    return runner.decode_cuda_graph_runner, chosen


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
    _map_window(runner, page + requests * span)
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


def _map_window(runner: Any, rows: int) -> None:
    """Give the first ``rows`` KV rows places in a sliding-window pool, where the runner has one."""
    allocator = runner.token_to_kv_pool_allocator
    mapping = getattr(allocator, "full_to_swa_index_mapping", None)
    size = int(getattr(allocator, "size_swa", 0) or 0)
    if mapping is None or getattr(allocator, "swa_req_ring", False) or size <= 0:
        return
    page = max(1, runner.page_size)
    used = torch.arange(page, min(rows, mapping.numel() - 1), device=mapping.device)
    mapping[used] = page + (used - page) % max(page, size - page)


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


def expert_layers(model: torch.nn.Module) -> list[torch.nn.Module]:
    """The routed experts' modules in layer order."""
    return [module for name, module in model.named_modules() if name.endswith(".experts")]


def chosen_experts(
    model: torch.nn.Module, step: Callable[[], object], kept: list[torch.Tensor] | None = None
) -> list[torch.Tensor]:
    """The experts' ids (``[rows, choices]`` a MoE layer, in layer order) that one ``step`` hands to its
    experts. ``kept``, from an earlier call, is written in place, so that a captured step can do it."""
    chosen: list[torch.Tensor] = []

    def note(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        routed: Any = kwargs.get("topk_output", args[1] if len(args) > 1 else None)
        ids = getattr(routed, "topk_ids", None)
        if ids is None:
            ids = torch.topk(routed.router_logits.float(), routed.topk_config.top_k).indices
        if kept:
            kept[len(chosen)].copy_(ids)
        chosen.append(kept[len(chosen)] if kept else ids.clone())

    hooks = [module.register_forward_pre_hook(note, with_kwargs=True) for module in expert_layers(model)]
    try:
        step()
    finally:
        for hook in hooks:
            hook.remove()
    if kept is not None and not kept:
        kept.extend(chosen)
    return chosen


def routing_of(chosen: Sequence[torch.Tensor], experts: int) -> Routing:
    """What the routers chose, as a ``Routing`` of the case ``own``."""
    rows = [ids.tolist() for ids in chosen]
    return Routing(
        "own", 0, tuple(tuple(tuple(e for e in row if e < experts) for row in layer) for layer in rows)
    )


def check_routing(chosen: Sequence[torch.Tensor], routing: Routing, experts: int) -> None:
    """Raise ``ForkError`` when a step's choices are not those that were drawn. Ids from ``experts`` on are
    shared experts that SGLang fuses into the routed ones."""
    if len(chosen) != len(routing.experts):
        raise ForkError(f"{len(chosen)} MoE layers ran, routing drawn for {len(routing.experts)}", code=1)
    for layer, (ids, drawn) in enumerate(zip(chosen, routing.experts, strict=True)):
        for row, wanted in enumerate(drawn):
            got = {expert for expert in ids[row].tolist() if expert < experts}
            if got != set(wanted):
                raise ForkError(
                    f"layer {layer}, row {row}: the router chose {sorted(got)}, drawn was {sorted(wanted)}",
                    "the row's code no longer dominates its hidden state; report the model",
                    code=1,
                )
