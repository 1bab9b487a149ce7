# SPDX-License-Identifier: Apache-2.0
"""check: one test a fault, each named in the report."""

from __future__ import annotations

from pathlib import Path

import pytest

from sglang_fork.commands.check import print_report
from sglang_fork.errors import ForkError
from sglang_fork.lock.requirements import Metadata
from sglang_fork.stack import check, faults, signoff, wheel, workspace

from .conftest import FILES, Fork, base_tree

MODEL = "sglang/srt/models/model.py"


@pytest.fixture
def patched(fork: Fork) -> Fork:
    """A fork with one patch in one function, exported."""
    fork.apply()
    fork.patch("mega-scale", MODEL, "y = x * self.width", "y = 2 * x * self.width")
    fork.export()
    return fork


def rewrite(fork: Fork, old: str, new: str) -> None:
    """Edit the text of the one patch by hand."""
    patch = fork.patches / "mega-scale.patch"
    text = patch.read_text()
    assert old in text
    patch.write_text(text.replace(old, new))


def test_green(patched: Fork, capsys: pytest.CaptureFixture[str]) -> None:
    report = patched.check()
    assert report.faults == []
    assert report.passed[1:] == [item for item, _ in check.ITEMS]
    assert report.sizes == [check.Size("mega-scale.patch", 1, 1, 1, 1)]
    print_report(report)
    out = capsys.readouterr().out
    assert "mega-scale.patch    1 files   1 hunks  +1 -1" in out and out.endswith("check: ok\n")


def test_patched_tree_is_not_touched(patched: Fork) -> None:
    patched.edit(MODEL, "z = math", "zz = math")
    head = patched.git.resolve("HEAD")
    assert patched.check().ok
    assert patched.git.resolve("HEAD") == head and "zz" in (patched.src / MODEL).read_text()


