# SPDX-License-Identifier: Apache-2.0
"""Slots alone and left out, their times, the plumbing without a GPU, and caches between machines."""

import importlib.util
import tarfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from sglang_fork import cli
from sglang_fork.bench import caches, plumbing, record, report, slot_times
from sglang_fork.commands import bench
from sglang_fork.errors import ForkError

_spec = importlib.util.spec_from_file_location("lines", Path(__file__).with_name("test_record_stats.py"))
_lines = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_lines)
line = _lines.line


def slots(**needs):
    return {name: SimpleNamespace(needs=tuple(others)) for name, others in needs.items()}


def test_slot_lists_leave_out_or_keep_each_slot_with_what_it_needs():
    engine = pytest.importorskip("sglang_fork.bench.engine")
    table = slots(gdn=(), attention=(), moe=())
    names = list(table)
    assert engine.slot_lists(table, names, "alone") == [("gdn",), ("attention",), ("moe",)]
    assert engine.slot_lists(table, names, "without") == [
        ("attention", "moe"),
        ("gdn", "moe"),
        ("gdn", "attention"),
    ]
    assert engine.slot_lists(table, names, "") == []
    needy = slots(route=(), mkm=("route",), hop=())
    assert engine.slot_lists(needy, list(needy), "alone") == [("route",), ("route", "mkm"), ("hop",)]
    assert engine.slot_lists(needy, list(needy), "without") == [("hop",), ("route", "hop"), ("route", "mkm")]


def test_an_arm_of_some_slots_runs_only_their_kernels_and_leaves_the_others_in_place():
    engine = pytest.importorskip("sglang_fork.bench.engine")
    kernels = {1: {("gdn", 7): "a", ("moe", 8): "b"}}
    built = SimpleNamespace(slots=slots(gdn=(), attention=(), moe=()), kernels_by_width=kernels)
    seen = []

    class Model:
        def forward(self):
            seen.append(built.kernels_by_width)
            return len(seen)

    model = Model()
    model.__dict__ |= {"_megakernel": built, "_megakernel_dispatch": SimpleNamespace(original="stock")}
    arms = engine.arms_of(model, "alone")
    assert list(arms) == ["stock", "mega", "mega:gdn", "mega:moe"], "attention has no kernel"
    assert arms["mega:moe"]() == 1 and seen == [{1: {("moe", 8): "b"}}]
    assert built.kernels_by_width is kernels


def test_a_slots_time_is_what_it_replaces_less_what_the_step_became_faster():
    stock = line(
        kernels={"fused_moe": [48.0, 900.0], "norm": [49.0, 98.0], "gemm": [48.0, 480.0]},
        layers_median_us=1700.0,
    )
    moe = line(
        arm="mega",
        slots="moe",
        kernels={"moe_up": [24.0, 300.0], "norm": [25.0, 50.0], "gemm": [48.0, 480.0]},
        layers_ci_low_us=1200.0,
        layers_median_us=1210.0,
        layers_ci_high_us=1220.0,
    )
    (got,) = slot_times.slot_times([stock, moe], {("moe", 1, "independent"): 1_050_000_000})
    # All of fused_moe and 24 of 49 norms: 948 us. The step became 490 us faster.
    assert got.stock_us == pytest.approx(948) and got.mega_us == pytest.approx(458)
    assert (got.stock_launches, got.mega_launches) == (3.0, 1.0)
    assert got.floor_us == pytest.approx(250) and got.ratio == pytest.approx(948 / 458)
    assert "| 948 | 458 | 2.07 | 3.0 to 1.0 | 250 | 55% |" in slot_times.table([got])
    assert slot_times.slot_times([stock, line(arm="mega", kernels={"x": [1.0, 1.0]})]) == []


def test_a_slots_bytes_add_up_to_the_layers():
    parser = cli.Parser(prog="bench")
    bench.add_arguments(parser)
    job = bench.job_of(parser.parse_args(["step", "Qwen3.5-397B-NVFP4", "--requests", "8"]))
    got, rank = bench.slot_bytes(job), job.slice()
    for case in job.cases:
        assert sum(n for (_, _, c), n in got.items() if c == case) > rank.dense_bytes
    assert sum(rank.parts.values()) == rank.dense_bytes


@pytest.mark.parametrize("words", [["step"], ["kernels"]])
def test_without_a_gpu_the_plumbing_runs_and_says_so(words, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(bench, "driver_present", lambda: False)
    out = tmp_path / "lines.jsonl"
    assert cli.main(["bench", *words, "Qwen3.5-397B-NVFP4", "--requests", "1", "--out", str(out)]) == 0
    shown = capsys.readouterr().out
    assert "its numbers are no results" in shown and not out.exists()
    lines = list(record.load([tmp_path / "plumbing-lines.jsonl"]))
    assert lines and all(one.is_plumbing for one in lines) and {one.arm for one in lines} == {"stock", "mega"}
    assert "No measurement on a GPU yet" in report.render(lines)


def test_plumbing_never_lands_among_the_results():
    assert not plumbing.file_of(bench.RESULTS / "step.jsonl").is_relative_to(bench.RESULTS)


def test_caches_travel_to_the_same_kind_of_machine_only(tmp_path):
    here = caches.fingerprint({"sglang": "0.5.23", "torch": "2.14.1"})
    folder = tmp_path / "cache"
    (folder / "jit" / "a").mkdir(parents=True)
    (folder / "jit" / "a" / "k.so").write_bytes(b"code" * 100)
    (folder / "jit" / ".lock").write_text("")
    (folder / "jit" / "b.lock").write_text("")
    file = tmp_path / "caches.tar.xz"
    count, size = caches.export(folder, file, here)
    assert count == 2 and size == 400, "the module and the unsuffixed lock, not b.lock"
    target = tmp_path / "there"
    assert caches.unpack(file, target, here) == 2
    assert (target / "jit" / "a" / "k.so").read_bytes() == b"code" * 100
    assert not (target / caches.MANIFEST).exists()
    other = here | {"torch": "2.15.0"}
    with pytest.raises(ForkError, match=r"torch: made with 2\.14\.1, here 2\.15\.0"):
        caches.unpack(file, target, other)
    assert caches.unpack(file, target, other, force=True) == 2


def test_what_is_no_export_is_refused(tmp_path):
    file = tmp_path / "x.tar"
    file.write_bytes(b"nothing")
    with pytest.raises(ForkError, match="no cache export"):
        caches.unpack(file, tmp_path, {})
    with tarfile.open(file, "w") as pack:
        pack.add(__file__, arcname="other")
    with pytest.raises(ForkError, match=r"it has no manifest\.json"):
        caches.unpack(file, tmp_path, {})
    with pytest.raises(ForkError, match="no caches in"):
        caches.export(tmp_path / "none", file, {})
    with pytest.raises(ForkError, match="is not understood"):
        caches.run(["pack", "x"], tmp_path, {})


def test_an_export_cannot_write_outside_its_folder(tmp_path):
    file = tmp_path / "evil.tar"
    with tarfile.open(file, "w") as pack:
        caches._add(pack, caches.MANIFEST, b"{}")
        caches._add(pack, "../outside", b"x")
    with pytest.raises(tarfile.TarError):
        caches.unpack(file, tmp_path / "in", {}, force=True)
    assert not (tmp_path / "outside").exists()
