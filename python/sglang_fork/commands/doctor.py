# SPDX-License-Identifier: Apache-2.0
"""``doctor``: examine this machine and the built environment."""

from __future__ import annotations

import argparse

from sglang_fork import env
from sglang_fork.doctor.finding import Level
from sglang_fork.doctor.machine import Machine
from sglang_fork.doctor.report import as_json, as_text, examine

HELP = "say what is wrong with this machine or the build, what it breaks and the fix"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="machine-readable")


def run(args: argparse.Namespace) -> int:
    found = examine(Machine(profile=env.built_profile()))
    print(as_json(found) if args.json else as_text(found))
    return 1 if any(finding.level == Level.ERROR for finding in found) else 0
