# SPDX-License-Identifier: Apache-2.0
"""The emulated device: the same kernel sources on CPU tensors, CUDA threads as fibers of one process.

A launch runs at once and returns when the kernel is done, like a synchronous CUDA stream. Within
``Emulator.together()`` launches only queue; they run together when the block ends, so that several ranks,
or a kernel and its programmatic dependent, are alive at the same time under the schedule asked for.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from enum import IntEnum
from functools import cache

import torch

from sglang.srt.mega.device.emulator_build import kernel_library, runtime_library
from sglang.srt.mega.device.spec import KernelSpec, LaunchConfig

Argument = torch.Tensor | int | float | None | ctypes._SimpleCData | ctypes.Structure


class EmulatorError(RuntimeError):
    """A run did not finish; the message is the emulator's report."""


class KernelFault(EmulatorError):
    """A kernel faulted on purpose, as a store to address 0x0 does on a GPU; its rank stopped there."""


class Deadlock(EmulatorError):
    """Nothing can move: the report names rank, block, threads and what they wait for."""


class Misuse(EmulatorError):
    """A kernel broke a rule of the programming model."""


class When(IntEnum):
    """When the emulator performs something that the hardware may do early or late."""

    EARLY = 0
    LATE = 1
    RANDOM = 2


@dataclass(frozen=True)
class Schedule:
    """How threads interleave. The default is the fast one: first come, first served, everything early.

    ``preempt_one_in``: at a visible memory operation, give way with probability 1/n (0: never).
    ``copies``, ``stores``: when asynchronous copies are performed, and when stores without an order of their
    own become visible. ``starve_*``: threads that match all given values run only when nothing else can move.
    ``ahead_rank``: this rank runs as far ahead as it can. ``resident_blocks``: blocks of a grid that are
    resident at a time (0: all); ``admit_on_stall`` lets in more when nothing can move.
    """

    seed: int = 0
    random_order: bool = False
    preempt_one_in: int = 0
    copies: When = When.EARLY
    stores: When = When.EARLY
    starve_rank: int = -1
    starve_block: int = -1
    starve_warp: int = -1
    ahead_rank: int = -1
    resident_blocks: int = 0
    admit_on_stall: bool = True
    switch_limit: int = 0

    @classmethod
    def seeded(cls, seed: int, **changes: int) -> Schedule:
        """Random order, preemption, and random moments for copies and stores."""
        values = {"random_order": True, "preempt_one_in": 4, "copies": When.RANDOM, "stores": When.RANDOM}
        return cls(seed=seed, **{**values, **changes})

    @classmethod
    def late(cls, **changes: int) -> Schedule:
        """First come, first served, with copies and stores as late as they may be."""
        return cls(**{"copies": When.LATE, "stores": When.LATE, **changes})


FAST = Schedule(resident_blocks=1)


class _Schedule(ctypes.Structure):
    _fields_ = (
        ("seed", ctypes.c_uint64),
        *((name, ctypes.c_int32) for name in list(Schedule.__dataclass_fields__)[1:-1]),
        ("switch_limit", ctypes.c_int64),
    )


class _Request(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("entry", ctypes.c_void_p),
        ("rank", ctypes.c_int32),
        ("stream", ctypes.c_int32),
        ("grid", ctypes.c_uint32 * 3),
        ("block", ctypes.c_uint32 * 3),
        ("cluster", ctypes.c_uint32),
        ("shared_bytes", ctypes.c_uint32),
        ("pdl", ctypes.c_int32),
        ("cooperative", ctypes.c_int32),
        ("arguments", ctypes.c_uint32),
        ("values", ctypes.POINTER(ctypes.c_void_p)),
        ("sizes", ctypes.POINTER(ctypes.c_uint32)),
    )


@cache
def _runtime() -> ctypes.CDLL:
    # Global: kernel libraries find the emulator's operations here.
    library = ctypes.CDLL(str(runtime_library()), mode=ctypes.RTLD_GLOBAL)
    library.emulator_report.restype = ctypes.c_char_p
    library.emulator_switches.restype = ctypes.c_uint64
    return library


