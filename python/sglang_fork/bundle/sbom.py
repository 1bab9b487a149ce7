# SPDX-License-Identifier: Apache-2.0
"""What a bundle holds and under which licences: licence texts, and a CycloneDX 1.5 bill of materials."""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from email.parser import HeaderParser
from pathlib import Path

from sglang_fork.stack.wheel import sha256

_LICENCE = re.compile(r"\.dist-info/(?:licenses/.+|(?:LICEN[CS]E|COPYING|NOTICE|EULA)[^/]*)$", re.IGNORECASE)


@dataclass(frozen=True)
class Component:
    """One wheel: what its metadata says of it."""

    name: str
    version: str
    licence: str
    wheel: Path
    pruned: bool


def component(wheel: Path, pruned: bool = False) -> Component:
    """Read a wheel's name, version and licence."""
    with zipfile.ZipFile(wheel) as archive:
        name = next(n for n in archive.namelist() if re.fullmatch(r"[^/]+\.dist-info/METADATA", n))
        headers = HeaderParser().parsestr(archive.read(name).decode(errors="replace"))
    classifiers = [
        str(c).split(" :: ")[-1] for c in headers.get_all("Classifier", []) if c.startswith("License ::")
    ]
    stated = str(headers.get("License-Expression") or headers.get("License") or "").strip()
    short = stated if stated and "\n" not in stated and len(stated) < 80 else "; ".join(classifiers)
    return Component(
        str(headers["Name"]), str(headers["Version"]), short or "see its licence files", wheel, pruned
    )


def write_licences(components: Sequence[Component], out: Path) -> None:
    """Write every licence file of every wheel under ``out/<name>/``, and the list ``out/LICENCES.txt``."""
    for item in components:
        with zipfile.ZipFile(item.wheel) as archive:
            for member in archive.namelist():
                if _LICENCE.search(member) and not member.endswith("/"):
                    target = out / item.name / member.rpartition("/")[2]
                    target.parent.mkdir(parents=True, exist_ok=True)
                    target.write_bytes(archive.read(member))
    out.mkdir(parents=True, exist_ok=True)
    lines = [f"{c.name} {c.version}: {c.licence}" for c in sorted(components, key=lambda c: c.name.lower())]
    (out / "LICENCES.txt").write_text("\n".join(lines) + "\n")


def bill_of_materials(components: Sequence[Component], name: str, version: str) -> str:
    """The CycloneDX document; it has no serial number or time, so the same bundle gives the same text."""
    parts = []
    for item in sorted(components, key=lambda c: c.name.lower()):
        part: dict[str, object] = {
            "type": "library",
            "name": item.name,
            "version": item.version,
            "purl": f"pkg:pypi/{item.name.lower().replace('_', '-')}@{item.version.replace('+', '%2B')}",
            "licenses": [{"license": {"name": item.licence}}],
            "hashes": [{"alg": "SHA-256", "content": sha256(item.wheel)}],
        }
        if item.pruned:
            part["modified"] = True
        parts.append(part)
    document = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": {"type": "application", "name": name, "version": version}},
        "components": parts,
    }
    return json.dumps(document, indent=1) + "\n"
