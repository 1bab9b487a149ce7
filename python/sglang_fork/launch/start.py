# SPDX-License-Identifier: Apache-2.0
"""``./sglang.sh PRESET``: resolve it, and print the command or run it."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from sglang_fork import env, preset
from sglang_fork.checkpoints import make
from sglang_fork.errors import ForkError
from sglang_fork.launch import decide, hardware, preflight, process, ptxas, record, render, serve, tiny
from sglang_fork.resolve import Resolution, Variable, resolve

HELP = "launch a preset's server; words after -- are appended to the server's arguments"
KEYED_SERVER = Path(__file__).with_name("keyed_server.py")
TIMEOUT_S = 3600.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dry-run", action="store_true", help="print the command and stop")
    parser.add_argument("--on", metavar="MACHINE", help="the preset's variant for another machine")
    parser.add_argument("--tiny", action="store_true", help="serve its tiny twin with what this machine has")
    parser.add_argument("--detach", action="store_true", help="return when the server is ready")
    parser.add_argument("--name", help="the name for status, stop and logs (default: the preset's)")
    parser.add_argument(
        "--timeout",
        metavar="SECONDS",
        type=float,
        default=TIMEOUT_S,
        help="how long to wait until it is ready",
    )


def run(name: str, args: argparse.Namespace, extra: Sequence[str]) -> int:
    chosen = preset.load(name)
    if args.on:
        chosen = chosen.on(args.on)
    resolution = resolve(chosen, os.environ, extra)
    profile = env.built_profile() or ("cpu" if args.tiny else "cuda")
    changes: list[tiny.Change] = []
    if args.tiny:
        resolution, changes = tiny.apply(resolution, profile)
    if args.dry_run:
        for change in changes:
            print(f"# tiny: {change}")
        print(render.dry_run(resolution, program(resolution, profile), process_variables(profile)))
        return 0
    for text in (*resolution.warnings, *(f"tiny: {change}" for change in changes)):
        print(f"{'' if text.startswith('tiny') else 'warning: '}{text}", file=sys.stderr)
    run_name = checked_name(args.name or (f"{name}-tiny" if args.tiny else name))
    return launch(
        resolution, profile, run_name, is_tiny=args.tiny, timeout_s=args.timeout, detach=args.detach
    )


def launch(
    resolution: Resolution, profile: str, name: str, *, is_tiny: bool, timeout_s: float, detach: bool
) -> int:
    """Check, decide on the megakernel, start, and wait. Everything in the way is one ForkError."""
    python = env.venv_python(profile)
    if is_tiny:
        make_twin(resolution)
    compiler = chosen_ptxas(profile)
    preflight.check(resolution, name, tiny=is_tiny, also=compiler.reasons)
    variables = [*process_variables(profile), *resolution.variables]
    environ = {**compiler.variables, **{variable.name: variable.value for variable in variables}}
    decision = decide.decide(resolution, python, environ)
    print("\n".join(decision.lines()), flush=True)
    final = resolution.with_megakernel(decision.on)
    environ |= {variable.name: variable.value for variable in final.variables}
    if final.key and final.key.path:
        environ[final.key.name] = str(Path(final.key.path).absolute())
    template = record.Record(
        name=name,
        preset=resolution.preset.name,
        identity=process.Identity(0, 0, ""),
        host=final.host,
        port=final.port,
        node_rank=final.node_rank,
        model=final.model_path,
        megakernel=decision.lines()[0],
        started_at=0.0,
    )
    command = [*program(final, profile), *final.argv()]
    key = preflight.read_key(final.key)
    full = serve.server_environ(environ)
    return serve.run(command, full, template, key=key, timeout_s=timeout_s, detach=detach)


def chosen_ptxas(profile: str) -> ptxas.Choice:
    """The ptxas for this machine's GPUs; a server on the CPU compiles nothing for them."""
    isas = {gpu.isa for gpu in hardware.gpus()} if profile == "cuda" else set()
    packages = ptxas.site_packages(env.venv_dir(profile))
    return ptxas.choose(packages, isas, {**os.environ, **env.process_env(profile)})


def make_twin(resolution: Resolution) -> None:
    """Make the tiny checkpoint where it is not there yet."""
    family, path = resolution.preset.family, Path(resolution.model_path)
    if path == make.default_path(family):
        if not path.is_dir():
            print(f"making the tiny checkpoint of {family}", file=sys.stderr)
        make.ensure(family)


def checked_name(name: str) -> str:
    if not name or name.startswith(".") or "/" in name:
        raise ForkError(f"{name!r} cannot name a run", "letters, digits, dots and dashes")
    return name


def program(resolution: Resolution, profile: str) -> list[str]:
    """The Python and the module that run the server; with an API key, the file that hides it."""
    python = str(env.venv_dir(profile) / "bin" / "python")
    if resolution.key is not None:
        return [python, str(KEYED_SERVER)]
    return [python, "-m", "sglang.launch_server"]


def process_variables(profile: str) -> list[Variable]:
    """What the built environment's processes need, as variables with their source."""
    return [Variable(k, v, f"built environment ({profile})") for k, v in env.process_env(profile).items()]
