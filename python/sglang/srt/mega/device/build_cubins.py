# SPDX-License-Identifier: Apache-2.0
"""Cubins for every architecture, with no GPU: compiles, disassembles and records what the machine code is.

``python -m sglang.srt.mega.device.build_cubins --arch sm_90a ... --out FOLDER`` is what ``./sglang.sh build
--kernels`` runs. It fills the cubin cache and writes ``kernels.json``: one object a kernel and
architecture, with registers, spills and SASS facts.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from sglang.srt.mega.device.cubin_cache import CubinCache
from sglang.srt.mega.device.cuda_compile import cache_key, compile_kernel, compiler_version
from sglang.srt.mega.device.sass import facts
from sglang.srt.mega.device.spec import ARCHITECTURES, KernelSpec

REPORT = "kernels.json"


def registered_specs() -> list[KernelSpec]:
    """Every kernel of every model family, in every width bucket and shape that a preset serves."""
    from sglang.srt.mega.models import kernel_specs

    return kernel_specs()


def build_cubins(
    archs: Sequence[str], specs: Iterable[KernelSpec], cache: CubinCache
) -> list[dict[str, object]]:
    """Compiles each kernel for each architecture into the cache; returns one record each, in order.

    A kernel that the cache holds together with its record is not compiled again, so that an interrupted run
    goes on where it was.
    """
    records: list[dict[str, object]] = []
    for spec in specs:
        for arch in archs:
            key = cache_key(spec, arch)
            known = cache.get(f"{key}-record")
            if known is None or cache.get(key) is None:
                known = _compile(spec, arch, key, cache)
            records.append(json.loads(known))
    return records


def _compile(spec: KernelSpec, arch: str, key: str, cache: CubinCache) -> bytes:
    """Compiles one kernel into the cache and returns its record, which lies there too."""
    compiled = compile_kernel(spec, arch)
    record = {
        "source": spec.source,
        "entry": spec.entry,
        "constants": dict(spec.constants),
        "arch": arch,
        "compiler": compiler_version(spec),
        "cubin_bytes": len(compiled.cubin),
        "registers": compiled.usage.registers,
        "stack_bytes": compiled.usage.stack_bytes,
        "spill_bytes": compiled.usage.spill_bytes,
        "shared_bytes": compiled.usage.shared_bytes,
        "sass": facts(compiled.cubin, compiled.symbol).as_dict(),
    }
    cache.put(key, compiled.cubin)
    cache.put(f"{key}-record", json.dumps(record).encode())
    print(f"{arch:8} {compiled.usage.registers:3} registers  {spec.label}", flush=True)
    return json.dumps(record).encode()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Compile every kernel of the fork, with no GPU.")
    parser.add_argument("--arch", nargs="+", choices=ARCHITECTURES, default=list(ARCHITECTURES))
    parser.add_argument("--cache", type=Path, help="the cubin cache (default: $SGLANG_CACHE_DIR/mega)")
    parser.add_argument("--out", type=Path, help=f"folder for {REPORT} (default: the cache's own)")
    chosen = parser.parse_args(arguments)
    cache = CubinCache(chosen.cache)
    records = build_cubins(chosen.arch, registered_specs(), cache)
    folder = chosen.out or cache.folder
    folder.mkdir(parents=True, exist_ok=True)
    (folder / REPORT).write_text(json.dumps(records, indent=1) + "\n", encoding="utf-8")
    spilled = [f"{r['entry']} ({r['arch']})" for r in records if r["spill_bytes"]]
    print(f"{len(records)} kernels; {folder / REPORT}")
    if spilled:
        print(f"spills: {', '.join(spilled)}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
