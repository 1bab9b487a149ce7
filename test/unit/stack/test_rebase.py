# SPDX-License-Identifier: Apache-2.0
"""rebase on synthetic upstreams: every verdict, stop, resolution, gate and abort."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from sglang_fork.errors import ForkError
from sglang_fork.stack import pins, pip, signoff, wheel, workspace
from sglang_fork.stack.git import Git, isolated_env
from sglang_fork.stack.rebase import candidate, port, run
from sglang_fork.stack.rebase import state as states
from sglang_fork.stack.rebase.report import Report
from sglang_fork.stack.series import read_series

from .conftest import FILES, Fork

MODEL = "sglang/srt/models/model.py"
CRLF = "sglang/srt/crlf.py"


@pytest.fixture
def patched(fork: Fork, monkeypatch: pytest.MonkeyPatch) -> Fork:
    """Three patches on 1.0, a pin, and gates that count instead of resolving and building."""
    fork.apply()
    fork.patch("cpu-scale", MODEL, "y = x * self.width", "y = 2 * x * self.width", "Scale twice")
    fork.patch("mega-root", MODEL, "z = math.sqrt(y)", "z = math.sqrt(abs(y))", "Guard the root")
    fork.patch("crlf", CRLF, "b = 2", "b = 3", "Edit a file with CRLF lines")
    fork.export()
    fork.write(
        "python/sglang/srt/mega/reads.py", 'SGLANG_READS = {"body srt/models/model.py::Model.forward"}\n'
    )
    fork.write("python/sglang_fork/lock/runtime.txt", "1.0\n")
    signoff.repin(fork.root)
    fork.apply()

    def make_lock(checkout: Path, version: str) -> None:
        (checkout / "python/sglang_fork/lock/runtime.txt").write_text(f"{version}\n")

    monkeypatch.setattr(candidate, "make_lock", make_lock)
    monkeypatch.setattr(candidate, "run_tests", lambda checkout, tests: [])
    return fork


def release(fork: Fork, number: str, **changes: tuple[str, str]) -> None:
    """Publish a release that differs from 1.0 by text replacements in ``model``, ``crlf``, ``version``."""
    paths = {"model": MODEL, "crlf": CRLF, "version": "sglang/version.py"}
    files = dict(FILES)
    for key, (old, new) in changes.items():
        assert old.encode() in files[paths[key]]
        files[paths[key]] = files[paths[key]].replace(old.encode(), new.encode())
    fork.release(number, files)


def verdicts(report: Report) -> dict[str, str]:
    return {o.name.removesuffix(".patch"): o.verdict for o in report.outcomes}


def rebase(fork: Fork, version: str = "1.1", **kwargs: Any) -> Report:
    return run.start(version, checkout=fork.root, **kwargs)


def go_on(fork: Fork, **kwargs: Any) -> Report:
    return run.resume(fork.root, **kwargs)


def tree() -> Git:
    return Git(states.tree_dir())


def edit_tree(path: str, old: str, new: str) -> None:
    target = states.tree_dir() / path
    text = target.read_bytes()
    assert old.encode() in text
    target.write_bytes(text.replace(old.encode(), new.encode()))


def unchanged(fork: Fork, before: tuple[object, ...]) -> None:
    assert (fork.snapshot(), fork.git.resolve("HEAD"), workspace.read_stamp()) == before


def current(fork: Fork) -> tuple[object, ...]:
    return fork.snapshot(), fork.git.resolve("HEAD"), workspace.read_stamp()


def test_green_rebase_moves_patches_pins_sums_lock_and_tree(patched: Fork) -> None:
    release(patched, "1.1", version=("1", "2"), model=("import math\n", "import math\nimport os\n"))
    report = rebase(patched)
    assert report.faults == []
    assert verdicts(report) == {"cpu-scale": port.CLEAN, "mega-root": port.CLEAN, "crlf": port.CLEAN}
    assert read_series(patched.patches).version == "1.1"
    assert pins.read_pins(patched.patches).version == "1.1"
    assert set(wheel.read_sums(patched.patches)) == {n.replace("1.0", "1.1") for n in FILES_WHEELS}
    assert (patched.root / "python/sglang_fork/lock/runtime.txt").read_text() == "1.1\n"
    assert (patched.src / "sglang/version.py").read_text() == "VERSION = 2\n"
    assert "2 * x" in (patched.src / MODEL).read_text() and b"b = 3\r\n" in (patched.src / CRLF).read_bytes()
    assert patched.check().ok and not patched.apply().changed
    assert not states.folder().exists() and len(patched.git.lines("worktree", "list")) == 1
    assert "Scale twice" in report.range_diff and (workspace.state_dir() / "rebase-report.md").exists()


FILES_WHEELS = [
    f"sglang-1.0-{python}-{python}-manylinux_2_34_{machine}.whl"
    for python in ("cp311", "cp312", "cp313")
    for machine in ("x86_64", "aarch64")
]


def test_state_folder_inside_the_checkout_is_not_copied(
    patched: Fork, monkeypatch: pytest.MonkeyPatch
) -> None:
    release(patched, "1.1", version=("1", "2"))
    monkeypatch.setenv("SGLANG_FORK_HOME", str(patched.root / "state"))
    patched.apply()
    monkeypatch.setattr(candidate, "run_tests", lambda checkout, tests: ["stop here"])
    rebase(patched)
    assert not (candidate.candidate_dir() / "state").exists()
    run.abort()


def test_dry_run_judges_all_and_leaves_nothing(patched: Fork) -> None:
    release(
        patched, "1.1", model=("y = x * self.width", "y = x / self.width"), crlf=("b = 2\r\n", "b = 3\r\n")
    )
    before = current(patched)
    report = rebase(patched, dry_run=True)
    assert verdicts(report) == {"cpu-scale": port.CONFLICT, "mega-root": port.CLEAN, "crlf": port.UPSTREAM}
    assert any(f"cpu-scale.patch: conflict: in {MODEL}" in fault for fault in report.faults)
    assert f"| cpu-scale | conflict | in {MODEL} |" in report.text()
    unchanged(patched, before)
    assert not states.folder().exists() and len(patched.git.lines("worktree", "list")) == 1


def test_fuzzy_when_only_a_merge_does_it(patched: Fork) -> None:
    release(
        patched,
        "1.1",
        model=("        return y", "        assert y\n        return y"),
    )
    report = rebase(patched, dry_run=True)
    assert verdicts(report)["cpu-scale"] == port.FUZZY and report.faults == []


def test_already_upstream_is_dropped(patched: Fork) -> None:
    release(patched, "1.1", model=("y = x * self.width", "y = 2 * x * self.width"))
    report = rebase(patched)
    assert verdicts(report)["cpu-scale"] == port.UPSTREAM
    assert read_series(patched.patches).names == ("mega-root.patch", "crlf.patch")
    assert not (patched.patches / "cpu-scale.patch").exists()


def conflicted(fork: Fork) -> Report:
    release(fork, "1.1", model=("y = x * self.width", "y = x / self.width"))
    return rebase(fork)


def test_conflict_fix_continue(patched: Fork) -> None:
    before = current(patched)
    report = conflicted(patched)
    assert verdicts(report) == {"cpu-scale": port.CONFLICT}
    assert "resolve it in" in report.faults[0] and "--continue" in report.faults[0]
    unchanged(patched, before)
    with pytest.raises(ForkError, match=f"not resolved yet in .*: {MODEL}"):
        go_on(patched)
    tree().run("add", MODEL)
    with pytest.raises(ForkError, match="conflict markers are left"):
        go_on(patched)
    text = (states.tree_dir() / MODEL).read_text()
    ours = (
        text[: text.index("<<<<<<<")]
        + "        y = 2 * x / self.width\n"
        + text[text.index(">>>>>>>") :].split("\n", 1)[1]
    )
    (states.tree_dir() / MODEL).write_text(ours)
    tree().run("add", MODEL)
    report = go_on(patched)
    assert report.faults == []
    assert verdicts(report) == {"cpu-scale": port.BY_HAND, "mega-root": port.CLEAN, "crlf": port.CLEAN}
    assert "y = 2 * x / self.width" in (patched.src / MODEL).read_text()
    assert patched.check().ok


def test_a_resolution_is_replayed_next_time(patched: Fork) -> None:
    conflicted(patched)
    (states.tree_dir() / MODEL).write_text(
        FILES[MODEL].decode().replace("y = x * self.width", "y = 2 * x / self.width")
    )
    tree().run("add", MODEL)
    tree().run("am", "--continue")
    run.abort()
    report = rebase(patched)
    assert verdicts(report) == {"cpu-scale": port.CONFLICT}
    assert "y = 2 * x / self.width" in (states.tree_dir() / MODEL).read_text()
    assert "<<<<<<<" not in (states.tree_dir() / MODEL).read_text()


def test_abort(patched: Fork) -> None:
    before = current(patched)
    conflicted(patched)
    run.abort()
    unchanged(patched, before)
    assert not states.folder().exists() and len(patched.git.lines("worktree", "list")) == 1
    with pytest.raises(ForkError, match="no rebase is in progress"):
        run.abort()
    with pytest.raises(ForkError, match="no rebase is in progress"):
        go_on(patched)


def test_skip_leaves_the_waiting_patch_out(patched: Fork) -> None:
    conflicted(patched)
    report = go_on(patched, skip=True)
    assert verdicts(report) == {"cpu-scale": port.SKIPPED, "mega-root": port.CLEAN, "crlf": port.CLEAN}
    assert read_series(patched.patches).names == ("mega-root.patch", "crlf.patch")


def test_missing_file_is_reported_not_mangled(patched: Fork) -> None:
    files = dict(FILES)
    files["sglang/srt/models/network.py"] = files.pop(MODEL)
    patched.release("1.1", files)
    patched.write("python/sglang/srt/mega/reads.py", "")
    signoff.repin(patched.root)
    patched.apply()
    report = rebase(patched)
    assert verdicts(report) == {"cpu-scale": port.MISSING}
    assert f"the new base has no {MODEL} (now sglang/srt/models/network.py, 100 % alike)" in report.faults[0]
    assert tree().lines("status", "--porcelain") == []
    with pytest.raises(ForkError, match="must be exactly one commit"):
        go_on(patched)
    edit_tree("sglang/srt/models/network.py", "y = x * self.width", "y = 2 * x * self.width")
    message = patched.git.out("log", "-1", "--format=%B", ":/Scale twice").replace(
        MODEL, MODEL.replace("model.py", "network.py")
    )
    tree().run("commit", "--quiet", "-am", message)
    report = go_on(patched)
    assert verdicts(report) == {"cpu-scale": port.BY_HAND, "mega-root": port.MISSING}
    report = go_on(patched, skip=True)
    assert report.faults == []
    assert "2 * x" in (patched.src / "sglang/srt/models/network.py").read_text()


MOVED = (
    "    def forward(self, x):\n        low = x\n",
    "    def backward(self, x):\n        low = x\n",
)


def test_silent_misplacement_stops(patched: Fork) -> None:
    """Upstream renames the function: the patch still applies without a word, in the wrong place."""
    release(patched, "1.1", model=MOVED)
    report = rebase(patched)
    assert verdicts(report) == {"cpu-scale": port.MISPLACED}
    assert f"edits {MODEL}::Layer.backward; no longer edits {MODEL}::Layer.forward" in report.faults[0]
    report = go_on(patched)
    assert verdicts(report) == {"cpu-scale": port.MISPLACED}
    message = tree().out("log", "-1", "--format=%B").replace("Layer.forward", "Layer.backward")
    tree().run("commit", "--quiet", "--amend", "-m", message)
    report = go_on(patched)
    assert report.faults == [] and verdicts(report)["cpu-scale"] == port.BY_HAND
    assert patched.check().ok


def test_another_patch_id_is_not_taken_for_the_waiting_patch(patched: Fork) -> None:
    release(patched, "1.1", model=MOVED)
    rebase(patched)
    message = tree().out("log", "-1", "--format=%B").replace("cpu-scale", "cpu-other")
    tree().run("commit", "--quiet", "--amend", "-m", message)
    with pytest.raises(ForkError, match="Patch-Id is cpu-other"):
        go_on(patched)


def test_pinned_function_that_upstream_changed_is_named_and_needs_a_sign_off(patched: Fork) -> None:
    key = "body srt/models/model.py::Model.forward"
    release(patched, "1.1", model=("y = super().forward(x)", "y = super().forward(x + 1)"))
    before = current(patched)
    report = rebase(patched)
    assert list(report.pins) == [key] and "+        y = super().forward(x + 1)" in report.pins[key]
    assert any(f"upstream changed {key}, used by python/sglang/srt/mega/reads.py" in f for f in report.faults)
    unchanged(patched, before)
    assert go_on(patched).faults != []
    report = go_on(patched, repin=True)
    assert report.faults == []
    assert pins.read_pins(patched.patches).version == "1.1" and patched.check().ok


def test_pinned_function_that_went_is_named(patched: Fork) -> None:
    release(patched, "1.1", model=("class Model(Layer)", "class Network(Layer)"))
    report = rebase(patched, dry_run=True)
    assert "upstream changed or removed body srt/models/model.py::Model.forward" in report.faults


def test_candidate_edits_reach_the_checkout(patched: Fork) -> None:
    release(patched, "1.1", model=("y = super().forward(x)", "y = super().forward(x + 1)"))
    rebase(patched)
    adapted = candidate.candidate_dir() / "python/sglang/srt/mega/__init__.py"
    adapted.write_text("# adapted\n")
    (candidate.candidate_dir() / "python/sglang/srt/mega/extra.py").write_text("x = 1\n")
    assert go_on(patched, repin=True).faults == []
    assert (patched.root / "python/sglang/srt/mega/__init__.py").read_text() == "# adapted\n"
    assert (patched.src / "sglang/srt/mega/extra.py").read_text() == "x = 1\n"


def test_file_changed_in_checkout_and_candidate(patched: Fork) -> None:
    release(patched, "1.1", model=("y = super().forward(x)", "y = super().forward(x + 1)"))
    rebase(patched)
    (candidate.candidate_dir() / "python/sglang/srt/mega/__init__.py").write_text("# adapted\n")
    patched.write("python/sglang/srt/mega/__init__.py", "# meanwhile\n")
    with pytest.raises(
        ForkError, match="changed in the checkout since the rebase began: python/sglang/srt/mega"
    ):
        go_on(patched, repin=True)
    assert read_series(patched.patches).version == "1.0"


def test_failing_tests_keep_the_checkout(patched: Fork, monkeypatch: pytest.MonkeyPatch) -> None:
    release(patched, "1.1", version=("1", "2"))
    before = current(patched)
    monkeypatch.setattr(candidate, "run_tests", lambda checkout, tests: ["./sglang.sh test ended with 1"])
    assert rebase(patched).faults == ["./sglang.sh test ended with 1"]
    unchanged(patched, before)
    monkeypatch.setattr(candidate, "run_tests", lambda checkout, tests: [])
    assert go_on(patched).faults == []
    assert read_series(patched.patches).version == "1.1"


def test_skipped_tests_are_said_to_be(patched: Fork, monkeypatch: pytest.MonkeyPatch) -> None:
    release(patched, "1.1", version=("1", "2"))
    monkeypatch.setattr(candidate, "run_tests", lambda checkout, tests: ["must not run"])
    report = rebase(patched, skip_tests=True)
    assert report.faults == [] and "the CPU tests were not run" in report.notes


def test_only_the_named_tests_and_the_report_says_so(patched: Fork, monkeypatch: pytest.MonkeyPatch) -> None:
    release(patched, "1.1", version=("1", "2"))
    ran: list[list[str]] = []
    monkeypatch.setattr(candidate, "run_tests", lambda checkout, tests: ran.append(tests) or ["failed"])
    assert rebase(patched, tests=["test/unit/stack"]).faults == ["failed"]
    assert go_on(patched).faults == ["failed"]
    assert ran == [["test/unit/stack"], []], "the choice is that of one command"
    monkeypatch.setattr(candidate, "run_tests", lambda checkout, tests: ran.append(tests) or [])
    report = go_on(patched, tests=["test/unit"])
    assert ran[2:] == [["test/unit"]]
    assert report.faults == [] and "only these tests were run: test/unit" in report.notes


def test_tests_run_in_the_candidate_with_a_state_folder_of_their_own(
    patched: Fork, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = workspace.state_dir()
    monkeypatch.undo()
    monkeypatch.setenv("SGLANG_FORK_HOME", str(home))
    monkeypatch.setenv("SGLANG_FORK_PROFILE", "cuda")
    script = patched.write(
        "sglang.sh",
        '#!/bin/sh\necho "$SGLANG_FORK_HOME $* $SGLANG_FORK_PROFILE" >>"$(dirname "$0")/calls"\nexit 1\n',
    )
    script.chmod(0o755)
    states.folder().mkdir()
    assert candidate.run_tests(patched.root) == [f"./sglang.sh test in {patched.root} ended with 1"]
    home = states.folder() / "home"
    calls = (patched.root / "calls").read_text().splitlines()
    assert calls == [f"{home} test "]
    assert (home / "wheels").resolve() == wheel.wheels_dir()


def test_patches_only_writes_a_folder_and_keeps_the_checkout(patched: Fork) -> None:
    release(patched, "1.1", model=("import math\n", "import math\nimport os\n"))
    before = current(patched)
    report = rebase(patched, patches_only=True)
    unchanged(patched, before)
    out = workspace.state_dir() / "rebased-1.1"
    assert read_series(out).version == "1.1" and len(list(out.glob("*.patch"))) == 3
    assert report.faults == [] and str(out) in report.notes[0]


@pytest.mark.parametrize("version", ["1.0", "9.9"])
def test_target_that_makes_no_sense(patched: Fork, version: str) -> None:
    before = current(patched)
    with pytest.raises((ForkError, FileNotFoundError)):
        rebase(patched, version)
    unchanged(patched, before)
    assert not states.in_progress()


def test_newest_release(patched: Fork, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pip, "newest_release", lambda: "1.0")
    report = rebase(patched, "newest")
    assert report.notes == ["1.0 is the newest release"] and not report.outcomes and not report.faults
    release(patched, "1.1", version=("1", "2"))
    monkeypatch.setattr(pip, "newest_release", lambda: "1.1")
    assert rebase(patched, "newest", dry_run=True).new == "1.1"


def test_second_rebase_and_unexported_work(patched: Fork) -> None:
    conflicted(patched)
    with pytest.raises(ForkError, match="a rebase is in progress"):
        rebase(patched)
    run.abort()
    patched.edit(MODEL, "y = 2", "y = 4")
    with pytest.raises(ForkError, match="not exported"):
        rebase(patched)


def upstream_repository(fork: Fork, files: dict[str, bytes]) -> Path:
    """A repository in upstream's layout holding ``files`` under ``python/`` and a kernel beside it."""
    repo = fork.root.parent / "upstream"
    for path, content in {f"python/{k}": v for k, v in files.items()}.items():
        (repo / path).parent.mkdir(parents=True, exist_ok=True)
        (repo / path).write_bytes(content)
    (repo / "sgl-kernel/csrc").mkdir(parents=True, exist_ok=True)
    (repo / "sgl-kernel/csrc/theirs.cu").write_text("// theirs\n")
    (repo / "python/sglang/version.py").chmod(0o755)
    subprocess.run(["git", "init", "-q", "-b", "main", str(repo)], check=True, env=isolated_env())
    git = Git(repo)
    git.run("add", "--all", "--force")
    git.run("commit", "--quiet", "-m", "upstream main")
    return repo


