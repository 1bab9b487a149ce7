# SPDX-License-Identifier: Apache-2.0
"""The built environment: which profile is built, its Python, and the variables that its processes need.

A profile is ``cuda`` (everything) or ``cpu`` (what a machine without a GPU can use). ``build`` writes the
stamp file ``venv-<profile>/sglang-build.json`` last, so a profile counts as built only when its build came
to an end.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

from sglang_fork.errors import ForkError
from sglang_fork.paths import state_dir

PROFILES = ("cuda", "cpu")
STAMP = "sglang-build.json"
DRIVER = "libcuda.so.1"

# Where a driver's library lies on distributions, in containers and on WSL.
DRIVER_FOLDERS = (
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "usr/lib64",
    "usr/lib",
    "usr/lib/wsl/lib",
    "usr/local/nvidia/lib64",
    "usr/local/nvidia/lib",
    "usr/local/cuda/compat",
    "usr/lib/x86_64-linux-gnu/tegra",
    "usr/lib/aarch64-linux-gnu/tegra",
    "usr/lib/aarch64-linux-gnu/nvidia",
)


def venv_dir(profile: str) -> Path:
    """The virtual environment of a profile, whether or not it exists."""
    if profile not in PROFILES:
        raise ForkError(f"unknown profile {profile}", f"profiles: {', '.join(PROFILES)}")
    return state_dir() / f"venv-{profile}"


def is_built(profile: str) -> bool:
    """Whether a build of this profile came to an end."""
    venv = venv_dir(profile)
    return (venv / STAMP).is_file() and (venv / "bin" / "python").exists()


def built_profile() -> str | None:
    """The built profile that suits this machine; ``None`` when nothing is built.

    ``SGLANG_FORK_PROFILE`` names one. Otherwise, with both built, ``cuda`` where an NVIDIA driver is present
    and ``cpu`` elsewhere.
    """
    wanted = os.environ.get("SGLANG_FORK_PROFILE")
    if wanted:
        return wanted if is_built(wanted) else None
    order = PROFILES if driver_present() else tuple(reversed(PROFILES))
    return next((profile for profile in order if is_built(profile)), None)


def venv_python(profile: str | None = None) -> Path:
    """The Python of a built profile (default: ``built_profile()``); a ForkError where it is not built."""
    chosen = profile or built_profile()
    if chosen is None:
        raise ForkError("not built", "./sglang.sh build (on a machine without a GPU: build --profile cpu)")
    if not is_built(chosen):
        raise ForkError(f"profile {chosen} is not built", f"./sglang.sh build --profile {chosen}")
    return venv_dir(chosen) / "bin" / "python"


def driver_library(
    root: Path = Path("/"),
    environ: Mapping[str, str] | None = None,
    ld_cache: str | None = None,
) -> Path | None:
    """The NVIDIA driver's ``libcuda.so.1``, or ``None``. The stub in the state folder does not count.

    ``root`` and ``ld_cache`` (the output of ``ldconfig -p``) are for tests; a ``root`` other than ``/`` is
    not looked up in this machine's linker cache.
    """
    env = os.environ if environ is None else environ
    stubs = stub_dir().resolve()
    search = [Path(part) for part in env.get("LD_LIBRARY_PATH", "").split(":") if part]
    search += [root / folder for folder in DRIVER_FOLDERS]
    for folder in search:
        if (folder / DRIVER).exists() and folder.resolve() != stubs:
            return folder / DRIVER
    if ld_cache is None and root == Path("/"):
        ld_cache = _linker_cache()
    for line in (ld_cache or "").splitlines():
        name, _, path = line.strip().partition(" => ")
        if name.split(" ")[0] == DRIVER and Path(path).exists():
            return Path(path)
    return None


def driver_present(root: Path = Path("/")) -> bool:
    """Whether this machine has an NVIDIA driver: its library, its kernel module or its device nodes."""
    marks = (root / "proc/driver/nvidia/version", root / "dev/nvidiactl", root / "dev/nvhost-ctrl-gpu")
    return any(mark.exists() for mark in marks) or driver_library(root) is not None


def stub_dir() -> Path:
    """The folder of the ``libcuda.so.1`` stub that a cpu build makes where no driver is present."""
    return state_dir() / "stub"


def cache_dir() -> Path:
    """The folder under which every JIT cache of the build's processes lies."""
    return state_dir() / "cache"


def process_env(profile: str) -> dict[str, str]:
    """The variables that a process of this profile needs, to be laid over the caller's environment.

    Both profiles: the JIT caches under the state folder and the profile's own ``CUDA_HOME`` where it has a
    CUDA compiler. A variable that the user has set is left out here, so the user's value stays. ``cpu``:
    the CPU engine's switch, no visible GPU, no ``torch.compile`` (a C++ build at the first request of each
    server, for microseconds), and the driver stub's folder in front of ``LD_LIBRARY_PATH`` where no driver
    is present.
    """
    caches = cache_dir()
    defaults = {
        "SGLANG_CACHE_DIR": str(caches / "sglang"),
        "SGLANG_JIT_CACHE_DIR": str(caches / "sglang-jit"),
        "FLASHINFER_WORKSPACE_BASE": str(caches / "flashinfer"),
        "TVM_FFI_CACHE_DIR": str(caches / "tvm-ffi"),
        "CUTE_DSL_CACHE_DIR": str(caches / "cute-dsl"),
    }
    cuda_home = venv_dir(profile) / "cuda-home"
    if cuda_home.is_dir():
        defaults["CUDA_HOME"] = str(cuda_home)
    if profile == "cpu":
        defaults["TORCH_COMPILE_DISABLE"] = "1"
    env = {name: value for name, value in defaults.items() if name not in os.environ}
    if profile == "cpu":
        env["SGLANG_USE_CPU_ENGINE"] = "1"
        env["CUDA_VISIBLE_DEVICES"] = ""
        if not driver_present() and (stub_dir() / DRIVER).exists():
            inherited = os.environ.get("LD_LIBRARY_PATH")
            parts = [str(stub_dir())] + [
                p for p in (inherited or "").split(":") if p and p != str(stub_dir())
            ]
            env["LD_LIBRARY_PATH"] = ":".join(parts)
    return env


def _linker_cache() -> str:
    for tool in ("ldconfig", "/sbin/ldconfig", "/usr/sbin/ldconfig"):
        try:
            return subprocess.run([tool, "-p"], capture_output=True, text=True, check=False).stdout
        except OSError:
            continue
    return ""
