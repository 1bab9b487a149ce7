# SPDX-License-Identifier: Apache-2.0
"""Makes the locks: one universal resolution by uv, in requirements form, from a base wheel's METADATA."""

from __future__ import annotations

import hashlib
import subprocess
import tempfile
from pathlib import Path

from sglang_fork.errors import ForkError
from sglang_fork.lock import DEV, FOLDER, RUNTIME, UV
from sglang_fork.lock.requirements import Metadata

PYTHON_RANGE = ">=3.11,<3.13"
_SUPPORTED = "python_full_version < '3.13'"
_ENVIRONMENTS = tuple(
    f"{_SUPPORTED} and sys_platform == 'linux' and platform_machine == '{machine}'"
    for machine in ("x86_64", "aarch64")
)
# What uv makes of the two environments together. It is true wherever a lock is used, so it is left out there.
_EVERYWHERE = (
    "(platform_machine == 'aarch64' and sys_platform == 'linux') or "
    "(platform_machine == 'x86_64' and sys_platform == 'linux')"
)
_ABOUT = "# CPython 3.11 and 3.12 on Linux x86-64 and aarch64. Made by ./sglang.sh lock; do not edit."


def input_digest(name: str, folder: Path = FOLDER) -> str:
    """SHA-256 of the input file of a lock (``runtime.txt``: ``runtime.in``)."""
    return hashlib.sha256((folder / name).with_suffix(".in").read_bytes()).hexdigest()


def runtime_header(metadata: Metadata, folder: Path = FOLDER) -> dict[str, str]:
    """The header by which ``check_lock`` sees that a runtime lock was made for this base and these inputs."""
    return {
        "base": f"sglang=={metadata.version}",
        "requires-dist": metadata.digest(),
        "inputs": input_digest(RUNTIME, folder),
    }


def make_locks(uv: Path, metadata: Metadata, folder: Path = FOLDER, upgrade: bool = True) -> list[Path]:
    """Resolve the three ``.in`` files of ``folder`` into its locks and return their paths.

    ``uv`` is the installer's executable. ``upgrade=False`` keeps the versions of the locks that already
    lie there wherever they still satisfy the requirements. Nothing is written when a resolution fails.
    """
    with tempfile.TemporaryDirectory() as scratch:
        work = Path(scratch)
        markers = ", ".join(f'"{marker}"' for marker in _ENVIRONMENTS)
        (work / "pyproject.toml").write_text(
            f'[project]\nname = "lock"\nversion = "0"\nrequires-python = "{PYTHON_RANGE}"\n'
            f"[tool.uv]\nenvironments = [{markers}]\n"
        )
        for name in (RUNTIME, DEV, UV):
            if not upgrade and (folder / name).exists():
                (work / name).write_bytes((folder / name).read_bytes())
        inputs = (folder / "runtime.in").read_text()
        (work / "runtime.in").write_text(inputs + "\n".join(metadata.requires) + "\n")
        _compile(uv, work, "runtime.in", RUNTIME)
        (work / "dev.in").write_text((folder / "dev.in").read_text() + f"-c {RUNTIME}\n")
        _compile(uv, work, "dev.in", DEV)
        (work / "uv.in").write_bytes((folder / "uv.in").read_bytes())
        _compile(uv, work, "uv.in", UV)
        headers = {
            RUNTIME: runtime_header(metadata, folder),
            DEV: {"inputs": input_digest(DEV, folder)},
            UV: {"inputs": input_digest(UV, folder)},
        }
        for name, pairs in headers.items():
            (folder / name).write_text(_finish((work / name).read_text(), pairs))
    return [folder / name for name in headers]


def _compile(uv: Path, work: Path, source: str, target: str) -> None:
    command = [
        str(uv), "pip", "compile", source, "--output-file", target, "--quiet",
        "--universal", "--python-version", "3.11", "--only-binary", ":all:", "--generate-hashes",
        "--no-header", "--no-annotate", "--prerelease", "if-necessary-or-explicit",
    ]  # fmt: skip
    done = subprocess.run(command, cwd=work, capture_output=True, text=True)
    if done.returncode:
        raise ForkError(f"uv could not resolve {target}:\n{done.stderr.strip()}", code=1)


def _finish(text: str, pairs: dict[str, str]) -> str:
    """The lock with its header, and without the marker that holds everywhere."""
    for everywhere in (f" and ({_EVERYWHERE})", " and sys_platform == 'linux'"):
        text = text.replace(f"{everywhere} \\", " \\")
    text = text.replace(f" ; {_SUPPORTED} \\", " \\").replace(f" ; {_SUPPORTED} and ", " ; ")
    return "\n".join([_ABOUT, *(f"# {key}: {value}" for key, value in pairs.items()), "", text])
