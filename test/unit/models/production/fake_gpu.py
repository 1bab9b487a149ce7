# SPDX-License-Identifier: Apache-2.0
"""Makes this process look like one with a given NVIDIA GPU to SGLang's probes. Nothing runs on it.

Import before SGLang. ``install("sm_103")`` replaces what torch.cuda says about devices. ``Redirect("meta")``
is a mode in which every tensor that is asked for on a CUDA device is made on another device instead.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.overrides import TorchFunctionMode


@dataclass(frozen=True)
class Card:
    name: str
    multiprocessors: int
    memory_gib: int
    shared_memory: int


# Streaming multiprocessors, memory and opt-in shared memory a block, as NVIDIA publishes them.
CARDS = {
    "sm_90": Card("NVIDIA H200", 132, 139, 232448),
    "sm_100": Card("NVIDIA B200", 148, 178, 232448),
    "sm_103": Card("NVIDIA GB300", 152, 277, 232448),
    "sm_121": Card("NVIDIA GB10", 48, 119, 101376),
}


class _Stream:
    """A stream or an event on which nothing happens."""

    cuda_stream = 0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        return

    def __call__(self, *args: Any, **kwargs: Any) -> _Stream:
        return self

    def wait_stream(self, *args: Any) -> None:
        return


def _always(value: Any) -> Callable[..., Any]:
    return lambda *args, **kwargs: value


def install(isa: str, count: int = 8) -> None:
    """Show ``count`` GPUs of an architecture to everything that asks torch.cuda from now on."""
    card = CARDS[isa]
    digits = isa.removeprefix("sm_")
    capability = (int(digits[:-1]), int(digits[-1]))
    total = card.memory_gib << 30
    properties = types.SimpleNamespace(
        name=card.name,
        major=capability[0],
        minor=capability[1],
        multi_processor_count=card.multiprocessors,
        total_memory=total,
        shared_memory_per_block_optin=card.shared_memory,
        shared_memory_per_multiprocessor=card.shared_memory + 1024,
        warp_size=32,
        L2_cache_size=50 << 20,
        uuid="00000000-0000-0000-0000-000000000000",
    )
    cuda = torch.cuda
    for name, value in {
        "is_available": True,
        "device_count": count,
        "current_device": 0,
        "get_device_capability": capability,
        "get_device_properties": properties,
        "get_device_name": card.name,
        "mem_get_info": (int(total * 0.97), total),
        "get_arch_list": [isa],
        "set_device": None,
        "_lazy_init": None,
        "is_current_stream_capturing": False,
        "current_stream": _Stream(),
    }.items():
        setattr(cuda, name, _always(value))
    cuda.Stream = cuda.Event = _Stream


class Redirect(TorchFunctionMode):
    """Makes tensors that are asked for on a CUDA device on ``target`` instead."""

    def __init__(self, target: str) -> None:
        super().__init__()
        self.target = target

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if "device" in kwargs and _is_cuda(kwargs["device"]):
            kwargs["device"] = self.target
        if function is torch.Tensor.cuda:
            return args[0]
        if function is torch.Tensor.to and len(args) > 1 and _is_cuda(args[1]):
            args = (args[0], self.target, *args[2:])
        return function(*args, **kwargs)


def _is_cuda(device: Any) -> bool:
    if isinstance(device, int) and not isinstance(device, bool):
        return True
    return isinstance(device, str | torch.device) and torch.device(device).type == "cuda"
