# SPDX-License-Identifier: Apache-2.0
"""Kernels in a program of their own under ThreadSanitizer, each CUDA thread a fiber that it knows."""

import shutil
import subprocess
from pathlib import Path

import pytest

from sglang.srt.mega.device.emulator_build import compiler, emulator_root
from sglang.srt.mega.device.sources import kernel_root, source_root

pytestmark = pytest.mark.kernels
SOURCE = Path(__file__).parent / "csrc" / "races.cpp"
FLAGS = ["-std=c++20", "-O1", "-g", "-w"]


@pytest.fixture(scope="module")
def program(tmp_path_factory) -> list[str]:
    """The command that runs the program, without address randomisation, which ThreadSanitizer cannot take."""
    folder = tmp_path_factory.mktemp("races")
    objects = []
    for source in sorted(emulator_root().glob("*.cpp")):  # not instrumented: see sanitizer.cpp
        objects.append(str(folder / f"{source.stem}.o"))
        subprocess.run(
            [compiler(), *FLAGS, "-DEMULATOR_TSAN", "-c", str(source), "-o", objects[-1]], check=True
        )
    binary = folder / "races"
    includes = [f"-I{kernel_root()}", f"-I{source_root()}"]
    command = [compiler(), *FLAGS, "-fsanitize=thread", *includes, str(SOURCE), *objects, "-o", str(binary)]
    subprocess.run(command, check=True)
    setarch = shutil.which("setarch")
    return [*([setarch, "-R"] if setarch else []), str(binary)]


def test_ordered_kernels_are_clean(program):
    result = subprocess.run(program, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 0 and "data race" not in result.stderr, result.stderr[-4000:]


def test_planted_race_is_found(program):
    result = subprocess.run([*program, "race"], capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 66
    assert "WARNING: ThreadSanitizer: data race" in result.stderr and "in without_barrier" in result.stderr
