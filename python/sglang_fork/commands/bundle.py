# SPDX-License-Identifier: Apache-2.0
"""``bundle``: pack everything that installs on a machine with no network."""

from __future__ import annotations

import argparse
import platform as host
import re
import shutil
import sys
from pathlib import Path

from sglang_fork.build.run import fork_wheel_for
from sglang_fork.bundle import fetch, pack
from sglang_fork.errors import ForkError
from sglang_fork.lock import FOLDER, RUNTIME
from sglang_fork.lock.requirements import canonical
from sglang_fork.paths import state_dir
from sglang_fork.stack.platforms import MACHINES, Platform
from sglang_fork.stack.wheel import sha256

HELP = "pack all that installs on a machine with no network, for one Python, machine and GPU"
ARCHES = ("sm_90", "sm_100", "sm_103", "sm_121")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    here = f"{sys.version_info[0]}.{sys.version_info[1]}"
    parser.add_argument("out", type=Path, help="the folder to write")
    parser.add_argument("--arch", choices=ARCHES, required=True, help="the target's GPU architecture")
    parser.add_argument(
        "--python", choices=("3.11", "3.12"), default=here, help=f"the target's (default {here})"
    )
    parser.add_argument(
        "--machine", choices=MACHINES, default=host.machine(), help="the target's (default: as here)"
    )
    parser.add_argument("--piece-mib", type=int, metavar="N", help="split the archive into pieces of N MiB")
    parser.add_argument("--caches", type=Path, metavar="FOLDER", help="warm JIT caches to take along")
    parser.add_argument(
        "--dry-run", action="store_true", help="fetch and prune, report the sizes, write no bundle"
    )


def run(args: argparse.Namespace) -> int:
    if args.piece_mib is not None and args.piece_mib < 1:
        raise ForkError(f"--piece-mib {args.piece_mib}: at least 1")
    if args.out.exists() and any(args.out.iterdir()) and not (args.out / pack.SUMS).exists():
        raise ForkError(f"{args.out} holds other files", "name a new folder")
    platform = Platform(f"cp{args.python.replace('.', '')}", args.machine)
    arch = int(args.arch.removeprefix("sm_"))
    work = state_dir() / "bundle"
    print(f"bundle: wheels for Python {args.python} on {args.machine}", flush=True)
    kept = work / f"wheels-{platform.python}-{platform.machine}"
    wheels = fetch.fetch(platform, fetch.target_pins(platform), kept)
    uv = next(p for p in fetch.fetch(platform, fetch.uv_pins(platform), work / f"uv-{platform.machine}"))
    fork = fork_wheel_for(platform)
    print(f"bundle: pruning GPU code to {args.arch}", flush=True)
    chosen, rows = pack.choose_wheels([*wheels, fork], arch, work / f"slim-{platform.machine}-{args.arch}")
    print(pack.report(rows))
    if args.dry_run:
        return 0
    manifest = pack.Manifest(
        fork=fork.name.split("-")[1],
        python=platform.python,
        machine=platform.machine,
        arch=arch,
        lock=sha256(FOLDER / RUNTIME),
        wheels={canonical(re.split("-", wheel.name)[0]): wheel.name for wheel in chosen},
        sums={wheel.name: sha256(wheel) for wheel in chosen},
    )
    payload = work / "payload"
    pack.write_payload(payload, manifest, chosen, uv, args.caches)
    files = pack.write_archive(payload, args.out, args.piece_mib)
    shutil.rmtree(payload)
    size = sum(path.stat().st_size for path in files)
    print(f"bundle: {len(files)} file(s), {size / pack.MIB:.0f} MiB in {args.out}; then bash install.sh DIR")
    return 0
