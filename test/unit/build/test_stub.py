# SPDX-License-Identifier: Apache-2.0
"""Stub libraries, compiled and loaded for real: a library with versioned needs starts with the stub alone."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from sglang_fork.binary.elf import Elf, NotElfError
from sglang_fork.build import stub
from sglang_fork.build.profile import CPU_LEAVES_OUT, left_out
from sglang_fork.build.stub import LeftOut, build_stubs, find_compiler, wanted_symbols
from sglang_fork.errors import ForkError

MATH = LeftOut("libmath.so.7", r"math\w+")


def compile_library(folder: Path, name: str, source: str, *options: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.c").write_text(source)
    command = ["gcc", "-shared", "-fPIC", *options, "-o", str(folder / name), str(folder / f"{name}.c")]
    subprocess.run(
        [c for c in command if not c.startswith("-l")] + [c for c in command if c.startswith("-l")],
        check=True,
    )
    return folder / name


@pytest.fixture
def user(tmp_path: Path) -> Path:
    """A library that needs ``libmath.so.7`` (versioned symbols) and the driver (unversioned)."""
    real = tmp_path / "real"
    real.mkdir()
    (real / "map").write_text("libmath.so.7 { global: mathAdd; mathMul; local: *; };\n")
    compile_library(
        real,
        "libmath.so.7",
        "int mathAdd(void) { return 5; } int mathMul(void) { return 6; }",
        "-Wl,-soname,libmath.so.7",
        f"-Wl,--version-script={real / 'map'}",
    )
    compile_library(real, "libcuda.so.1", "int cuInit(void) { return 0; }", "-Wl,-soname,libcuda.so.1")
    source = "int mathAdd(void); int cuInit(void); int other(void) { return mathAdd() + cuInit(); }"
    site = tmp_path / "site"
    return compile_library(site, "user.so", source, f"-L{real}", "-l:libmath.so.7", "-l:libcuda.so.1")


def test_wanted_symbols_by_version_and_by_pattern(user: Path) -> None:
    wanted = wanted_symbols([user], [stub.DRIVER_STUB, MATH])
    assert wanted == {"libmath.so.7": {"mathAdd": "libmath.so.7"}, "libcuda.so.1": {"cuInit": ""}}


def test_a_library_loads_with_the_stubs_alone(user: Path, tmp_path: Path) -> None:
    call = [sys.executable, "-c", f"import ctypes; print(ctypes.CDLL({str(user)!r}).other())"]
    out = tmp_path / "stubs"
    bare = subprocess.run(call, capture_output=True, text=True)
    assert bare.returncode and "libmath.so.7" in bare.stderr
    assert build_stubs(user.parent, [MATH], out) == ["libcuda.so.1", "libmath.so.7"]
    done = subprocess.run(
        call, capture_output=True, text=True, env=os.environ | {"LD_LIBRARY_PATH": str(out)}
    )
    assert done.stdout.strip() == "101", done.stderr
    assert sorted(p.name for p in out.iterdir()) == ["libcuda.so.1", "libmath.so.7"]


def test_stubs_are_replaced_whole(user: Path, tmp_path: Path) -> None:
    out = tmp_path / "stubs"
    out.mkdir()
    (out / "stale.so").touch()
    build_stubs(user.parent, [], out)
    assert [p.name for p in out.iterdir()] == ["libcuda.so.1"]
    assert ctypes.CDLL(str(out / "libcuda.so.1")).cuInit() == 100


def test_functions_that_nothing_installed_asks_for(user: Path, tmp_path: Path) -> None:
    header = tmp_path / "cuda.h"
    header.write_text("#define cuMemAlloc cuMemAlloc_v2\nCUresult CUDAAPI cuInit(unsigned int Flags);\n")
    names = stub.driver_functions(header)
    assert names == {"cuMemAlloc", "cuMemAlloc_v2", "cuInit"}
    build_stubs(user.parent, [], tmp_path / "stubs", names)
    assert ctypes.CDLL(str(tmp_path / "stubs/libcuda.so.1")).cuMemAlloc_v2() == 100
    assert stub.driver_functions(tmp_path / "none.h") == set()


def test_no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(ForkError, match=r"no C compiler[\s\S]*install gcc"):
        find_compiler()


def test_a_failing_compiler_leaves_nothing(
    user: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stub, "find_compiler", lambda: "false")
    with pytest.raises(ForkError, match="could not build the stub"):
        build_stubs(user.parent, [MATH], tmp_path / "out" / "stubs")
    assert list((tmp_path / "out").iterdir()) == []


def test_elf_of_this_python_and_of_no_elf(tmp_path: Path, user: Path) -> None:
    elf = Elf(user)
    assert elf.needed[:2] == ("libmath.so.7", "libcuda.so.1")
    assert {s.name for s in elf.symbols() if s.defined} >= {"other"}
    (tmp_path / "text").write_text("x" * 100)
    (tmp_path / "short").write_bytes(b"\x7fELF")
    (tmp_path / "cut").write_bytes(user.read_bytes()[:200])
    for name, says in {"text": "not a 64-bit", "short": "too short", "cut": "cut off"}.items():
        with pytest.raises(NotElfError, match=says):
            list(Elf(tmp_path / name).symbols())


def test_no_pattern_takes_another_librarys_symbols() -> None:
    patterns = [(item.soname, item.pattern) for package in CPU_LEAVES_OUT for item in package.libraries]
    examples = {
        "cublasLtMatmul": "libcublasLt.so.13",
        "cublasCreate_v2": "libcublas.so.13",
        "cusparseLtInit": "libcusparseLt.so.0",
        "cusparseCreate": "libcusparse.so.12",
        "ncclAllReduce": "libnccl.so.2",
    }
    import re

    for name, soname in examples.items():
        assert [s for s, pattern in patterns if re.fullmatch(pattern, name)] == [soname]


def test_only_the_cpu_profile_leaves_anything_out() -> None:
    assert left_out("cuda") == () and len(left_out("cpu")) == len(CPU_LEAVES_OUT)