def am(repo: Path, series: list[Path]) -> subprocess.CompletedProcess[bytes]:
    return Git(repo).run("am", "--3way", "--keep-cr", *map(str, series), check=False)


def test_from_git_clean_gives_a_series_for_that_repository(patched: Fork) -> None:
    files = FILES | {"sglang/version.py": b"VERSION = 'main'\n"}
    repo = upstream_repository(patched, files)
    before = current(patched)
    report = run.start(None, f"{repo.as_uri()}@main", checkout=patched.root)
    assert report.faults == [] and set(verdicts(report).values()) == {port.CLEAN}
    unchanged(patched, before)
    (out,) = workspace.state_dir().glob("rebased-git-*")
    series = sorted(out.iterdir())
    assert [p.name for p in series] == [
        "0001-cpu-scale.patch",
        "0002-mega-root.patch",
        "0003-crlf.patch",
        "0004-add-python-sglang.patch",
        "0005-add-sgl-kernel.patch",
    ]
    assert am(repo, series).returncode == 0
    assert "2 * x" in (repo / "python" / MODEL).read_text()
    assert (repo / "sgl-kernel/csrc/mega/hop.cuh").read_text() == "// kernel\n"
    assert (repo / "sgl-kernel/csrc/theirs.cu").exists()
    assert (repo / "python/sglang/srt/mega/reads.py").exists()
    assert not (repo / "python/sglang/srt/mega/_src").exists()


