# SPDX-License-Identifier: Apache-2.0
"""Runs on the target, from the bundle's own checkout: makes the environment from the payload alone."""

from __future__ import annotations

import json
import os
import platform
import shutil
import stat
import subprocess
import sys
import zipfile
from pathlib import Path

from sglang_fork.build.installer import plain_env, uv_complaint
from sglang_fork.build.run import native_extras
from sglang_fork.build.stamp import Stamp, write_stamp
from sglang_fork.bundle.pack import MANIFEST, Manifest
from sglang_fork.env import cache_dir, venv_dir
from sglang_fork.errors import ForkError
from sglang_fork.stack.wheel import sha256

PROFILE = "cuda"


def read_manifest(payload: Path) -> Manifest:
    """The payload's manifest."""
    try:
        return Manifest(**json.loads((payload / MANIFEST).read_text()))
    except (OSError, ValueError, TypeError) as problem:
        raise ForkError(f"{payload} is not a bundle's payload: {problem}") from None


def check_target(manifest: Manifest) -> None:
    """Refuse a Python or a machine that the bundle was not made for."""
    python, machine = f"cp{sys.version_info[0]}{sys.version_info[1]}", platform.machine()
    if (python, machine) != (manifest.python, manifest.machine):
        raise ForkError(
            f"this bundle is for {manifest.python} on {manifest.machine}, this is {python} on {machine}",
            "make one for this machine: ./sglang.sh bundle --python ... --machine ...",
        )


def check_wheels(payload: Path, manifest: Manifest) -> None:
    """Refuse a payload whose wheels are not the manifest's."""
    for name, digest in manifest.sums.items():
        path = payload / "wheels" / name
        if not path.exists() or sha256(path) != digest:
            raise ForkError(f"the bundle's {name} is missing or damaged", "copy the bundle again", code=1)


def requirements(payload: Path, manifest: Manifest) -> str:
    """The requirements file: every wheel by path and hash."""
    folder = payload.resolve() / "wheels"
    return "".join(
        f"{name} @ {(folder / file).as_uri()} --hash=sha256:{manifest.sums[file]}\n"
        for name, file in sorted(manifest.wheels.items())
    )


def unpack_uv(payload: Path) -> Path:
    """The bundle's uv, taken out of its wheel."""
    wheel = next(iter(payload.glob("uv-*.whl")), None)
    if wheel is None:
        raise ForkError("the bundle holds no installer", "copy the bundle again", code=1)
    target = payload / "uv"
    with zipfile.ZipFile(wheel) as archive:
        member = next(name for name in archive.namelist() if name.endswith(".data/scripts/uv"))
        target.write_bytes(archive.read(member))
    target.chmod(target.stat().st_mode | stat.S_IXUSR)
    return target


def install(payload: Path, target: Path) -> None:
    """Make ``target/.sglang`` from the payload; on failure the half-made environment is removed."""
    manifest = read_manifest(payload)
    check_target(manifest)
    check_wheels(payload, manifest)
    os.environ["SGLANG_FORK_HOME"] = str(target.resolve() / ".sglang")
    uv, venv = unpack_uv(payload), venv_dir(PROFILE)
    listing = payload / "requirements.txt"
    listing.write_text(requirements(payload, manifest))
    try:
        _run(uv, "venv", "--python", sys.executable, "--no-project", str(venv))
        python = str(venv / "bin" / "python")
        options = ["--no-deps", "--require-hashes", "--no-cache", "--python", python]
        _run(uv, "pip", "install", *options, "--requirement", str(listing))
        _run(uv, "pip", "check", "--python", python)
    except ForkError:
        shutil.rmtree(venv, ignore_errors=True)
        raise
    native_extras(PROFILE)
    if (payload / "caches").is_dir():
        shutil.copytree(payload / "caches", cache_dir(), dirs_exist_ok=True)
    kept = (f"torch pruned to sm_{manifest.arch}",)
    write_stamp(Stamp(PROFILE, manifest.fork, manifest.lock, manifest.python, manifest.machine, kept=kept))
    for name in ("licences", "sbom.cdx.json"):
        shutil.move(str(payload / name), target / ".sglang" / name)


def _run(uv: Path, *args: str) -> None:
    done = subprocess.run(
        [str(uv), "--offline", "--quiet", *args], capture_output=True, text=True, env=plain_env()
    )
    if done.returncode:
        raise ForkError(f"uv {args[0]} failed{uv_complaint(done.stderr)}", code=1)


def main(arguments: list[str]) -> int:
    payload, target = map(Path, arguments)
    try:
        install(payload, target)
    except ForkError as problem:
        print(f"install.sh: {problem}", file=sys.stderr)
        return problem.code
    print(f"installed: cd {target} && ./sglang.sh list")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
