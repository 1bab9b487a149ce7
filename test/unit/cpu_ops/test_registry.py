# SPDX-License-Identifier: Apache-2.0
"""Registration: only what is missing, once, and callable through torch.ops."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import torch

ROOT = Path(__file__).parents[3]

SCRIPT = """
import sys, torch
sys.path.insert(0, {folder!r})
import operators
theirs = torch.library.Library("sgl_kernel", "FRAGMENT")
theirs.define("fused_sigmoid_mul_cpu(Tensor(a!) x, Tensor gate) -> ()")
def fill(x, gate):
    x.fill_(7.0)
theirs.impl("fused_sigmoid_mul_cpu", fill, "CPU")
names = operators.register()
assert "fused_sigmoid_mul_cpu" not in names, "a present operator was defined again"
assert len(names) == len(operators.registry.OPERATORS) - 1, names
assert operators.register() == (), "a second call defined something"
x = torch.zeros(2)
torch.ops.sgl_kernel.fused_sigmoid_mul_cpu(x, x.clone())
assert x.tolist() == [7.0, 7.0], "the present operator lost"
out = torch.ops.sgl_kernel.fused_rmsnorm_gated_cpu(torch.ones(1, 4), None, torch.zeros(1, 4), 1e-6)
assert out.shape == (1, 4)
print(len(names))
"""


def test_a_present_operator_is_kept_and_the_rest_is_defined_once() -> None:
    folder = str(ROOT / "python/sglang/srt/hardware_backend/cpu")
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(folder=folder)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= 15


def test_schemas_name_unique_operators_and_parse(operators) -> None:
    names = [operator.name for operator in operators.registry.OPERATORS]
    assert len(set(names)) == len(names)
    for operator in operators.registry.OPERATORS:
        schema = torch._C.parse_schema(f"sgl_kernel::{operator.schema}")
        assert schema.name == f"sgl_kernel::{operator.name}"
        assert operator.name.endswith("_cpu")
