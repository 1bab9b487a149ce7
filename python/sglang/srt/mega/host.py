# SPDX-License-Identifier: Apache-2.0
"""What the megakernel binding asks about the device, answered with and without a GPU.

With ``SGLANG_MEGAKERNEL_EMULATE=1`` on a machine that has no GPU, the kernels run in the CPU emulator and the
ISA is ``EMULATED``: the whole path (spec, plan, dispatch, kernels) runs, slowly, for tests.
"""

from __future__ import annotations

import logging
import os

import torch

from sglang.srt.environ import envs
from sglang.srt.mega.device.spec import SHARED_LIMIT

logger = logging.getLogger(__name__)

EMULATED = "emulated"


def emulating() -> bool:
    """Whether kernels run in the CPU emulator. Raises ``RuntimeError`` when a GPU is visible: it would be
    ignored.
    """
    if not envs.SGLANG_MEGAKERNEL_EMULATE.get():
        return False
    if torch.cuda.is_available():
        raise RuntimeError("SGLANG_MEGAKERNEL_EMULATE=1 is for machines without a GPU; unset it here")
    return True


def device_isa() -> str | None:
    """The device's ISA as ``sm_<major><minor>``, ``EMULATED``, or None without a GPU."""
    if torch.cuda.is_available():
        props = torch.cuda.get_device_properties(torch.cuda.current_device())
        return f"sm_{props.major}{props.minor}"
    if emulating():
        _warn_once()
        return EMULATED
    return None


def free_bytes() -> int:
    """Free device memory; on a CPU, available memory of the machine."""
    if torch.cuda.is_available():
        return torch.cuda.mem_get_info()[0]
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def multiprocessors() -> int:
    """Streaming multiprocessors of the device; the emulator keeps any grid resident, so it has no limit."""
    if torch.cuda.is_available():
        return torch.cuda.get_device_properties(torch.cuda.current_device()).multi_processor_count
    return 1 << 20


def shared_bytes() -> int:
    """Shared memory that one block may have; the emulator has no limit, and runs the H200's forms."""
    if torch.cuda.is_available():
        return torch.cuda.get_device_properties(torch.cuda.current_device()).shared_memory_per_block_optin
    return SHARED_LIMIT["sm_90a"]


def capturing() -> bool:
    """Whether the current stream records a CUDA graph."""
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()


_warned = False


def _warn_once() -> None:
    global _warned
    if not _warned:
        _warned = True
        logger.warning(
            "SGLANG_MEGAKERNEL_EMULATE=1: megakernels run in the CPU emulator, for tests, not for serving"
        )
