# SPDX-License-Identifier: Apache-2.0
"""The CuTe DSL kernel of slot ``q_norm``: assembled like the others and started by the same launcher.

It has no emulation and has not run: what its machine code computes is not shown here.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import torch

from sglang.srt.mega.device import kernel
from sglang.srt.mega.device.build_cubins import build_cubins, registered_specs
from sglang.srt.mega.device.cubin_cache import CubinCache
from sglang.srt.mega.device.cuda_compile import load_cubin
from sglang.srt.mega.device.cute_compile import symbol_of
from sglang.srt.mega.device.sass import disassembler
from sglang.srt.mega.device.spec import LaunchConfig
from sglang.srt.mega.models.glm_moe_dsa import kernels
from sglang.srt.mega.models.glm_moe_dsa.tactics import GLM5_NORM, NormShape, norm_launch, norm_spec

pytestmark = pytest.mark.kernels
SMALL = NormShape(hidden=64, stride=64 + 40, epsilon=1e-5)
POINTERS = 3  # x, weight, out


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[dict], CubinCache]:
    pytest.importorskip("cutlass", reason="nvidia-cutlass-dsl is not installed")
    cache = CubinCache(tmp_path_factory.mktemp("cute") / "cubins")
    return build_cubins(["sm_90a", "sm_103a"], [norm_spec(GLM5_NORM)], cache), cache


def test_it_is_among_the_kernels_that_are_built() -> None:
    assert norm_spec(GLM5_NORM) in registered_specs()


def test_it_is_assembled_with_its_weight_asked_for_before_the_wait(built) -> None:
    records, _ = built
    assert [record["arch"] for record in records] == ["sm_90a", "sm_103a"]
    for record in records:
        sass = record["sass"]
        assert sass["waits"] == 1 and sass["triggers"] == 1, record
        assert sass["weight_loads_before_wait"] >= 1 and sass["narrow_loads"] == 0, record
        assert sass["local"] == 0 and record["spill_bytes"] == 0, record
        assert 0 < record["registers"] <= 64 and record["compiler"].startswith("nvidia-cutlass-dsl"), record


@pytest.mark.parametrize("arch", ["sm_90a", "sm_103a"])
def test_the_launcher_finds_one_kernel_of_three_pointers_and_its_block(
    built, arch: str, tmp_path: Path
) -> None:
    image = load_cubin(norm_spec(GLM5_NORM), arch, built[1])
    symbol = symbol_of(image, "rms_norm")
    file = tmp_path / "norm.cubin"
    file.write_bytes(image)
    dump = subprocess.run(
        [disassembler().with_name("cuobjdump"), "-elf", file], check=True, capture_output=True, text=True
    ).stdout
    info = dump[dump.index(f".nv.info.{symbol}", dump.index("EIATTR")) :]
    assert _value(info, "EIATTR_CBANK_PARAM_SIZE") == f"0x{8 * POINTERS:x}"
    assert _value(info, "EIATTR_REQNTID").split()[0] == f"0x{norm_launch(1).block:x}"


def _value(info: str, attribute: str) -> str:
    return info[info.index(attribute) :].split("Value:")[1].splitlines()[0].strip()


class Started:
    """Stands in for a loaded kernel: keeps what it was started with, and fills the result."""

    def __init__(self, spec, device) -> None:
        self.spec, self.starts = spec, []

    def launch(self, config: LaunchConfig, *arguments: torch.Tensor) -> None:
        self.starts.append((config, arguments))
        arguments[2].fill_(len(self.starts))


def test_rows_are_read_where_the_projection_left_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "load_kernel", Started)
    norm = kernels.QueryNorm(SMALL, "cpu")
    latent, weight = torch.randn(3, SMALL.stride).bfloat16(), torch.ones(SMALL.hidden).bfloat16()
    query = latent[:, : SMALL.hidden]
    out = norm(query, weight)
    ((config, (x, gain, result)),) = norm._kernel.starts
    assert norm._kernel.spec == norm_spec(SMALL) and config == LaunchConfig((3, 1, 1), 256)
    assert x.data_ptr() == latent.data_ptr() and gain is weight and result.data_ptr() == out.data_ptr()
    assert tuple(out.shape) == (3, SMALL.hidden) and (out == 1).all()
    for wrong, why in (
        (query.contiguous(), "strides"),
        (query.float(), "float32"),
        (latent[:, 1 : SMALL.hidden + 1], "aligned"),
        (latent.repeat(6, 1)[:, : SMALL.hidden], "18 rows"),
    ):
        with pytest.raises(ValueError, match=why):
            norm(wrong, weight)
    assert len(norm._kernel.starts) == 1


def test_without_a_gpu_it_is_refused_in_words() -> None:
    with pytest.raises(ValueError, match="CuTe DSL kernels have no emulation"):
        kernel.load_kernel(norm_spec(SMALL), torch.device("cpu"))
    with pytest.raises(ValueError, match="no query norm for 60 channels"):
        NormShape(60, 104, 1e-5)
