# SPDX-License-Identifier: Apache-2.0
"""The emulator's number formats against torch and ml_dtypes: every rounding boundary, and NaNs."""

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import torch

from sglang.srt.mega.device.emulator import EmulatedKernel
from sglang.srt.mega.device.spec import KernelSpec, LaunchConfig

pytestmark = pytest.mark.kernels
SOURCE = str(Path(__file__).parent / "csrc" / "convert.cuh")
COUNT = 1 << 20


def converted(first: int, step: int) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """(the fp32 values, the codes of each format)."""

    def as_int(value: int) -> int:
        return int(np.uint32(value).view(np.int32))

    outs = {
        "e4m3": torch.zeros(COUNT, dtype=torch.uint8),
        "e5m2": torch.zeros(COUNT, dtype=torch.uint8),
        "bf16": torch.zeros(COUNT, dtype=torch.int16),
        "f16": torch.zeros(COUNT, dtype=torch.int16),
        "e2m1": torch.zeros(COUNT, dtype=torch.uint8),
    }
    kernel = EmulatedKernel(KernelSpec.of(SOURCE, "convert_floats", {}))
    kernel.launch(LaunchConfig((COUNT // 256, 1, 1), 256, pdl=False), as_int(first), step, *outs.values())
    bits = (np.uint64(first) + np.arange(COUNT, dtype=np.uint64) * np.uint64(step)).astype(np.uint32)
    return bits.view(np.float32), {name: tensor.numpy() for name, tensor in outs.items()}


# 4096 apart from zero: every bf16 and fp16 tie and its neighbours; offsets 1 and 4095 are just off the ties.
@pytest.mark.parametrize("first", [0, 1, 2047, 2048, 2049, 4095])
def test_every_rounding_boundary(first):
    values, codes = converted(first, 4096)
    check(values, codes)


@pytest.mark.parametrize(
    "first", [0x3F800000 - 500_000, 0x43DFFF00 - 500_000, 0x38000000, 0xC3E00000 - 500_000]
)
def test_runs_of_neighbouring_values(first):
    values, codes = converted(first, 1)
    check(values, codes)


def check(values: np.ndarray, codes: dict[str, np.ndarray]) -> None:
    nan = np.isnan(values)
    with np.errstate(all="ignore"):
        clamped = np.where(nan, 0, np.clip(values, -448, 448))
        assert_codes(codes["e4m3"], clamped.astype(ml_dtypes.float8_e4m3fn).view(np.uint8), nan, 0x7F)
        clamped = np.where(nan, 0, np.clip(values, -57344, 57344))
        assert_codes(codes["e5m2"], clamped.astype(ml_dtypes.float8_e5m2).view(np.uint8), nan, 0x7F)
        clamped = np.where(nan, 0, np.clip(values, -6, 6))
        assert_codes(codes["e2m1"], clamped.astype(ml_dtypes.float4_e2m1fn).view(np.uint8) & 15, nan, 7)
        tensor = torch.from_numpy(np.where(nan, 0, values).astype(np.float32))
        assert_codes(codes["bf16"], tensor.bfloat16().view(torch.int16).numpy(), nan, 0x7FFF)
        assert_codes(codes["f16"], tensor.half().view(torch.int16).numpy(), nan, 0x7FFF)


def assert_codes(actual: np.ndarray, expected: np.ndarray, nan: np.ndarray, nan_code: int) -> None:
    assert (actual[nan] == nan_code).all()
    wrong = np.flatnonzero((actual != expected) & ~nan)
    assert not wrong.size, (
        f"{wrong.size} differ, first at {wrong[0]}: {actual[wrong[0]]} for {expected[wrong[0]]}"
    )
