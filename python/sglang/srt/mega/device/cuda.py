# SPDX-License-Identifier: Apache-2.0
"""The CUDA device: loads cubins and launches them through the driver on torch's current stream.

Launches go through cuLaunchKernelEx and are captured by torch CUDA graphs like any other. Everything is
loaded when a kernel is made, so that a step loads, compiles and allocates nothing.
"""

from __future__ import annotations

import ctypes
from functools import cache

import torch
from cuda.bindings import driver

from sglang.srt.mega.device import cute_compile
from sglang.srt.mega.device.cubin_cache import CubinCache
from sglang.srt.mega.device.cuda_compile import load_cubin
from sglang.srt.mega.device.spec import KernelSpec, LaunchConfig

STATIC_SHARED_LIMIT = 48 * 1024
# Percent of a multiprocessor's L1 that every kernel asks to have as shared memory (None: the driver chooses).
# A multiprocessor changes its split only when it is idle, so kernels of one chain that ask for different
# splits are never resident together, and PDL has nothing to overlap; too large a share leaves loads in
# flight no L1 to land in. Measured on an H200: test/bench/LAB.md.
CARVEOUT: int | None = 58

Argument = torch.Tensor | int | float | None | ctypes._SimpleCData


class CudaError(RuntimeError):
    """A driver call failed; the message names the call's purpose and the driver's error."""


@cache
def architecture(device: torch.device) -> str:
    """The target that this GPU runs, such as ``sm_90a``."""
    major, minor = torch.cuda.get_device_capability(device)
    return f"sm_{major}{minor}a"


@cache
def default_cache() -> CubinCache:
    return CubinCache()


class CudaKernel:
    """A loaded kernel. ``launch`` arguments are tensors (passed as pointers), ``None`` (a null pointer),
    ``int`` (32 bits), ``float`` (fp32) or a ctypes scalar for any other width.
    """

    def __init__(self, spec: KernelSpec, device: torch.device, cubins: CubinCache | None = None) -> None:
        self.spec = spec
        self._image = load_cubin(spec, architecture(device), cubins or default_cache())
        with torch.cuda.device(device):
            torch.zeros(1, device=device)  # a context, before the driver is asked to load into it
            self._library = _check("load", driver.cuLibraryLoadData(self._image, [], [], 0, [], [], 0))
        symbol = cute_compile.symbol_of(self._image, spec.entry) if cute_compile.is_cute(spec) else spec.entry
        kernel = _check("find", driver.cuLibraryGetKernel(self._library, symbol.encode()))
        self._function = driver.CUfunction(int(kernel))
        self._kernel = kernel
        self._device = driver.CUdevice(torch.cuda.current_device() if device.index is None else device.index)
        self._shared_bytes = STATIC_SHARED_LIMIT
        if CARVEOUT is not None:
            split = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT
            self._set(split, CARVEOUT)

    def launch(self, config: LaunchConfig, *arguments: Argument) -> None:
        if config.shared_bytes > self._shared_bytes:
            self._raise_shared_limit(config.shared_bytes)
        launch = driver.CUlaunchConfig()
        launch.gridDimX, launch.gridDimY, launch.gridDimZ = config.grid
        launch.blockDimX, launch.blockDimY, launch.blockDimZ = config.block, 1, 1
        launch.sharedMemBytes = config.shared_bytes
        launch.hStream = torch.cuda.current_stream().cuda_stream
        attributes = _attributes(config)
        if attributes:
            launch.attrs, launch.numAttrs = attributes, len(attributes)
        values, types = zip(*(_argument(argument) for argument in arguments), strict=True)
        _check(self.spec.entry, driver.cuLaunchKernelEx(launch, self._function, (values, types), 0))

    def _raise_shared_limit(self, shared_bytes: int) -> None:
        self._set(driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, shared_bytes)
        self._shared_bytes = shared_bytes

    def _set(self, attribute: driver.CUfunction_attribute, value: int) -> None:
        _check("shared memory", driver.cuKernelSetAttribute(attribute, value, self._kernel, self._device))


def _attributes(config: LaunchConfig) -> list[driver.CUlaunchAttribute]:
    kinds = driver.CUlaunchAttributeID
    attributes = []
    if config.pdl:
        value = driver.CUlaunchAttributeValue()
        value.programmaticStreamSerializationAllowed = 1
        attributes.append(_attribute(kinds.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION, value))
    if config.cluster > 1:
        value = driver.CUlaunchAttributeValue()
        value.clusterDim.x, value.clusterDim.y, value.clusterDim.z = config.cluster, 1, 1
        attributes.append(_attribute(kinds.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, value))
    if config.cooperative:
        value = driver.CUlaunchAttributeValue()
        value.cooperative = 1
        attributes.append(_attribute(kinds.CU_LAUNCH_ATTRIBUTE_COOPERATIVE, value))
    return attributes


def _attribute(
    kind: driver.CUlaunchAttributeID, value: driver.CUlaunchAttributeValue
) -> driver.CUlaunchAttribute:
    attribute = driver.CUlaunchAttribute()
    attribute.id = kind
    attribute.value = value
    return attribute


def _argument(argument: Argument) -> tuple[object, type]:
    if isinstance(argument, torch.Tensor):
        return argument.data_ptr(), ctypes.c_void_p
    if argument is None:
        return 0, ctypes.c_void_p
    if isinstance(argument, bool) or not isinstance(argument, int | float | ctypes._SimpleCData):
        raise TypeError(f"no kernel argument: {argument!r}")
    if isinstance(argument, int):
        return argument, ctypes.c_int
    if isinstance(argument, float):
        return argument, ctypes.c_float
    return argument.value, type(argument)


def _check(purpose: str, result: tuple):  # type: ignore[no-untyped-def]
    status, *values = result
    if status != driver.CUresult.CUDA_SUCCESS:
        name = driver.cuGetErrorString(status)[1]
        raise CudaError(f"{purpose}: {name.decode() if name else status}")
    return values[0] if len(values) == 1 else values
