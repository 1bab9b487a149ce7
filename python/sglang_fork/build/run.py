# SPDX-License-Identifier: Apache-2.0
"""The build, step by step. Each step can be repeated; the stamp is dropped first and written last."""

from __future__ import annotations

import platform as host
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from sglang_fork.build import environment, kernels, stub
from sglang_fork.build.cudahome import make_cuda_home, site_packages
from sglang_fork.build.forkwheel import local_version, repack, repack_editable, tree_files, wheel_name
from sglang_fork.build.installer import ensure_uv
from sglang_fork.build.profile import left_out
from sglang_fork.build.progress import Progress
from sglang_fork.build.stamp import Stamp, build_lock, drop_stamp, read_stamp, write_stamp
from sglang_fork.env import DRIVER, driver_present, is_built, stub_dir, venv_dir
from sglang_fork.errors import ForkError
from sglang_fork.lock import FOLDER, RUNTIME
from sglang_fork.lock.check import inputs_unchanged, require_lock, wheel_metadata
from sglang_fork.paths import ROOT, state_dir
from sglang_fork.stack import workspace
from sglang_fork.stack.apply import AppliedTree, apply_stack
from sglang_fork.stack.platforms import Platform, native_platform
from sglang_fork.stack.wheel import fetch_base_wheel, sha256

RECIPE = 1
"""Goes up when a build makes something else of the same inputs: existing environments are refreshed then."""


@dataclass(frozen=True)
class Options:
    """What was asked for.

    ``profile`` None: ``cuda`` where a driver is present, ``cpu`` elsewhere. ``kernels``: architectures to
    compile the megakernels for, ahead of time; None: this machine's GPUs, where they have kernels.
    """

    profile: str | None = None
    dev: bool = False
    skip_venv: bool = False
    skip_kernels: bool = False
    kernels: tuple[str, ...] | None = None
    skip_torch: bool = False
    dev_tools: bool = False

    def __post_init__(self) -> None:
        if self.skip_venv and (self.skip_torch or self.dev_tools):
            raise ForkError("--skip-venv leaves every package but the fork's as it is, so it stands alone")
        if self.skip_kernels and self.kernels is not None:
            raise ForkError("--kernels and --skip-kernels contradict each other")


def default_profile() -> str:
    """The profile that suits this machine."""
    return "cuda" if driver_present() else "cpu"


def build(options: Options, out: Progress | None = None) -> Stamp:
    """Bring the profile's environment to what the checkout says; return its stamp. A no-op when it is there.

    Raises ForkError on: a lock that is not the base's, no disk space, no compiler where one is needed, a
    corrupt or wrong wheel, a patch stack that does not apply, a failed download, another build at work.
    """
    profile = options.profile or default_profile()
    progress = out or Progress(6 + (options.kernels is not None))
    with build_lock():
        require_python()
        sweep()
        if is_built(profile):
            tree = patched_tree(options)
        else:
            _require_means(profile, options)
            with progress.step("patched tree"):
                tree = patched_tree(options)
        before = read_stamp(profile)
        after = _wanted(profile, options, tree, before)
        if before == after and is_built(profile) and inputs_unchanged():
            progress.say(f"build: up to date: {describe(after)}")
            if options.kernels is not None:
                _kernels(progress, after, options.kernels)
            return after
        require_lock(wheel_metadata(tree.wheel))
        _require_means(profile, options)
        with progress.step("installer"):
            uv = ensure_uv()
        with progress.step(
            f"the fork's wheel: {after.fork}, {tree.patch_count} patches on sglang {tree.base_version}"
        ):
            fork = _wheel(tree, after)
        with progress.step(_environment_title(options, after)):
            _install(uv, fork, options, after)
        with progress.step("compiler links and stub libraries"):
            native_extras(profile)
        with progress.step("dependency check"):
            environment.check(uv, profile)
        write_stamp(after)
        archs = options.kernels if options.kernels is not None else tuple(kernels.gpu_architectures())
        if archs and not options.skip_kernels:
            _kernels(progress, after, archs)
        _report(progress, after)
        return after


def _require_means(profile: str, options: Options) -> None:
    """Refuse early what would fail late: no compiler where stubs are made, no room for a new environment."""
    if profile == "cpu" and not driver_present():
        stub.find_compiler()
    if not is_built(profile) and not options.skip_torch:
        environment.require_space(profile)


def require_python() -> None:
    """Refuse a Python for which there are no wheels."""
    if sys.version_info[:2] not in ((3, 11), (3, 12)):
        raise ForkError(
            f"Python {host.python_version()} is not supported", "use 3.11 or 3.12 (SGLANG_PYTHON)"
        )


def sweep() -> None:
    """Remove what an interrupted build may have left beside its places."""
    for folder in state_dir().glob("stub-*"):
        shutil.rmtree(folder, ignore_errors=True)
    for partial in (state_dir() / "dist").rglob("*.partial"):
        partial.unlink(missing_ok=True)


