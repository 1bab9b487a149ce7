# SPDX-License-Identifier: Apache-2.0
"""Slots alone and left out, their times, the plumbing without a GPU, and caches between machines."""

import importlib.util
import subprocess
import sys
import tarfile
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

import pytest

from sglang_fork import cli, paths, preset
from sglang_fork.bench import caches, plumbing, record, report, slot_times, stats
from sglang_fork.bench.slices import BUILDERS
from sglang_fork.bench.slot_lists import slot_lists
from sglang_fork.bench.stock import baseline
from sglang_fork.commands import bench
from sglang_fork.errors import ForkError

_spec = importlib.util.spec_from_file_location("lines", Path(__file__).with_name("test_record_stats.py"))
_lines = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_lines)
line = _lines.line
SLICED = [name for name in preset.names() if preset.load(name).family in BUILDERS]


def test_slot_lists_leave_out_or_keep_each_slot_with_what_it_needs():
    table = {"gdn": (), "attention": (), "moe": ()}
    names = list(table)
    assert slot_lists(table, names, "alone") == [("gdn",), ("attention",), ("moe",)]
    assert slot_lists(table, names, "without") == [
        ("attention", "moe"),
        ("gdn", "moe"),
        ("gdn", "attention"),
    ]
    assert slot_lists(table, names, "") == []
    needy = {"route": (), "mkm": ("route",), "hop": ()}
    assert slot_lists(needy, list(needy), "alone") == [("route",), ("route", "mkm"), ("hop",)]
    assert slot_lists(needy, list(needy), "without") == [("hop",), ("route", "hop"), ("route", "mkm")]
    assert slot_lists(table, ["moe"], "alone") == [], "the megakernel itself"


def test_an_arm_of_some_slots_runs_only_their_kernels_and_leaves_the_others_in_place():
    engine = pytest.importorskip("sglang_fork.bench.engine")
    kernels = {1: {("gdn", 7): "a", ("moe", 8): "b"}}
    built = SimpleNamespace(
        slots={name: SimpleNamespace(needs=()) for name in ("gdn", "attention", "moe")},
        kernels_by_width=kernels,
    )
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
    both = line(**{**asdict(moe), "slots": "gdn,moe"})
    table = {("moe", 1, "independent"): 1_050_000_000, ("gdn", 1, "independent"): 2_100_000_000}
    assert slot_times.slot_times([stock, both], table)[0].floor_us == pytest.approx(750), (
        "a list's bytes add up"
    )
    del table["gdn", 1, "independent"]
    assert slot_times.slot_times([stock, both], table)[0].floor_us == 0, "or are not known"


def test_a_slots_bytes_add_up_to_the_layers():
    parser = cli.Parser(prog="bench")
    bench.add_arguments(parser)
    job = bench.job_of(parser.parse_args(["step", "Qwen3.5-397B-NVFP4", "--requests", "8"]))
    got, rank = bench.slot_bytes(job), job.slice()
    for case in job.cases:
        assert sum(n for (_, _, c), n in got.items() if c == case) > rank.dense_bytes
    assert sum(rank.parts.values()) == rank.dense_bytes


@pytest.fixture(autouse=True)
def few_resamples(monkeypatch):
    """No test here looks at an interval's width."""
    monkeypatch.setattr(stats, "RESAMPLES", 50)


@pytest.mark.parametrize("name", SLICED)
def test_every_sliced_preset_says_what_its_kernels_are(name, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(bench, "driver_present", lambda: False)
    words = ["bench", "kernels", name, "--requests", "1", "--out", str(tmp_path / "lines.jsonl")]
    family = preset.load(name).family
    if family == "kimi_k3":
        assert cli.main(words) == 2 and "no slot of kimi_k3 has a kernel" in capsys.readouterr().err
        return
    assert cli.main(words) == 0
    lines = list(record.load([tmp_path / "plumbing-lines.jsonl"]))
    assert baseline(family).slots in {one.slots for one in lines if one.arm == "mega"}
    if family == "qwen3_5":
        assert {one.slots for one in lines} >= {"", "gdn", "attention", "moe"}


def test_ablation_measures_each_list_without_one_slot(tmp_path, monkeypatch):
    monkeypatch.setattr(bench, "driver_present", lambda: False)
    words = ["step", "Qwen3.5-35B-A3B", "--whole", "--ablate", "--requests", "1", "--routing", "correlated"]
    assert cli.main(["bench", *words, "--out", str(tmp_path / "a.jsonl")]) == 0
    lines = list(record.load([tmp_path / "plumbing-a.jsonl"]))
    assert [one.slots for one in lines] == ["", "", "attention,moe", "gdn,moe", "gdn,attention"]
    assert len(report.ablations(lines)) == 1


def test_the_slots_with_a_kernel_are_the_families_own():
    """What ``bench kernels`` engages unless told otherwise, against the tables of the tree. ``q_norm`` has
    never run: it is measured where it is asked for."""
    for family, architecture, left_out in (
        ("qwen3_5", "Qwen3_5MoeForCausalLM", set()),
        ("glm_moe_dsa", "GlmMoeDsaForCausalLM", {"q_norm"}),
        ("deepseek_v41", "DeepseekV41ForCausalLM", set()),
    ):
        make = "import sys, slot_probe; slots = slot_probe.table(sys.argv[1])[1].values()"
        make += "; print(*(slot.name for slot in slots if slot.entries))"
        command = [sys.executable, "-c", make, architecture]
        folder = paths.ROOT / "python" / "sglang_fork" / "launch"
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
        assert set(done.stdout.split()) - left_out == set(baseline(family).slots.split(","))


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
