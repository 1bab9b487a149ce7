# SPDX-License-Identifier: Apache-2.0
"""Block-scaled FP8 GEMMs of compute capability 12.0 and 12.1 are upstream's CUTLASS kernel, unpatched."""

from types import SimpleNamespace

import pytest

from sglang.kernels.ops.gemm import fp8_blockwise_gemm
from sglang.srt.layers.quantization import fp8_utils


@pytest.mark.parametrize(
    ("capability", "backend"),
    [((9, 0), "auto"), ((10, 0), "auto"), ((11, 0), "triton"), ((12, 0), "cutlass"), ((12, 1), "cutlass")],
)
def test_the_backend_that_auto_means(monkeypatch, on_device, capability, backend):
    on_device(capability, fp8_utils)
    kernel = SimpleNamespace(kernel=SimpleNamespace(fp8_gemm_runner_backend="auto"))
    monkeypatch.setattr(fp8_utils, "get_exec", lambda: kernel)
    monkeypatch.setattr(fp8_utils, "FP8_GEMM_RUNNER_BACKEND", None)
    fp8_utils.initialize_fp8_gemm_config()
    assert fp8_utils.get_fp8_gemm_runner_backend().value == backend


def test_the_kernel_is_built_for_both_and_its_source_ships(monkeypatch):
    asked = {}
    monkeypatch.setattr(fp8_blockwise_gemm, "is_sm120_supported", lambda: True)
    monkeypatch.setattr(fp8_blockwise_gemm, "load_jit", lambda *args, **kwargs: asked.update(kwargs))
    fp8_blockwise_gemm._jit_fp8_blockwise_module.__wrapped__()
    from sglang.kernels.jit.utils import KERNEL_PATH

    (source,) = asked["cuda_files"]
    assert (KERNEL_PATH / "csrc" / source).is_file()
    monkeypatch.setattr(fp8_blockwise_gemm, "is_sm120_supported", lambda: False)
    with pytest.raises(RuntimeError, match="SM120"):
        fp8_blockwise_gemm._jit_fp8_blockwise_module.__wrapped__()