def patched_tree(options: Options) -> AppliedTree:
    """The patched tree. In the edit-test loop (``dev``) work in it that was not exported stays."""
    if options.dev and workspace.source_dir().exists():
        git = workspace.repository()
        stamp = workspace.read_stamp()
        if stamp is not None and workspace.pending_work(git):
            from sglang_fork.stack.series import read_series

            series = read_series(ROOT / "patches")
            tree_hash = git.out("rev-parse", "HEAD^{tree}")
            return AppliedTree(
                git.path, tree_hash, len(series.names), series.version, None, ROOT / "patches", changed=False
            )
    return apply_stack(native_platform())


def describe(stamp: Stamp) -> str:
    """One line: profile, version, place."""
    kind = ", editable" if stamp.editable else ""
    return f"profile {stamp.profile}, sglang {stamp.fork}{kind}, {venv_dir(stamp.profile)}"


def _wanted(profile: str, options: Options, tree: AppliedTree, before: Stamp | None) -> Stamp:
    platform = native_platform()
    local = local_version(tree.patch_count, tree.tree_hash, options.dev)
    dev_tools = options.dev_tools or (before is not None and before.dev_tools)
    lock = sha256(FOLDER / RUNTIME)
    if options.skip_venv and before is not None:
        lock = before.lock
    return Stamp(
        profile=profile,
        fork=f"{tree.base_version}+{local}",
        lock=lock,
        python=platform.python,
        machine=platform.machine,
        editable=options.dev,
        dev_tools=dev_tools,
        left_out=tuple(package.name for package in left_out(profile)),
        kept=("torch",) if options.skip_torch else (),
        recipe=RECIPE,
    )


def _wheel(tree: AppliedTree, stamp: Stamp) -> Path:
    """The fork's wheel for this platform, made unless a whole one of the same tree is there."""
    dist = state_dir() / "dist"
    local = stamp.fork.partition("+")[2]
    if stamp.editable:
        return repack_editable(tree.wheel, tree.path, local, dist)
    target = dist / wheel_name(tree.wheel, local)
    seal = target.with_name(target.name + ".sha256")
    if target.exists() and seal.exists() and seal.read_text() == sha256(target):
        return target
    repack(tree.wheel, tree_files(tree.path, tree.tree_hash), local, dist, licenses=ROOT)
    seal.write_text(sha256(target))
    return target


def fork_wheel_for(platform: Platform) -> Path:
    """The fork's wheel for any platform, from the same patched tree: for bundles and for cross-checks."""
    tree = apply_stack(native_platform())
    upstream = fetch_base_wheel(platform)
    local = local_version(tree.patch_count, tree.tree_hash)
    return repack(upstream, tree_files(tree.path, tree.tree_hash), local, state_dir() / "dist", licenses=ROOT)


def _environment_title(options: Options, stamp: Stamp) -> str:
    if options.skip_venv:
        return f"environment {stamp.profile}: the fork's wheel alone"
    kept = ", torch and CUDA packages kept" if options.skip_torch else ""
    return f"environment {stamp.profile}: locked packages{kept}"


def _install(uv: Path, fork: Path, options: Options, stamp: Stamp) -> None:
    """Change the environment. One without a stamp may be half-made, so it is made anew."""
    before = read_stamp(stamp.profile) if is_built(stamp.profile) else None
    if options.skip_venv:
        if before is None:
            raise ForkError(f"--skip-venv: profile {stamp.profile} is not built yet", "build once without it")
        drop_stamp(stamp.profile)
        environment.install_fork(uv, stamp.profile, fork)
        return
    what = environment.contents(stamp.profile, fork, stamp.dev_tools, options.skip_torch)
    drop_stamp(stamp.profile)
    anew = before is None or before.python != stamp.python
    environment.fill(uv, stamp.profile, what, anew, options.skip_torch)


def native_extras(profile: str) -> None:
    """The stub libraries of a cpu environment, and the ``CUDA_HOME`` of either."""
    venv = venv_dir(profile)
    packages = site_packages(venv)
    link_stub = venv / "link-stub"
    if shutil.which("gcc") or shutil.which("cc") or shutil.which("clang"):
        # All of the driver's functions: a linker drops a library from which it takes no symbol.
        headers = sorted(packages.glob("nvidia/cu1*/include/cuda.h"))
        stub.build_stubs(packages, [], link_stub, stub.driver_functions(headers[0]) if headers else ())
    if profile == "cpu" and not driver_present():
        libraries = [library for package in left_out(profile) for library in package.libraries]
        stub.build_stubs(packages, libraries, stub_dir())
    driver = link_stub / DRIVER
    make_cuda_home(venv, driver if driver.exists() else None)


def _kernels(progress: Progress, stamp: Stamp, archs: tuple[str, ...]) -> None:
    with progress.step(f"kernels for {', '.join(archs)}"):
        kernels.compile_kernels(stamp.profile, archs)


def _report(progress: Progress, stamp: Stamp) -> None:
    progress.say(f"build: {describe(stamp)} in {progress.elapsed_s():.0f} s")
    packages = left_out(stamp.profile)
    if packages:
        progress.say(f"left out, since a machine without a GPU cannot use them ({len(packages)} packages):")
        for package in packages:
            progress.say(f"  {package.name:32} {package.why}")
