# SPDX-License-Identifier: Apache-2.0
"""A ``CUDA_HOME`` for JIT compilers, made of links to the environment's own CUDA packages.

The packages hold compiler, headers and libraries of one release, but not in the shape that JIT builds
expect: there is no ``lib64``, no unversioned ``libcudart.so`` to link with, and no ``stubs/libcuda.so``.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path


def site_packages(venv: Path) -> Path:
    """The environment's site-packages folder."""
    return next((venv / "lib").glob("python3.*")) / "site-packages"


def make_cuda_home(venv: Path, driver_stub: Path | None) -> Path | None:
    """Make ``venv/cuda-home`` anew and return it; None where the environment holds no CUDA compiler.

    ``driver_stub``: a library to link ``-lcuda`` with, where there is one.
    """
    toolkit = next(iter(sorted(site_packages(venv).glob("nvidia/cu1*"))), None)
    home = venv / "cuda-home"
    shutil.rmtree(home, ignore_errors=True)
    if toolkit is None or not (toolkit / "bin" / "nvcc").exists():
        return None
    (home / "lib64" / "stubs").mkdir(parents=True)
    for folder in ("bin", "include", "nvvm"):
        (home / folder).symlink_to(toolkit / folder)
    (home / "lib").symlink_to("lib64")
    for library in sorted((toolkit / "lib").iterdir()):
        (home / "lib64" / library.name).symlink_to(library)
        plain = re.sub(r"\.so\.[0-9.]+$", ".so", library.name)
        link = home / "lib64" / plain
        if plain != library.name and not link.is_symlink():
            link.symlink_to(library.name)
    if driver_stub is not None:
        (home / "lib64" / "stubs" / "libcuda.so").symlink_to(driver_stub)
    return home