def test_from_git_conflict_and_continue(patched: Fork) -> None:
    files = FILES | {MODEL: FILES[MODEL].replace(b"z = math.sqrt(y)", b"z = math.cbrt(y)")}
    repo = upstream_repository(patched, files)
    report = run.start(None, f"{repo.as_uri()}@main", checkout=patched.root)
    assert verdicts(report) == {"cpu-scale": port.CLEAN, "mega-root": port.CONFLICT}
    (states.tree_dir() / MODEL).write_bytes(
        files[MODEL]
        .replace(b"y = x * self.width", b"y = 2 * x * self.width")
        .replace(b"math.cbrt(y)", b"math.cbrt(abs(y))")
    )
    tree().run("add", MODEL)
    report = go_on(patched)
    assert report.faults == [] and verdicts(report)["mega-root"] == port.BY_HAND
    assert list(report.pins) == ["body srt/models/model.py::Model.forward"]
    (out,) = workspace.state_dir().glob("rebased-git-*")
    assert am(repo, sorted(out.iterdir())).returncode == 0
    assert "math.cbrt(abs(y))" in (repo / "python" / MODEL).read_text()


@pytest.mark.parametrize("source", ["no-at-sign", "url@", "@main", "host:path@git:x"])
def test_from_git_malformed(patched: Fork, source: str) -> None:
    with pytest.raises(ForkError, match="not URL@REF"):
        run.start(None, source, checkout=patched.root)


def test_from_git_that_cannot_serve(patched: Fork) -> None:
    repo = upstream_repository(patched, FILES)
    with pytest.raises(ForkError, match="cannot fetch gone"):
        run.start(None, f"{repo.as_uri()}@gone", checkout=patched.root)
    (repo / "sgl-kernel/csrc/mega").mkdir()
    (repo / "sgl-kernel/csrc/mega/hop.cuh").write_text("// theirs\n")
    Git(repo).run("add", "--all")
    Git(repo).run("commit", "--quiet", "-m", "Same path")
    with pytest.raises(ForkError, match=r"upstream owns the path of: sgl-kernel/csrc/mega/hop\.cuh"):
        run.start(None, f"{repo.as_uri()}@main", checkout=patched.root)
    Git(repo).run("rm", "-r", "-q", "python")
    Git(repo).run("commit", "--quiet", "-m", "No package")
    with pytest.raises(ForkError, match="has no python/sglang"):
        run.start(None, f"{repo.as_uri()}@main", checkout=patched.root)
    assert not states.in_progress()
