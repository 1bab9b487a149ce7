# SPDX-License-Identifier: Apache-2.0
"""``build``: make or refresh the environment."""

from __future__ import annotations

import argparse

from sglang_fork.build.kernels import architectures
from sglang_fork.build.run import Options, build
from sglang_fork.env import PROFILES

HELP = "make or refresh the environment (resumable; does nothing when it is current)"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--profile", choices=PROFILES, help="cuda: everything; cpu: what a machine without a GPU can use"
    )
    parser.add_argument(
        "--dev", action="store_true", help="install the patched tree as a link: edits are live"
    )
    parser.add_argument("--skip-venv", action="store_true", help="refresh the fork's own wheel alone")
    parser.add_argument(
        "--skip-torch", action="store_true", help="keep the torch and CUDA packages that are there"
    )
    parser.add_argument("--skip-kernels", action="store_true", help="compile no megakernels ahead of time")
    parser.add_argument(
        "--kernels",
        nargs="*",
        metavar="ARCH",
        help="compile the megakernels ahead of time for these architectures (none named: all); needs no GPU",
    )


def run(args: argparse.Namespace) -> int:
    kernels = None if args.kernels is None else tuple(architectures(args.kernels))
    build(
        Options(
            profile=args.profile,
            dev=args.dev,
            skip_venv=args.skip_venv,
            skip_kernels=args.skip_kernels,
            kernels=kernels,
            skip_torch=args.skip_torch,
        )
    )
    return 0
