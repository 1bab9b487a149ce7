# SPDX-License-Identifier: Apache-2.0
"""``./sglang.sh PRESET``: resolve it, and print the command or run it."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from sglang_fork import env, preset
from sglang_fork.errors import ForkError
from sglang_fork.launch import render
from sglang_fork.resolve import Resolution, Variable, resolve

HELP = "launch a preset's server; words after -- are appended to the server's arguments"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dry-run", action="store_true", help="print the command and stop")
    parser.add_argument("--on", metavar="MACHINE", help="the preset's variant for another machine")


def run(name: str, args: argparse.Namespace, extra: Sequence[str]) -> int:
    chosen = preset.load(name)
    if args.on:
        chosen = chosen.on(args.on)
    resolution = resolve(chosen, os.environ, extra)
    profile = env.built_profile() or "cuda"
    if args.dry_run:
        print(render.dry_run(resolution, program(resolution, profile), process_variables(profile)))
        return 0
    for text in resolution.warnings:
        print(f"warning: {text}", file=sys.stderr)
    raise ForkError("launching is not built in yet", "./sglang.sh PRESET --dry-run prints the command")


def program(resolution: Resolution, profile: str) -> list[str]:
    """The Python and the module that run the server."""
    return [str(env.venv_dir(profile) / "bin" / "python"), "-m", "sglang.launch_server"]


def process_variables(profile: str) -> list[Variable]:
    """What the built environment's processes need, as variables with their source."""
    return [Variable(k, v, f"built environment ({profile})") for k, v in env.process_env(profile).items()]
