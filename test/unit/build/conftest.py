# SPDX-License-Identifier: Apache-2.0
"""A state folder of its own for each test, and a tiny upstream wheel with the real one's traps."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

VERSION = "1.2.3"
INFO = f"sglang-{VERSION}.dist-info/"
METADATA = f"""Metadata-Version: 2.4
Name: sglang
Version: {VERSION}
License: a licence text
        Version: not this line
Requires-Dist: torch==2.14.1
Requires-Dist: av==16.1.0; platform_machine == "aarch64"
Requires-Dist: triton>=3
Requires-Dist: pytest; extra == "test"

The long description.
"""
MEMBERS = {
    "sglang/__init__.py": b"",
    "sglang/_version.py": f"__version__ = version = '{VERSION}'\n".encode(),
    "sglang/old.py": b"upstream alone\n",
    "sglang/config/E=256,N=128,device=H200.json": b"{}",
    "sglang/ext.cpython-312-x86_64-linux-gnu.so": b"\x7fELF extension",
    INFO + "METADATA": METADATA.encode(),
    INFO + "WHEEL": b"Wheel-Version: 1.0\nTag: cp312-cp312-manylinux_2_34_x86_64\n",
    INFO + "entry_points.txt": b"[console_scripts]\nsglang = sglang.cli:main\n",
    INFO + "RECORD": b"upstream's own record",
}


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SGLANG_FORK_HOME", str(tmp_path / "state"))
    for name in ("SGLANG_FORK_PROFILE", "CUDA_HOME", "SGLANG_CACHE_DIR", "LD_LIBRARY_PATH"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "state"


@pytest.fixture
def upstream(tmp_path: Path) -> Path:
    path = tmp_path / f"sglang-{VERSION}-cp312-cp312-manylinux_2_34_x86_64.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in MEMBERS.items():
            archive.writestr(name, content)
    return path
