# SPDX-License-Identifier: Apache-2.0
"""The EAGLE entries of contract version 2: used when offered, SGLang's path otherwise, seams where they must
stand.
"""

import ast
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import sglang.srt.speculative
from sglang.srt.kernel_plugins.nvidia import eagle_binding
from sglang.srt.mega import host
from sglang.srt.model_executor.forward_batch_info import ForwardMode


class Draft(torch.nn.Module):
    def forward(self, input_ids, positions, forward_batch):
        return ("stock", input_ids)


def draft(**entries):
    model = Draft()
    if entries:
        model.__dict__["_megakernel"] = SimpleNamespace(**entries)
        model.__dict__["_megakernel_dispatch"] = SimpleNamespace(captured={})
    return model


BATCH = SimpleNamespace(input_ids="ids", positions="pos", forward_mode=ForwardMode.DECODE, batch_size=2)


def worker(model):
    return SimpleNamespace(draft_runner=SimpleNamespace(model=model))


def test_without_a_built_object_and_with_a_version_1_object_sglang_runs_its_own():
    for model in (draft(), draft(draft_sampler=None)):
        assert eagle_binding.draft_loop(worker(model), BATCH) is None
        assert eagle_binding.draft_extend(model, BATCH) == ("stock", "ids")
        eagle_binding.begin_draft_round(model, BATCH)


def test_offered_entries_run_and_are_recorded_at_capture(monkeypatch):
    monkeypatch.setattr(host, "capturing", lambda: True)
    rounds = []
    model = draft(
        draft_loop=lambda worker, batch: ("chain", batch.batch_size),
        draft_extend=lambda original, ids, positions, batch: ("mega", original(ids, positions, batch)),
        begin_draft_round=rounds.append,
    )
    eagle_binding.begin_draft_round(model, BATCH)
    assert rounds == [BATCH]
    assert eagle_binding.draft_loop(worker(model), BATCH) == ("chain", 2)
    assert ("decode", 2) in model.__dict__["_megakernel_dispatch"].captured
    assert eagle_binding.draft_extend(model, BATCH) == ("mega", ("stock", "ids"))


def test_a_loop_that_declines_leaves_the_round_to_sglang(monkeypatch):
    monkeypatch.setattr(host, "capturing", lambda: True)
    model = draft(draft_loop=lambda worker, batch: None)
    assert eagle_binding.draft_loop(worker(model), BATCH) is None
    assert model.__dict__["_megakernel_dispatch"].captured == {}


def test_unknown_entry_is_an_error():
    with pytest.raises(ValueError, match="draft_loop"):
        eagle_binding.entry(draft(), "draft_lop")


SPECULATIVE = Path(sglang.srt.speculative.__path__[0])


def calls_in(file: str, function: str) -> list[str]:
    """The names called in ``Class.function`` of an SGLang file, read without importing it: it needs a GPU."""
    tree = ast.parse((SPECULATIVE / file).read_text())
    owner, name = function.split(".")
    (cls,) = [n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == owner]
    (method,) = [n for n in cls.body if isinstance(n, ast.FunctionDef) and n.name == name]
    return [ast.unparse(n.func) for n in ast.walk(method) if isinstance(n, ast.Call)]


@pytest.mark.parametrize(
    ("file", "function", "seam"),
    [
        ("eagle_worker_v2.py", "EagleDraftWorker.draft_forward", "draft_loop"),
        ("eagle_worker_v2.py", "EagleDraftWorker.draft", "begin_draft_round"),
        (
            "eagle_draft_cuda_graph_runner.py",
            "EAGLEDraftCudaGraphRunner.capture_one_shape",
            "run_capture_hooks",
        ),
        (
            "eagle_draft_extend_cuda_graph_runner.py",
            "EAGLEDraftExtendCudaGraphRunner.capture_one_shape",
            "run_capture_hooks",
        ),
        (
            "eagle_draft_extend_cuda_graph_runner.py",
            "EAGLEDraftExtendCudaGraphRunner.capture_one_shape",
            "draft_extend",
        ),
    ],
)
def test_the_seam_stands_in_the_function_that_needs_it(file, function, seam):
    assert f"eagle_binding.{seam}" in calls_in(file, function)
