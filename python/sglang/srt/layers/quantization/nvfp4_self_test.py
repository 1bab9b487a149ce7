# SPDX-License-Identifier: Apache-2.0
"""Start-up self-test of NVFP4 GEMMs: a product against its dequantised twin, before the first request.

The loader wraps each layer's ``process_weights_after_loading``. Before it, the checkpoint's own tensors are
read; after it, the layer runs once on random rows, and the result is compared with ``x @
dequantize(weight).T`` in float32. One layer of each signature (kind, backend, shape) is run, and every
layer whose fused shards disagree about their global scale. A wrong or all-zero product stops the server:
CUTLASS FP4 on compute capability 12.1 returns zeros or NaN and reports success.

The same runs are the FP4 pre-warm: they load and, where needed, compile each kernel at every row count of
``WARM_ROWS``, so that no request pays for it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from sglang.srt.arg_groups import nvfp4_capability
from sglang.srt.environ import envs
from sglang.srt.layers.moe import marlin_activation
from sglang.srt.layers.quantization import nvfp4_numerics

logger = logging.getLogger(__name__)

WARM_ROWS = (1, 2, 4, 8, 16, 64)
TEST_ROWS = 3
MAX_REFERENCE_ROWS = 512
WEIGHT_ONLY_TOLERANCE = 0.02
QUANTIZED_ACTIVATION_TOLERANCE = 0.30

_WAY_OUT = (
    "Choose another backend (--fp4-gemm-backend, --moe-runner-backend; marlin runs on 8.0 and newer). "
    "SGLANG_NVFP4_SELF_TEST=0 serves without this check."
)


class Nvfp4SelfTestError(RuntimeError):
    """An NVFP4 layer's kernel does not compute its checkpoint's product."""


@dataclass(frozen=True)
class _Weight:
    """Rows of one NVFP4 matrix as in the checkpoint: codes ``[N, K/2]``, scales ``[N, K/16]``, global
    ``[N]``.
    """

    packed: torch.Tensor
    block_scale: torch.Tensor
    global_scale: torch.Tensor

    def pick(self, index: torch.Tensor | int) -> _Weight:
        """A copy of some rows, or of one expert where the tensors carry an expert dimension."""
        packed, block_scale, global_scale = (
            self.packed[index],
            self.block_scale[index],
            self.global_scale[index],
        )
        return _Weight(packed.clone(), block_scale.clone(), global_scale.clone())

    def dequantize(self) -> torch.Tensor:
        return nvfp4_numerics.dequantize(self.packed, self.block_scale, self.global_scale.float()[:, None])


class _Probe:
    """What is kept of a layer between the two sides of ``process_weights_after_loading``.

    ``signature`` and ``must_run`` are known at once; ``capture`` copies the rows that the reference needs.
    """

    signature: tuple[Any, ...]
    must_run = False

    def capture(self) -> None:
        raise NotImplementedError

    def error(self, layer: torch.nn.Module, method: Any) -> tuple[float, bool] | None:
        """``(relative error, product is all zero)``, or None where the reference itself is zero."""
        raise NotImplementedError

    def warm(self, layer: torch.nn.Module, method: Any) -> None:
        raise NotImplementedError


def _first(layer: torch.nn.Module, *names: str) -> torch.Tensor | None:
    for name in names:
        value = getattr(layer, name, None)
        if isinstance(value, torch.Tensor):
            return value.data
    return None


def _is_nvfp4(packed: torch.Tensor | None, block_scale: torch.Tensor | None) -> bool:
    if packed is None or block_scale is None:
        return False
    return (
        packed.dtype == torch.uint8
        and block_scale.dtype == torch.float8_e4m3fn
        and packed.shape[-1] * 2 == block_scale.shape[-1] * nvfp4_numerics.GROUP
    )


def _global_scale(layer: torch.nn.Module, prefix: str = "") -> torch.Tensor | None:
    """The multiplier; compressed-tensors stores its reciprocal under another name."""
    multiplier = _first(layer, f"{prefix}weight_scale_2")
    if multiplier is not None:
        return multiplier.float()
    divisor = _first(layer, f"{prefix}weight_global_scale")
    return None if divisor is None else 1.0 / divisor.float()


def _refuse_bad_scales(name: str, block_scale: torch.Tensor) -> None:
    codes = block_scale.view(torch.uint8)
    if bool(((codes & 0x7F) == 0x7F).any()):
        raise Nvfp4SelfTestError(
            f"NVFP4 layer {name}: its block scales hold E4M3 NaN: the checkpoint is damaged"
        )
    if bool((codes > 0x80).any()):
        raise Nvfp4SelfTestError(
            f"NVFP4 layer {name}: its block scales hold negative values; the kernels would read them unsigned"
        )


def _spread(size: int, count: int) -> torch.Tensor:
    """``min(size, count)`` distinct indices over ``range(size)``, ascending, the ends included.

    Whole numbers only: the loader's default dtype is the model's, and BF16 has no 511.
    """
    picks = min(size, count)
    return torch.arange(picks) * (size - 1) // max(picks - 1, 1)


def _random(rows: int, columns: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    generator = torch.Generator().manual_seed(rows * 7919 + columns)
    return torch.randn(rows, columns, generator=generator, dtype=torch.float32).to(device=device, dtype=dtype)


def _relative_error(got: torch.Tensor, want: torch.Tensor) -> tuple[float, bool] | None:
    norm = want.norm()
    if norm == 0:
        return None
    got = got.float()
    return float((got - want).norm() / norm), not bool(got.any())


def _activation_dtype(layer: torch.nn.Module) -> torch.dtype:
    return getattr(layer, "params_dtype", None) or getattr(layer, "orig_dtype", None) or torch.bfloat16


class _DenseProbe(_Probe):
    def __init__(self, layer: torch.nn.Module, packed: torch.Tensor, block_scale: torch.Tensor):
        shards = _global_scale(layer)
        widths = list(getattr(layer, "logical_widths", None) or [packed.shape[0]])
        if shards is None:
            raise Nvfp4SelfTestError(f"NVFP4 layer {_name(layer)} has no global weight scale")
        shards = shards.reshape(-1)
        if shards.numel() == 1 or shards.numel() != len(widths):
            per_row = shards.max().expand(packed.shape[0])
        else:
            per_row = torch.repeat_interleave(shards, torch.tensor(widths, device=shards.device))
        self.must_run = bool((shards != shards[0]).any())
        self.source = _Weight(packed, block_scale, per_row.to(packed.device))
        self.columns = packed.shape[1] * 2
        self.signature = ("dense", packed.shape[0], self.columns, _activation_dtype(layer))
        # AWQ scales the input channels; the product to match is of the scaled input.
        self.input_scale = _first(layer, "pre_quant_scale")

    def capture(self) -> None:
        rows = self.source.packed.shape[0]
        device = self.source.packed.device
        self.rows = _spread(rows, MAX_REFERENCE_ROWS).to(device)
        self.weight = self.source.pick(self.rows)
        del self.source

    def _apply(self, layer: torch.nn.Module, method: Any, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
        x = _random(rows, self.columns, _activation_dtype(layer), self.weight.packed.device)
        return x, method.apply(layer, x.clone())

    def error(self, layer: torch.nn.Module, method: Any) -> tuple[float, bool] | None:
        x, got = self._apply(layer, method, TEST_ROWS)
        x = x.float() if self.input_scale is None else x.float() * self.input_scale.float()
        return _relative_error(got[:, self.rows], x @ self.weight.dequantize().T)

    def warm(self, layer: torch.nn.Module, method: Any) -> None:
        for rows in WARM_ROWS:
            self._apply(layer, method, rows)


class _MoeProbe(_Probe):
    """Both GEMMs, the activation, the router weights and the routed scale of ``top_k`` experts."""

    def __init__(self, layer: torch.nn.Module, method: Any, tensors: dict[str, torch.Tensor]):
        self.config = layer.moe_runner_config
        self.tensors = tensors
        self.device = tensors["w13"].device
        self.experts, rows, packed_columns = tensors["w13"].shape
        self.top_k = min(self.config.top_k or 1, self.experts)
        self.hidden = packed_columns * 2
        self.up_first = bool(getattr(method, "load_up_proj_weight_first", False))
        self.signature = (
            "moe",
            self.experts,
            rows,
            self.hidden,
            self.config.activation,
            _activation_dtype(layer),
        )
        shards = tensors["w13_global"].reshape(self.experts, -1)
        self.spread = (shards / shards[:, :1] - 1).abs().amax(dim=1)
        self.must_run = bool((self.spread > 0).any())

    def capture(self) -> None:
        if self.must_run:  # the experts whose gate and up disagree the most
            ids = self.spread.topk(self.top_k).indices.sort().values
        else:
            ids = _spread(self.experts, self.top_k)
        self.ids = ids.to(self.device)
        self.w13, self.w2 = self._pick("w13"), self._pick("w2")
        del self.tensors

    def _pick(self, name: str) -> list[_Weight]:
        packed = self.tensors[name]
        shards = self.tensors[f"{name}_global"].reshape(self.experts, -1)
        per_row = shards.repeat_interleave(packed.shape[1] // shards.shape[1], dim=1).to(self.device)
        weight = _Weight(packed, self.tensors[f"{name}_scale"], per_row)
        return [weight.pick(expert) for expert in self.ids.tolist()]

    def _route(self, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
        generator = torch.Generator().manual_seed(rows)
        weights = torch.softmax(
            torch.randn(rows, self.top_k, generator=generator, dtype=torch.float32), dim=-1
        )
        return weights.to(self.device), self.ids.to(torch.int32).repeat(rows, 1)

    def _apply(
        self, layer: torch.nn.Module, method: Any, rows: int
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        from sglang.srt.layers.moe.token_dispatcher.standard import StandardDispatchOutput
        from sglang.srt.layers.moe.topk import StandardTopKOutput

        x = _random(rows, self.hidden, _activation_dtype(layer), self.device)
        weights, ids = self._route(rows)
        logits = torch.zeros(rows, self.experts, device=self.device, dtype=torch.float32)
        dispatched = StandardDispatchOutput(x.clone(), None, StandardTopKOutput(weights, ids, logits))
        return x, weights, method.apply(layer, dispatched).hidden_states

    def error(self, layer: torch.nn.Module, method: Any) -> tuple[float, bool] | None:
        x, weights, got = self._apply(layer, method, TEST_ROWS)
        want = torch.zeros_like(x, dtype=torch.float32)
        for k in range(self.top_k):
            gate_up = x.float() @ self.w13[k].dequantize().T
            if self.up_first and self.config.is_gated:
                up, gate = gate_up.chunk(2, dim=-1)
                gate_up = torch.cat([gate, up], dim=-1)
            hidden = marlin_activation.reference(self.config, gate_up)
            want += weights[:, k, None] * (hidden @ self.w2[k].dequantize().T)
        if not getattr(layer, "should_fuse_routed_scaling_factor_in_topk", False):
            want *= self.config.routed_scaling_factor or 1.0
        return _relative_error(got, want)

    def warm(self, layer: torch.nn.Module, method: Any) -> None:
        for rows in WARM_ROWS:
            self._apply(layer, method, rows)


def _moe_tensors(layer: torch.nn.Module) -> dict[str, torch.Tensor] | None:
    tensors = {}
    for shard in ("w13", "w2"):
        packed = _first(layer, f"{shard}_weight_packed", f"{shard}_weight")
        scale = _first(layer, f"{shard}_weight_scale")
        global_scale = _global_scale(layer, f"{shard}_")
        if global_scale is None or not _is_nvfp4(packed, scale):
            return None
        assert packed is not None and scale is not None
        tensors |= {shard: packed, f"{shard}_scale": scale, f"{shard}_global": global_scale}
    return tensors


def _name(layer: torch.nn.Module) -> str:
    return str(getattr(layer, "prefix", None) or getattr(layer, "layer_name", None) or type(layer).__name__)


def _moe_backend(layer: torch.nn.Module, method: Any) -> str:
    backend = getattr(layer, "runner_backend", None) or getattr(method, "_moe_runner_backend", None)
    return str(getattr(backend, "value", backend))


# Runners that take their routing from the caller; trtllm-gen and MegaMoE route inside the kernel.
_TESTED_MOE_BACKENDS = ("marlin", "flashinfer_cutlass")


def _report(kind: nvfp4_capability.Layer, backend: str) -> None:
    if torch.cuda.is_available():
        nvfp4_capability.report(kind, backend, torch.cuda.get_device_capability())


def _dense_backend(layer: torch.nn.Module, method: Any) -> str:
    from sglang.srt.layers.quantization.fp4_utils import get_fp4_gemm_runner_backend

    scheme = type(getattr(layer, "scheme", method)).__name__
    if "A16" in scheme and not get_fp4_gemm_runner_backend().is_flashinfer():
        return "marlin"
    return get_fp4_gemm_runner_backend().value


def _probe(layer: torch.nn.Module, method: Any) -> _Probe | None:
    if getattr(layer, "moe_runner_config", None) is not None:
        tensors = _moe_tensors(layer)
        if tensors is None:
            return None
        for shard in ("w13", "w2"):
            _refuse_bad_scales(_name(layer), tensors[f"{shard}_scale"])
        backend = _moe_backend(layer, method)
        _report("moe", backend)
        reason = None
        if backend not in _TESTED_MOE_BACKENDS:
            reason = f"{backend} routes inside the kernel"
        elif getattr(getattr(layer, "dispatcher", None), "local_expert_mapping", None) is not None:
            reason = "expert parallelism"
        elif layer.moe_runner_config.gemm1_alpha is not None and layer.moe_runner_config.gate_up_interleaved:
            reason = "gate and up rows are interleaved"
        if reason is not None:
            _log_once(f"NVFP4 MoE self-test not run: {reason}")
            return None
        return _MoeProbe(layer, method, tensors)
    packed, block_scale = _first(layer, "weight_packed", "weight"), _first(layer, "weight_scale")
    if not _is_nvfp4(packed, block_scale) or _global_scale(layer) is None:
        return None
    assert packed is not None and block_scale is not None
    _refuse_bad_scales(_name(layer), block_scale)
    _report("dense", _dense_backend(layer, method))
    return _DenseProbe(layer, packed, block_scale)


_passed: set[tuple[Any, ...]] = set()
_logged: set[str] = set()


def _log_once(message: str) -> None:
    if message not in _logged:
        _logged.add(message)
        logger.info(message)


def reset() -> None:
    """Forget which signatures have passed (tests)."""
    _passed.clear()
    _logged.clear()


def _tolerance(layer: torch.nn.Module) -> float:
    weight = _first(layer, "weight", "w13_weight")
    repacked = weight is not None and weight.dtype == torch.int32
    weight_only = repacked or getattr(layer, "use_flashinfer_bf16_fp4", False)
    return WEIGHT_ONLY_TOLERANCE if weight_only else QUANTIZED_ACTIVATION_TOLERANCE


@contextmanager
def checked(layer: torch.nn.Module, method: Any) -> Iterator[None]:
    """Around one layer's ``process_weights_after_loading``: test its NVFP4 product afterwards.

    A layer that is not NVFP4, or whose signature has passed, costs one look at its parameters.

    Raises:
        Nvfp4SelfTestError: the product is wrong or all zero, or the checkpoint's scales are not ones a
        kernel reads.
    """
    if not envs.SGLANG_NVFP4_SELF_TEST.get():
        yield
        return
    probe = _probe(layer, method)
    if probe is None or (probe.signature in _passed and not probe.must_run):
        yield
        return
    probe.capture()
    yield
    started = time.perf_counter()
    result = probe.error(layer, method)
    if result is None:
        return
    error, all_zero = result
    tolerance = _tolerance(layer)
    if not error <= tolerance:  # a NaN fails too
        what = (
            "its product is all zero"
            if all_zero
            else f"its product is off by {error:.3g} (allowed: {tolerance})"
        )
        raise Nvfp4SelfTestError(f"NVFP4 self-test of {_name(layer)} {probe.signature}: {what}. {_WAY_OUT}")
    if probe.signature not in _passed:
        probe.warm(layer, method)
        _passed.add(probe.signature)
        logger.info(
            "NVFP4 self-test passed: %s, relative error %.2g; warmed at rows %s in %.2f s",
            probe.signature, error, ",".join(map(str, WARM_ROWS)), time.perf_counter() - started,
        )  # fmt: skip
