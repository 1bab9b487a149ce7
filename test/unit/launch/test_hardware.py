# SPDX-License-Identifier: Apache-2.0
"""Hardware that does not fit is refused with every reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from sglang_fork import memory, preset
from sglang_fork.launch import hardware
from sglang_fork.launch.hardware import Gpu, Memory

GIB = 2**30
H200 = [Gpu(i, "NVIDIA H200", "sm_90", 139 * GIB, 0.0) for i in range(8)]
HOST = Memory(1024 * GIB, 1000 * GIB)


def reasons(
    name: str,
    found: list[Gpu],
    on: str = "",
    host: Memory = HOST,
    needed: int | None = None,
    fraction: float | None = None,
) -> list[str]:
    p = preset.load(name).on(on) if on else preset.load(name)
    needed = needed or p.hardware.gpus_per_node
    return hardware.reasons(
        p, found=found, memory=host, estimate=memory.estimate(p), needed=needed, fraction=fraction
    )


def test_what_fits_has_no_reasons() -> None:
    assert reasons("GLM-5.2-NVFP4", H200, on="h200") == []
    assert reasons("Qwen3.5-35B-A3B", H200[:1]) == []


def test_all_reasons_at_once() -> None:
    found = [Gpu(0, "NVIDIA L4", "sm_89", 24 * GIB, 4 * GIB)]
    got = reasons("GLM-5.2-NVFP4", found)
    assert len(got) == 3
    assert got[0] == "1 GPUs are visible, 8 are needed on this node"
    assert "NVIDIA L4 is sm_89; the preset is for sm_103" in got[1]
    assert "GPU 0 has 20 GiB free; the weights alone take 54 GiB" in got[2]


def test_the_variant_for_this_gpu_is_named() -> None:
    assert "try --on h200 or --on h200-fp8" in reasons("GLM-5.2-NVFP4", H200)[0]
    assert "try" not in reasons("Kimi-K3", H200)[0]


def test_no_gpu() -> None:
    assert reasons("Kimi-K3", []) == ["no NVIDIA GPU is visible; Kimi-K3 needs 4 (GB300)"]


def test_host_tables_need_host_memory() -> None:
    small = Memory(256 * GIB, 100 * GIB)
    (reason,) = reasons("DeepSeek-V4.1-Flash", H200, on="h200", host=small)
    assert "100 GiB of host memory are available; the host tables take 183 GiB" in reason


GB10 = [Gpu(0, "NVIDIA GB10", "sm_121", 0.0, 0.0)]


def test_unified_memory_is_read_from_the_system() -> None:
    assert reasons("Qwen3.5-NVFP4", GB10, host=Memory(119 * GIB, 112 * GIB), fraction=0.8) == []
    (reason,) = reasons("Qwen3.5-NVFP4", GB10, host=Memory(119 * GIB, 90 * GIB), fraction=0.8)
    assert "90 GiB of unified memory are available and 103 GiB are needed" in reason
    (reason,) = reasons("Qwen3.5-NVFP4", GB10, host=Memory(119 * GIB, 112 * GIB), fraction=0.95)
    assert "lower --mem-fraction-static" in reason


SMI = """0, NVIDIA H200, 9.0, 143771, 512
1, NVIDIA GB10, 12.1, [N/A], [N/A]
garbage
"""


def test_nvidia_smi_is_parsed() -> None:
    first, second = hardware.parse(SMI)
    assert first == Gpu(0, "NVIDIA H200", "sm_90", 143771 * 2**20, 512 * 2**20)
    assert second == Gpu(1, "NVIDIA GB10", "sm_121", 0.0, 0.0)


@pytest.mark.parametrize(
    ("value", "indices"),
    [("2,0", [2, 0]), ("", []), ("9", []), ("GPU-abc,GPU-def", [0, 1]), (None, list(range(8)))],
)
def test_cuda_visible_devices(value: str | None, indices: list[int]) -> None:
    environ = {} if value is None else {"CUDA_VISIBLE_DEVICES": value}
    assert [g.index for g in hardware.visible(H200, environ)] == indices


def test_meminfo(tmp_path: Path) -> None:
    path = tmp_path / "meminfo"
    path.write_text("MemTotal:       1048576 kB\nMemFree: 1 kB\nMemAvailable:    524288 kB\n")
    assert hardware.host_memory(path) == Memory(GIB, GIB / 2)
