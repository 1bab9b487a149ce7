# SPDX-License-Identifier: Apache-2.0
"""Bad input through the front door, on a copy of this checkout: one clear error, nothing half-made.

The package index is cut off, so that a wheel is what lies in the state folder or nothing.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sglang_fork.paths import ROOT, state_dir
from sglang_fork.stack.platforms import native_platform
from sglang_fork.stack.series import read_series

NO_INDEX = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "", "UV_OFFLINE": "1"}


class Copy:
    """A copy of the checkout with a state folder of its own that holds this machine's base wheel."""

    def __init__(self, folder: Path) -> None:
        self.root, self.state = folder / "checkout", folder / "state"
        skip = shutil.ignore_patterns("__pycache__", "bench")
        for name in ("patches", "python", "sgl-kernel"):
            shutil.copytree(ROOT / name, self.root / name, ignore=skip)
        for name in ("sglang.sh", "LICENSE", "NOTICE"):
            shutil.copy(ROOT / name, self.root)
        (self.state / "wheels").mkdir(parents=True)
        version = read_series(ROOT / "patches").version
        self.wheel = self.state / "wheels" / native_platform().wheel_name(version)
        self.restore()

    def restore(self) -> None:
        self.wheel.unlink(missing_ok=True)
        shutil.copy(state_dir() / "wheels" / self.wheel.name, self.wheel)

    def env(self, **variables: str) -> dict[str, str]:
        own = {"SGLANG_FORK_HOME": str(self.state), "SGLANG_PYTHON": sys.executable}
        # The tests' own environment shows them the driver's stub, which would pass for a driver here.
        inherited = {key: value for key, value in os.environ.items() if key != "LD_LIBRARY_PATH"}
        return inherited | NO_INDEX | own | variables

    def call(self, *words: str, prefix: tuple[str, ...] = (), **variables: str) -> tuple[int, str]:
        """Exit status and standard error."""
        command = [*prefix, str(self.root / "sglang.sh"), *words]
        done = subprocess.run(command, capture_output=True, text=True, env=self.env(**variables))
        return done.returncode, done.stderr

    def refused(self, says: str, *words: str, code: int = 2, **options: object) -> None:
        """The command must end with ``code`` and one error that ``says`` so, and make nothing."""
        status, error = self.call(*words, **options)  # type: ignore[arg-type]
        assert (status, "Traceback" in error) == (code, False), error
        assert error.count("sglang.sh: ") == 1 and says in error, error
        left = {path.name for path in self.state.iterdir()} - {"wheels", "src", "stack.lock", "build.lock"}
        assert left == set(), "nothing half-made"


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Copy]:
    """One copy for every case: each must leave it as usable as it was, and the last one uses it."""
    made = Copy(tmp_path_factory.mktemp("bad"))
    yield made
    shutil.rmtree(made.root.parent)


@pytest.fixture
def patch(copy: Copy) -> Iterator[Path]:
    """The second patch of the series, put back afterwards."""
    name = (copy.root / "patches/series").read_text().splitlines()[3]
    path = copy.root / "patches" / name
    content = path.read_bytes()
    yield path
    path.write_bytes(content)


def test_a_missing_patch(copy: Copy, patch: Path) -> None:
    patch.unlink()
    copy.refused(patch.name, "apply")


def test_a_patch_that_no_longer_applies(copy: Copy, patch: Path) -> None:
    lines = patch.read_text().splitlines(keepends=True)
    at = next(i for i, line in enumerate(lines) if line.startswith("@@ ")) + 1
    patch.write_text("".join([*lines[:at], " changed_" + lines[at][1:], *lines[at + 1 :]]))
    copy.refused(f"patches/{patch.name} does not apply", "apply")


def test_a_corrupt_wheel_and_no_network(copy: Copy) -> None:
    copy.wheel.write_bytes(copy.wheel.read_bytes()[:-1] + b"x")
    status, error = copy.call("apply")
    assert status == 1 and "pip could not get sglang" in error and "Traceback" not in error
    assert "was not the expected file" in error and not copy.wheel.exists(), "it is not used once more"
    copy.restore()


def test_no_compiler(copy: Copy, tmp_path: Path) -> None:
    for tool in ("bash", "dirname", "git"):
        (tmp_path / tool).symlink_to(str(shutil.which(tool)))
    status, error = copy.call("build", "--profile", "cpu", PATH=str(tmp_path))
    assert status == 2 and "no C compiler (gcc, cc or clang) on PATH" in error
    assert not (copy.state / "venv-cpu").exists()


def test_a_full_disk(copy: Copy, tmp_path: Path) -> None:
    """A real one: a small file system of this process alone holds the state folder."""
    small = ["unshare", "--mount", "bash", "-c"]
    if subprocess.run([*small, f"mount -t tmpfs -o size=1m none {tmp_path}"], capture_output=True).returncode:
        pytest.skip("this user may not mount a file system")
    size = copy.wheel.stat().st_size // 1024 + 8192
    mount = f'mount -t tmpfs -o size={size}k none "$0" && mkdir "$0/wheels" && cp "$1" "$0/wheels"'
    command = [
        *small,
        f'{mount} && exec "$2" apply',
        str(tmp_path),
        str(copy.wheel),
        str(copy.root / "sglang.sh"),
    ]
    env = copy.env(SGLANG_FORK_HOME=str(tmp_path))
    done = subprocess.run(command, capture_output=True, text=True, env=env)
    assert done.returncode == 1, done.stderr
    assert "the disk is full: ./sglang.sh clean" in done.stderr
    assert "Traceback" not in done.stderr and done.stderr.count("sglang.sh: ") == 1


def test_an_interrupted_build_then_a_dirty_tree(copy: Copy) -> None:
    """Interrupted at its first step, the build counts as none, and the next command goes on from there."""
    child = subprocess.Popen(
        [str(copy.root / "sglang.sh"), "build", "--profile", "cpu"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=copy.env(),
    )
    assert child.stdout is not None and child.stdout.readline().startswith("[1/")
    time.sleep(1)
    child.send_signal(signal.SIGINT)
    _, error = child.communicate(timeout=120)
    assert child.returncode == 130 and error.splitlines()[-1] == "sglang.sh: interrupted"
    assert not (copy.state / "venv-cpu").exists()
    assert copy.call("apply") == (0, "")
    edited = copy.state / "src/sglang/__init__.py"
    edited.write_text(edited.read_text() + "# mine\n")
    (copy.root / "python/sglang/srt/mega/another.py").write_text("# SPDX-License-Identifier: Apache-2.0\n")
    status, error = copy.call("apply")
    assert status == 2 and "holds work that was not exported" in error and "__init__.py" in error
    assert edited.read_text().endswith("# mine\n")
    assert copy.call("apply", "--discard")[0] == 0
    assert not edited.read_text().endswith("# mine\n")
