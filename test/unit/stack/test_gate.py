# SPDX-License-Identifier: Apache-2.0
"""The gate of a rebase, nothing replaced: a lock resolved, an environment built, pytest run in it.

The upstream is the synthetic one; everything else is the tool's own, in a checkout that holds a copy of it.
"""

from __future__ import annotations

import json
import shutil

import pytest

from sglang_fork.lock.check import check_lock
from sglang_fork.paths import ROOT
from sglang_fork.stack import faults, workspace
from sglang_fork.stack.rebase import run
from sglang_fork.stack.rebase import state as states
from sglang_fork.stack.series import read_series

from .conftest import FILES, Fork

MODEL = "sglang/srt/models/model.py"
TEST = """\
from sglang.srt.models.model import Layer, Model
from sglang.version import VERSION


def test_patches_work_on_this_base():
    assert Layer(3).forward(2) == 12, "doubled by a patch"
    assert Model(3).forward(6) == 6 and VERSION == 2
"""


@pytest.fixture
def real(fork: Fork, monkeypatch: pytest.MonkeyPatch) -> Fork:
    """The synthetic fork with the tool, its locks' inputs and one test of its own, on release 1.0."""
    monkeypatch.setattr(faults, "check_lock", check_lock)
    for variable in ("SGLANG_FORK_PROFILE", "PYTEST_ADDOPTS", "LD_LIBRARY_PATH"):
        monkeypatch.delenv(variable, raising=False)
    for name in ("sglang.sh", "LICENSE", "NOTICE", ".pytest.ini", ".gitignore"):
        shutil.copy(ROOT / name, fork.root / name)
    skip = shutil.ignore_patterns("__pycache__", "*.txt")
    shutil.copytree(ROOT / "python/sglang_fork", fork.root / "python/sglang_fork", ignore=skip)
    for module in (fork.root / "python/sglang_fork/bench").glob("*.py"):  # it reads SGLang, not this upstream
        module.write_text(module.read_text().replace("SGLANG_READS", "READS_OF_SGLANG"))
    fork.write("python/sglang_fork/lock/dev.in", "pytest\npytest-timeout\n")
    fork.write("test/unit/test_x.py", TEST + "\n\ndef test_y(): ...\n")
    fork.apply()
    fork.patch("cpu-scale", MODEL, "y = x * self.width", "y = 2 * x * self.width", "Scale twice")
    fork.export()
    return fork


def release(fork: Fork, **changes: tuple[bytes, bytes]) -> None:
    files = FILES | {"sglang/version.py": b"VERSION = 2\n"}
    for old, new in changes.values():
        assert old in files[MODEL]
        files[MODEL] = files[MODEL].replace(old, new)
    fork.release("1.1", files)


def test_green_only_after_the_tests_ran_on_the_new_base(
    real: Fork, capfd: pytest.CaptureFixture[str]
) -> None:
    release(real)
    report = run.start("1.1", checkout=real.root)
    said = capfd.readouterr().out
    assert report.faults == [], said
    assert "2 passed, 0 failed" in said, "the gate's own pytest"
    assert said.index("rebase: the gate runs ./sglang.sh test in ") < said.index("== test/unit"), "not silent"
    assert "profile cpu, sglang 1.1+mega.1.g" in said, "the gate's own build"
    assert read_series(real.patches).version == "1.1" and real.check().ok
    lock = (real.root / "python/sglang_fork/lock/runtime.txt").read_text()
    assert "# base: sglang==1.1\n" in lock and "nvidia-cuda-nvcc==13.0." in lock
    assert not states.folder().exists(), "the gate's environment is gone"


def test_a_change_that_no_pin_sees_is_found_by_the_tests(
    real: Fork, capfd: pytest.CaptureFixture[str]
) -> None:
    """The patch goes on cleanly and no pin breaks; upstream alone computes something else."""
    release(real, root=(b"z = math.sqrt(y)", b"z = math.sqrt(y) + 1"))
    before = real.snapshot(), real.git.resolve("HEAD"), workspace.read_stamp()
    report = run.start("1.1", checkout=real.root)
    said = capfd.readouterr().out
    assert "1 passed, 1 failed" in said
    (fault,) = report.faults
    assert fault.endswith("sglang.sh test in " + str(states.folder() / "checkout") + " ended with 1") or (
        "./sglang.sh test in" in fault and "ended with 1" in fault
    )
    assert (real.snapshot(), real.git.resolve("HEAD"), workspace.read_stamp()) == before
    built = json.loads((states.folder() / "home/venv-cpu/sglang-build.json").read_text())
    assert built["fork"].startswith("1.1+mega.1.g")
    # Correct the test in the candidate, as the README says, and go on.
    adapted = states.folder() / "checkout/test/unit/test_x.py"
    adapted.write_text(adapted.read_text().replace("forward(6) == 6", "forward(6) == 7"))
    assert run.resume(real.root).faults == []
    assert "forward(6) == 7" in (real.root / "test/unit/test_x.py").read_text()
    assert read_series(real.patches).version == "1.1"
