# SPDX-License-Identifier: Apache-2.0
"""The small-M NVFP4 MoE kernel is open to compute capability 12.1, and to no other that it was closed to."""

import ast
from pathlib import Path

import sglang.srt.layers.moe.moe_runner as moe_runner

FILE = Path(moe_runner.__path__[0]) / "flashinfer_cutlass.py"


def test_every_gate_that_asks_for_12_0_also_takes_12_1():
    tree = ast.parse(FILE.read_text())
    gates = [
        ast.unparse(n)
        for n in ast.walk(tree)
        if isinstance(n, ast.BoolOp) and isinstance(n.op, ast.Or) and "is_sm120()" in ast.unparse(n)
    ]
    assert gates == ["is_sm120() or is_sm121()"] * 2
    calls = [n for n in ast.walk(tree) if isinstance(n, ast.Call) and ast.unparse(n) == "is_sm120()"]
    assert len(calls) == len(gates), "a gate asks for 12.0 alone"


def test_upstream_tells_the_two_apart():
    from sglang.srt.utils import common

    assert common.is_sm120 is not common.is_sm121
