# SPDX-License-Identifier: Apache-2.0
"""Stub libraries for the cpu profile: what torch and SGLang's extensions are linked with and never call on
a CPU.

The CUDA math and communication libraries are over half of an installation, and a machine without a GPU
uses none of them; but the loader wants every library that ``libtorch_cuda.so`` names. So each one that the
profile leaves out, and the driver's ``libcuda.so.1``, gets a stub: a shared object that defines exactly
the symbols that the installed extensions ask of it, with their symbol versions, each returning an error
status. They lie in the state folder and are reached through ``LD_LIBRARY_PATH`` of CPU processes alone,
never where a driver is present (``env.process_env``).
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from sglang_fork.binary.elf import Elf, NotElfError
from sglang_fork.env import DRIVER
from sglang_fork.errors import ForkError


@dataclass(frozen=True)
class LeftOut:
    """A shared library that the profile leaves out.

    ``pattern`` matches its symbols where no version says whose they are; ``status`` is what its stub returns.
    """

    soname: str
    pattern: str
    status: int = 1


DRIVER_STUB = LeftOut(DRIVER, r"cu[A-Z]\w*", status=100)  # CUDA_ERROR_NO_DEVICE


def find_compiler() -> str:
    """A C compiler on PATH; a ForkError where there is none."""
    for name in ("gcc", "cc", "clang"):
        found = shutil.which(name)
        if found:
            return found
    raise ForkError(
        "no C compiler (gcc, cc or clang) on PATH", "install gcc; the cpu profile builds stub libraries"
    )


def wanted_symbols(libraries: Iterable[Path], left_out: Iterable[LeftOut]) -> dict[str, dict[str, str]]:
    """By soname of each left-out library, the symbols that ``libraries`` ask of it: name to version."""
    outs = {item.soname: re.compile(item.pattern) for item in left_out}
    wanted: dict[str, dict[str, str]] = {soname: {} for soname in outs}
    for path in libraries:
        try:
            elf = Elf(path)
            asked = [soname for soname in elf.needed if soname in outs]
            if not asked:
                continue
            for symbol in elf.symbols():
                if symbol.defined:
                    continue
                if symbol.library in wanted:
                    wanted[symbol.library][symbol.name] = symbol.version
                elif not symbol.library:
                    for soname in asked:
                        if outs[soname].fullmatch(symbol.name):
                            wanted[soname].setdefault(symbol.name, "")
        except NotElfError:
            continue
    return wanted


def driver_functions(header: Path) -> set[str]:
    """The names of the driver's functions in ``cuda.h``, those with a version suffix too."""
    return set(re.findall(r"\bcu[A-Z]\w*", header.read_text(errors="replace"))) if header.exists() else set()


def build_stubs(
    site_packages: Path, left_out: Iterable[LeftOut], out: Path, driver: Iterable[str] = ()
) -> list[str]:
    """Compile one stub a library into folder ``out``, replacing what lay there; return the sonames.

    ``driver``: functions that the driver's stub has beside those that the extensions ask of it.
    """
    compiler = find_compiler()
    outs = [DRIVER_STUB, *left_out]
    wanted = wanted_symbols(sorted(site_packages.rglob("*.so")), outs)
    wanted[DRIVER] = dict.fromkeys(driver, "") | wanted[DRIVER]
    out.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(dir=out.parent, prefix="stub-"))
    try:
        for item in outs:
            _compile(compiler, item, wanted[item.soname], scratch)
        shutil.rmtree(out, ignore_errors=True)
        scratch.rename(out)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return sorted(wanted)


def _compile(compiler: str, item: LeftOut, symbols: dict[str, str], out: Path) -> None:
    soname = item.soname
    source = "".join(f"int {name}(void) {{ return {item.status}; }}\n" for name in sorted(symbols))
    (out / "stub.c").write_text(source or "extern int unused_stub;\n")
    versions: dict[str, list[str]] = {}
    for name, version in symbols.items():
        if version:
            versions.setdefault(version, []).append(name)
    script = "".join(
        f"{v} {{ global: {' '.join(f'{n};' for n in sorted(ns))} }};\n" for v, ns in versions.items()
    )
    (out / "stub.map").write_text(script)
    command = [
        compiler,
        "-shared",
        "-fPIC",
        "-O1",
        "-w",
        "-fno-builtin",
        "-nostdlib",
        f"-Wl,-soname,{soname}",
    ]
    if versions:
        command.append(f"-Wl,--version-script={out / 'stub.map'}")
    done = subprocess.run(
        [*command, "-o", str(out / soname), str(out / "stub.c")], capture_output=True, text=True
    )
    if done.returncode:
        raise ForkError(f"{compiler} could not build the stub of {soname}:\n{done.stderr.strip()}", code=1)
    (out / "stub.c").unlink()
    (out / "stub.map").unlink()
