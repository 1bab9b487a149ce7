# SPDX-License-Identifier: Apache-2.0
"""The fork's variables are declared, so presets and ``Requirements.env`` can name them."""

import pytest

from sglang.srt.environ import envs


@pytest.mark.parametrize(
    ("name", "default"),
    [
        ("SGLANG_NVFP4_SELF_TEST", True),
        ("SGLANG_UNIFIED_MEMORY_PREFLIGHT", True),
        ("SGLANG_FP8_KV_AUTO", False),
        ("SGLANG_NVFP4_POST_QUANT", ""),
        ("SGLANG_FP8_POST_QUANT", ""),
    ],
)
def test_declared_with_its_default(name, default, monkeypatch):
    monkeypatch.delenv(name, raising=False)
    assert getattr(envs, name).get() == default