def test_without_a_patched_tree(patched: Fork, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SGLANG_FORK_HOME", str(tmp_path / "empty"))
    assert patched.check().ok


def test_series_and_files_differ(patched: Fork) -> None:
    patched.write("patches/mega-stray.patch", "")
    assert patched.faults() == ["patches/ holds files that series does not name: mega-stray.patch"]


def test_patch_that_does_not_apply(patched: Fork) -> None:
    rewrite(patched, "-        y = x * self.width", "-        y = x + self.width")
    (fault,) = patched.faults()
    assert fault.startswith("patches/mega-scale.patch does not apply")


def test_not_what_export_writes(patched: Fork) -> None:
    rewrite(patched, "From: SGLang Mega", "From: Somebody Else")
    (fault,) = patched.faults()
    assert fault.startswith("mega-scale.patch is not what export writes")


def test_hook_in_another_function_than_declared(patched: Fork) -> None:
    rewrite(patched, f"{MODEL}::Layer.forward", f"{MODEL}::Model.forward")
    assert patched.faults() == [
        f"mega-scale.patch edits {MODEL}::Layer.forward, which its header does not declare",
        f"mega-scale.patch declares {MODEL}::Model.forward and does not edit it",
    ]


@pytest.mark.parametrize(
    ("test", "fault"),
    [
        ("test/unit/test_x.py", None),
        ("test/unit/test_x.py::test_y", None),
        ("test/unit/test_x.py::TestZ::test_w[case]", None),
        ("test/unit", None),
        ("test/unit/test_gone.py", "test/unit/test_gone.py does not exist"),
        ("test/unit/test_x.py::test_gone", "has no test_gone"),
        ("test/unit/test_x.py::TestZ::test_y", "has no TestZ::test_y"),
    ],
)
def test_test_that_the_header_names(patched: Fork, test: str, fault: str | None) -> None:
    rewrite(patched, "Test: test/unit/test_x.py", f"Test: {test}")
    found = patched.faults()
    assert not found if fault is None else len(found) == 1 and fault in found[0]


def test_file_name_is_the_patch_id(patched: Fork) -> None:
    rewrite(patched, "Patch-Id: mega-scale", "Patch-Id: mega-other")
    assert "mega-scale.patch: Patch-Id is mega-other" in patched.faults()


def test_patch_that_adds_a_file(patched: Fork) -> None:
    rewrite(
        patched,
        f"diff --git a/{MODEL} b/{MODEL}",
        "diff --git a/sglang/new.py b/sglang/new.py\nnew file mode 100644\nindex 0000000..1\n--- /dev/null\n"
        f"+++ b/sglang/new.py\n@@ -0,0 +1 @@\n+x = 1\ndiff --git a/{MODEL} b/{MODEL}",
    )
    assert any("adds sglang/new.py, which belongs under python/sglang" in fault for fault in patched.faults())


def test_patch_that_changes_a_mode(patched: Fork) -> None:
    rewrite(patched, "index ", "old mode 100644\nnew mode 100755\nindex ")
    text = (patched.patches / "mega-scale.patch").read_text()
    head, _, tail = text.partition("index ")
    line, _, rest = tail.partition("\n")
    (patched.patches / "mega-scale.patch").write_text(f"{head}index {line.removesuffix(' 100644')}\n{rest}")
    assert any("changes the mode of" in fault for fault in patched.faults())


def test_added_file_that_does_not_compile(patched: Fork) -> None:
    patched.write("python/sglang/srt/mega/bad.py", "def f(:\n")
    (fault,) = patched.faults()
    assert fault.startswith("python/sglang/srt/mega/bad.py: line 1")


def test_patched_file_that_does_not_compile(patched: Fork) -> None:
    rewrite(patched, "+        y = 2 * x", "+        y = 2 ** * x")
    assert any("model.py: line 11" in fault for fault in patched.faults())


def test_added_file_at_a_path_of_upstreams(patched: Fork) -> None:
    patched.write("python/sglang/version.py", "")
    (fault,) = patched.faults()
    assert fault.startswith("upstream owns the path of: python/sglang/version.py")


def test_wheel_sums(patched: Fork) -> None:
    sums = wheel.read_sums(patched.patches)
    gone = next(name for name in sums if "cp313" in name)
    digest = sums.pop(gone)
    sums["sglang-0.9-cp312-cp312-manylinux_2_34_x86_64.whl"] = digest
    patched.write(f"patches/{wheel.SUMS}", wheel.sums_text(sums))
    found = patched.faults()
    assert f"no sum for {gone}" in found and any(
        "sglang-0.9" in f and "no wheel of the base" in f for f in found
    )


def test_lock_of_another_base(patched: Fork, monkeypatch: pytest.MonkeyPatch) -> None:
    def problems(metadata: Metadata, folder: Path) -> list[str]:
        assert folder == patched.root / "python/sglang_fork/lock"
        return [f"not the lock of {metadata.version}"]

    monkeypatch.setattr(faults, "check_lock", problems)
    assert patched.faults() == ["not the lock of 1.0"]


def pin(fork: Fork, *keys: str, constant: str = "SGLANG_READS") -> None:
    fork.write("python/sglang/srt/mega/reads.py", f"{constant}: set[str] = {set(keys)!r}\n")


PINS = (
    "body srt/models/model.py::Model.forward",
    "sig srt/models/model.py::Layer.__init__",
    "bases srt/models/model.py::Model",
    "tree srt/models",
)


def test_pins_signed_off_hold(patched: Fork) -> None:
    pin(patched, *PINS)
    assert [f.split(",")[0] for f in patched.faults()] == [f"not signed off: {key}" for key in sorted(PINS)]
    signed, diffs = signoff.repin(patched.root)
    assert set(signed.digests) == set(PINS) and diffs == {}
    assert patched.faults() == []
    pin(patched, *PINS[1:])
    assert patched.faults() == [f"no module declares {PINS[0]} any more"]


def test_tampered_pin_is_named(patched: Fork) -> None:
    pin(patched, *PINS)
    signoff.repin(patched.root)
    path = patched.patches / "pins"
    line = next(line for line in path.read_text().splitlines() if PINS[0] in line)
    path.write_text(path.read_text().replace(line, f"{'0' * 16}  {PINS[0]}"))
    assert patched.faults() == [f"upstream changed {PINS[0]}, used by python/sglang/srt/mega/reads.py"]


def test_the_tools_own_reads_are_pinned_too(patched: Fork) -> None:
    patched.write("python/sglang_fork/bench/engine.py", f"SGLANG_READS = {{{PINS[1]!r}}}\n")
    (fault,) = patched.faults()
    assert fault == f"not signed off: {PINS[1]}, used by python/sglang_fork/bench/engine.py"
    signoff.repin(patched.root)
    assert patched.faults() == []


def test_pin_on_nothing(patched: Fork) -> None:
    pin(patched, "body srt/models/model.py::Model.backward")
    assert "upstream has no body srt/models/model.py::Model.backward" in patched.faults()[0]
    before = patched.snapshot()
    with pytest.raises(ForkError, match=r"upstream has no:\n  body srt/models/model.py::Model.backward"):
        signoff.repin(patched.root)
    assert patched.snapshot() == before


@pytest.mark.parametrize(
    ("source", "match"),
    [
        ("SGLANG_READS = {'body sglang/srt/models/model.py::Model'}\n", "not a pin"),
        ("SGLANG_READS = {'whole srt/models/model.py::Model'}\n", "not a pin"),
        ("SGLANG_READS = {'body srt/models/model.py'}\n", "not a pin"),
        ("SGLANG_READS = {name for name in ()}\n", "must be a literal"),
        ("SGLANG_MIRRORS = ('sig srt/models/model.py::Model.forward',)\n", "pinned by its body"),
    ],
)
def test_declaration_that_cannot_be_read(patched: Fork, source: str, match: str) -> None:
    patched.write("python/sglang/srt/mega/reads.py", source)
    (fault,) = patched.faults()
    assert match in fault and "python/sglang/srt/mega/reads.py" in fault


def test_repin_shows_upstreams_diff_since_the_last_sign_off(patched: Fork) -> None:
    pin(patched, *PINS)
    signoff.repin(patched.root)
    files = FILES | {MODEL: FILES[MODEL].replace(b"z = math.sqrt(y)", b"z = math.cbrt(y)")}
    sums = patched.release("1.1", files)
    patched.write(f"patches/{wheel.SUMS}", wheel.sums_text(sums))
    tree = base_tree(workspace.state_dir() / "probe", patched.index, "1.1")
    patched.write("patches/series", f"base sglang==1.1\nbase-tree {tree}\nmega-scale.patch\n")
    changed = [PINS[0], PINS[3]]
    told = [text.split(",")[0] for item, text in patched.check().faults if item == "pins hold"]
    assert told == [f"upstream changed {key}" for key in changed]
    signed, diffs = signoff.repin(patched.root)
    assert signed.version == "1.1" and sorted(diffs) == changed
    assert "-        z = math.sqrt(y)\n+        z = math.cbrt(y)" in diffs[PINS[0]]
    assert "a/srt/models/model.py" in diffs[PINS[3]]
    assert "pins hold" in patched.check().passed
