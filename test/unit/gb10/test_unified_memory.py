# SPDX-License-Identifier: Apache-2.0
"""Unified memory: a fraction that leaves the machine alive, refusals that name the way out, a guard that ends
a load.
"""

import ast
import threading
from pathlib import Path

import pytest

import sglang.srt.model_loader as model_loader
from sglang.srt.utils import unified_memory as um

GIB = um.GIB
SPARK = um.SystemMemory(total=120 * GIB, available=112 * GIB, swap_free=0)


def test_meminfo_is_read_and_a_short_one_refused(tmp_path):
    path = tmp_path / "meminfo"
    path.write_text("MemTotal: 1024 kB\nMemFree: 1 kB\nMemAvailable: 512 kB\nSwapFree: 8 kB\n")
    assert um.read_system_memory(path) == um.SystemMemory(1024 * 1024, 512 * 1024, 8 * 1024)
    path.write_text("MemTotal: 1024 kB\n")
    with pytest.raises(ValueError, match="MemAvailable"):
        um.read_system_memory(path)


def test_checkpoint_bytes_come_from_the_index_or_the_files(tmp_path):
    assert um.checkpoint_bytes(str(tmp_path)) is None
    (tmp_path / "a.safetensors").write_bytes(b"x" * 100)
    assert um.checkpoint_bytes(str(tmp_path)) == 100
    (tmp_path / "model.safetensors.index.json").write_text('{"metadata": {"total_size": 77}}')
    assert um.checkpoint_bytes(str(tmp_path)) == 77


@pytest.mark.parametrize(
    ("requested", "weights", "fraction"),
    [
        (None, None, 0.80),
        (None, 20 * GIB, 0.80),
        (None, 100 * GIB, 0.85),
        (0.7, 20 * GIB, 0.7),
        (0.85, None, 0.85),
    ],
)
def test_a_safe_fraction(requested, weights, fraction):
    assert um.static_fraction(SPARK, requested, weights) == fraction


@pytest.mark.parametrize(
    ("memory", "requested", "weights", "why"),
    [
        (SPARK, 0.87, None, "0.85 or less"),
        (SPARK, None, 110 * GIB, "smaller checkpoint"),
        (SPARK, 0.5, 70 * GIB, "raise it to at most 0.85"),
        (um.SystemMemory(120 * GIB, 5 * GIB, 0), None, None, "stop other programs"),
    ],
)
def test_what_would_freeze_the_machine_is_refused(memory, requested, weights, why):
    with pytest.raises(ValueError, match=why):
        um.static_fraction(memory, requested, weights)


def test_expandable_segments_are_refused_by_the_variables_name():
    um.refuse_expandable_segments({"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:False"})
    with pytest.raises(ValueError, match="PYTORCH_CUDA_ALLOC_CONF"):
        um.refuse_expandable_segments(
            {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64, expandable_segments: True"}
        )


def test_the_guard_stops_a_load_once_memory_falls_below_the_floor():
    left = iter([10 * GIB, 5 * GIB, 1 * GIB])
    stopped, seen = threading.Event(), []

    def stop(memory):
        seen.append(memory.available)
        stopped.set()

    guard = um.MemoryGuard(
        stop, floor=2 * GIB, read=lambda: um.SystemMemory(0, next(left), 0), period_s=0.001
    )
    guard.start()
    assert stopped.wait(5)
    guard.end()
    assert seen == [1 * GIB]


def test_a_load_elsewhere_runs_without_a_guard():
    assert not um.is_unified(), "no GPU here"
    before = threading.active_count()
    with um.guarded_load():
        assert threading.active_count() == before


def test_the_loader_loads_under_the_guard():
    tree = ast.parse((Path(model_loader.__path__[0]) / "loader.py").read_text())
    (own,) = [n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == "DefaultModelLoader"]
    (load,) = [
        n for n in own.body if isinstance(n, ast.FunctionDef) and n.name == "load_weights_and_postprocess"
    ]
    guarded = [
        ast.unparse(n)
        for n in load.body
        if isinstance(n, ast.With) and "guarded_load" in ast.unparse(n.items[0])
    ]
    assert len(guarded) == 1 and "load_weights_only" in guarded[0] and "postprocess_weights" in guarded[0]
