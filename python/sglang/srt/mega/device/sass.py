# SPDX-License-Identifier: Apache-2.0
"""Facts read from machine code with the disassembler that Triton's package carries. Needs no GPU.

The loads ahead of the dependency wait are the point: a source can prefetch its weights and the assembler
can still sink every load below the wait, at half the speed and with the same results.
"""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import tempfile
from collections import Counter
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

INSTRUCTION = re.compile(r"^\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_.]*)", re.MULTILINE)


@dataclass(frozen=True)
class SassFacts:
    """Counts of instructions in program order.

    ``weight_loads_before_wait``: 16-byte (or wider) global loads ahead of ACQBULK (the dependency wait);
    without a wait, of all. ``wide_loads`` and ``narrow_loads``: global loads of 16 bytes or more, and of
    less. ``local``: loads and stores of local memory, that is spills or indexed register arrays.
    ``tensor``: matrix instructions.
    """

    instructions: int
    weight_loads_before_wait: int
    wide_loads: int
    narrow_loads: int
    local: int
    tensor: int
    waits: int
    triggers: int
    bulk_copies: int

    def as_dict(self) -> dict[str, int]:
        return asdict(self)


@cache
def disassembler() -> Path:
    """``nvdisasm`` of Triton's package, else of PATH."""
    triton = importlib.util.find_spec("triton")
    if triton is not None and triton.submodule_search_locations:
        bundled = Path(triton.submodule_search_locations[0]) / "backends" / "nvidia" / "bin" / "nvdisasm"
        if bundled.is_file():
            return bundled
    found = shutil.which("nvdisasm")
    if found is None:
        raise FileNotFoundError("no nvdisasm: install triton or nvidia-cuda-nvdisasm")
    return Path(found)


def disassemble(cubin: bytes) -> str:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        return subprocess.run(
            [disassembler(), "-c", file.name], check=True, capture_output=True, text=True
        ).stdout


def opcodes(text: str, entry: str) -> list[str]:
    """The opcodes of one entry, in program order, predicates and operands dropped."""
    start = text.find(f".text.{entry}:")
    if start < 0:
        raise ValueError(f"the machine code has no entry {entry}")
    end = text.find("\n.text.", start + 1)
    end = end if end > 0 else len(text)
    section = text.find(".section", start + 1)
    end = min(end, section) if section > 0 else end
    return INSTRUCTION.findall(text[start:end])


def facts(cubin: bytes, entry: str) -> SassFacts:
    codes = opcodes(disassemble(cubin), entry)
    base = [code.split(".")[0] for code in codes]
    wait = base.index("ACQBULK") if "ACQBULK" in base else len(base)
    wide = [index for index, code in enumerate(codes) if code.startswith("LDG") and _is_wide(code)]
    count = Counter(base)
    return SassFacts(
        instructions=len(codes),
        weight_loads_before_wait=sum(index < wait for index in wide),
        wide_loads=len(wide),
        narrow_loads=count["LDG"] - len(wide),
        local=count["LDL"] + count["STL"],
        tensor=sum(
            count[name]
            for name in ("HMMA", "HGMMA", "QGMMA", "QMMA", "OMMA", "UTCHMMA", "UTCQMMA", "UTCOMMA")
        ),
        waits=count["ACQBULK"],
        triggers=count["PREEXIT"],
        bulk_copies=count["UBLKCP"],
    )


def _is_wide(code: str) -> bool:
    return any(width in code.split(".") for width in ("128", "256"))
