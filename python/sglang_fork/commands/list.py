# SPDX-License-Identifier: Apache-2.0
"""``./sglang.sh list``: the presets, one a line."""

from __future__ import annotations

import argparse
import json

from sglang_fork import preset

HELP = "list the presets"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="machine-readable")


def run(args: argparse.Namespace) -> int:
    presets = [preset.load(name) for name in preset.names()]
    if args.json:
        print(json.dumps([_record(p) for p in presets], indent=1))
        return 0
    width = max(len(p.name) for p in presets)
    for p in presets:
        print(f"{p.name:{width}}  {_machines(p):22}  {p.title}")
    print("\n./sglang.sh show PRESET tells more; ./sglang.sh PRESET --dry-run prints its command.")
    return 0


def _machines(p: preset.Preset) -> str:
    names = [f"{p.hardware.gpus}x{p.hardware.name}", *sorted(p.machines)]
    return ", ".join(names)


def _record(p: preset.Preset) -> dict[str, object]:
    return {
        "name": p.name,
        "title": p.title,
        "model": p.model.path,
        "gpus": p.hardware.gpus,
        "gpu": p.hardware.name,
        "variants": sorted(p.machines),
        "tiny": bool(p.family),
    }