class Emulator:
    """The machine that runs launches. One a process: ``emulator()``."""

    def __init__(self) -> None:
        self._runtime = _runtime()
        self._schedule = FAST
        self._queueing = False
        self._kept: list[object] = []
        self.rank = 0
        self.stream = 0
        self._configure(FAST)

    @contextmanager
    def on_rank(self, rank: int, stream: int = 0) -> Iterator[None]:
        """Launches of the block go to this rank and stream; a rank stands for one GPU of a group."""
        before = self.rank, self.stream
        self.rank, self.stream = rank, stream
        try:
            yield
        finally:
            self.rank, self.stream = before

    @property
    def switches(self) -> int:
        """Thread switches since the process started: the emulator's unit of work."""
        return int(self._runtime.emulator_switches())

    @contextmanager
    def together(self, schedule: Schedule = FAST) -> Iterator[None]:
        """Queues the launches of the block and runs them together under ``schedule`` when it ends.

        Raises KernelFault, Deadlock or Misuse with the emulator's report.
        """
        if self._queueing:
            raise RuntimeError("Emulator.together() does not nest")
        self._queueing = True
        self._configure(schedule)
        try:
            yield
            self._run()
        finally:
            self._queueing = False
            self._kept.clear()
            self._configure(FAST)

    def name_memory(self, tensor: torch.Tensor, name: str) -> None:
        """Reports call addresses inside this tensor by ``name`` from now on."""
        size = tensor.numel() * tensor.element_size()
        self._runtime.emulator_name_memory(
            ctypes.c_void_p(tensor.data_ptr()), ctypes.c_uint64(size), name.encode()
        )

    def forget_memory(self) -> None:
        self._runtime.emulator_forget_memory()

    def submit(self, request: _Request, keep: object) -> None:
        """Runs one launch, or queues it within ``together``."""
        self._kept.append(keep)
        self._runtime.emulator_enqueue(ctypes.byref(request))
        if not self._queueing:
            try:
                self._run()
            finally:
                self._kept.clear()

    def _configure(self, schedule: Schedule) -> None:
        self._runtime.emulator_configure(ctypes.byref(_Schedule(**asdict(schedule))))

    def _run(self) -> None:
        outcome = self._runtime.emulator_run()
        if outcome:
            error = {1: KernelFault, 2: Deadlock, 3: Misuse}.get(outcome, EmulatorError)
            raise error(self._runtime.emulator_report().decode(errors="replace"))


@cache
def emulator() -> Emulator:
    """The process's emulator."""
    return Emulator()


class EmulatedKernel:
    """A kernel compiled with g++, with the interface of ``CudaKernel``."""

    def __init__(self, spec: KernelSpec) -> None:
        self.spec = spec
        self._emulator = emulator()
        library = ctypes.CDLL(str(kernel_library(spec)))
        library.emulator_signature.restype = ctypes.c_char_p
        self._library = library
        self._entry = ctypes.cast(library.emulator_enter, ctypes.c_void_p).value
        self._name = spec.entry.encode()
        self._parameters = [
            (item[0], int(item[1:])) for item in library.emulator_signature().decode().split()
        ]

    def launch(self, config: LaunchConfig, *arguments: Argument) -> None:
        """Launches on the emulator's current rank and stream. Arguments as for ``CudaKernel``."""
        values = self._convert(arguments)
        count = len(values)
        addresses = (ctypes.c_void_p * count)(*(ctypes.addressof(value) for value in values))
        sizes = (ctypes.c_uint32 * count)(*(ctypes.sizeof(value) for value in values))
        request = _Request(
            self._name,
            self._entry,
            self._emulator.rank,
            self._emulator.stream,
            config.grid,
            (config.block, 1, 1),
            config.cluster,
            config.shared_bytes,
            config.pdl,
            config.cooperative,
            count,
            addresses,
            sizes,
        )
        self._emulator.submit(request, (arguments, self))

    def _convert(self, arguments: tuple[Argument, ...]) -> list[ctypes._SimpleCData | ctypes.Structure]:
        if len(arguments) != len(self._parameters):
            raise TypeError(
                f"{self.spec.label} takes {len(self._parameters)} arguments, {len(arguments)} were given"
            )
        values = [_value(argument) for argument in arguments]
        for index, (value, (kind, size)) in enumerate(zip(values, self._parameters, strict=True)):
            if _kind(value) != kind or ctypes.sizeof(value) != size:
                raise TypeError(
                    f"{self.spec.label}: argument {index} is {arguments[index]!r}, "
                    f"the kernel takes kind {kind!r} of {size} bytes there"
                )
        return values


def _value(argument: Argument) -> ctypes._SimpleCData | ctypes.Structure:
    if isinstance(argument, torch.Tensor):
        if argument.device.type != "cpu":
            raise TypeError(f"the emulator runs on CPU tensors, not on {argument.device}")
        return ctypes.c_void_p(argument.data_ptr())
    if argument is None:
        return ctypes.c_void_p(0)
    if isinstance(argument, ctypes._SimpleCData | ctypes.Structure):
        return argument
    if isinstance(argument, bool) or not isinstance(argument, int | float):
        raise TypeError(f"no kernel argument: {argument!r}")
    return ctypes.c_int(argument) if isinstance(argument, int) else ctypes.c_float(argument)


def _kind(value: ctypes._SimpleCData | ctypes.Structure) -> str:
    if isinstance(value, ctypes.Structure):
        return "s"
    if isinstance(value, ctypes.c_void_p):
        return "p"
    return "f" if isinstance(value, ctypes.c_float | ctypes.c_double) else "i"
