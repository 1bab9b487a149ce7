# SPDX-License-Identifier: Apache-2.0
"""Pins: what the fork's own files copy, call, subclass or depend on in upstream, and the digests it had.

A module under ``python/sglang`` or of this tool declares its pins in two constants, read from its syntax tree
and never imported::

    SGLANG_MIRRORS = {"body srt/models/qwen3_5.py::Qwen3_5GatedDeltaNet.forward"}        # adapted here
    SGLANG_READS = {
        "sig srt/model_executor/forward_context.py::get_attn_backend",                   # called
        "bases srt/models/glm4_moe.py::GlmMoeDsaForCausalLM",                            # subclassed
        "tree srt/layers/layer_boundary",                                                # depended on whole
    }

``patches/pins`` holds one ``digest  key`` line for each, after a line naming the release at which a person
last signed them off. A pin is compared with upstream's base commit, never with the patched tree.
"""

from __future__ import annotations

import ast
import difflib
import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from sglang_fork.errors import ForkError
from sglang_fork.stack import digest as digests
from sglang_fork.stack import overlay
from sglang_fork.stack.git import Git

PINS = "pins"
CONSTANTS = ("SGLANG_MIRRORS", "SGLANG_READS")
ABSENT = "absent"
TOOL = "python/sglang_fork"

_KEY = re.compile(r"(?:body|sig|bases) (?!sglang/)[\w./-]+\.py::[\w.]+|tree (?!sglang/)[\w./-]*[\w-]")


@dataclass(frozen=True)
class PinFile:
    """``patches/pins``: the release of the last sign-off, and digest by key."""

    version: str
    digests: dict[str, str]

    def text(self) -> str:
        lines = [f"{value}  {key}" for key, value in sorted(self.digests.items(), key=_by_place)]
        return "\n".join([f"pinned-at sglang=={self.version}", *lines]) + "\n"


def _by_place(item: tuple[str, str]) -> tuple[str, str]:
    kind, place = item[0].split(" ", 1)
    return place, kind


def read_pins(patches: Path) -> PinFile:
    """Parse ``patches/pins``."""
    path = patches / PINS
    try:
        lines = path.read_text().splitlines()
    except FileNotFoundError:
        raise ForkError(f"{path} does not exist", "make it: ./sglang.sh check --repin") from None
    head = re.fullmatch(r"pinned-at sglang==(\S+)", lines[0]) if lines else None
    if head is None:
        raise ForkError(f"{path}: the first line must be 'pinned-at sglang==VERSION'")
    signed = {}
    for line in lines[1:]:
        match = re.fullmatch(rf"([0-9a-f]{{16}}|{ABSENT})  (\S.*)", line)
        if match is None:
            raise ForkError(f"{path}: not a 'digest  key' line: {line!r}")
        signed[match[2]] = match[1]
    return PinFile(head[1], signed)


def declared(checkout: Path) -> dict[str, list[str]]:
    """Key to the checkout paths of the modules that declare it: those that the fork adds to SGLang, and the
    tool's own."""
    added = [path for root in overlay.ROOTS for path in overlay.files(checkout, root).values()]
    tool = sorted((checkout / TOOL).rglob("*.py"))
    found: dict[str, list[str]] = {}
    for path in (*added, *tool):
        if path.suffix == ".py":
            where = path.relative_to(checkout).as_posix()
            for key in _module_keys(path, where):
                found.setdefault(key, []).append(where)
    return found


def _module_keys(path: Path, where: str) -> list[str]:
    source = path.read_text()
    if not any(name in source for name in CONSTANTS):
        return []
    keys = []
    for node in ast.parse(source, where).body:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                pass
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                pass
            case _:
                continue
        if name in CONSTANTS:
            keys += _literal_keys(value, f"{where}: {name}", name)
    return keys


def _literal_keys(value: ast.expr, where: str, constant: str) -> list[str]:
    try:
        keys = ast.literal_eval(value)
    except ValueError:
        raise ForkError(f"{where} must be a literal set or tuple of strings") from None
    for key in keys:
        if not isinstance(key, str) or not _KEY.fullmatch(key):
            raise ForkError(
                f"{where}: not a pin: {key!r}",
                "pins: 'body FILE::NAME', 'sig FILE::NAME', 'bases FILE::NAME', 'tree FOLDER', below sglang/",
            )
        if constant == "SGLANG_MIRRORS" and not key.startswith("body "):
            raise ForkError(f"{where}: a mirrored function is pinned by its body, not by {key!r}")
    return sorted(keys)


class Upstream:
    """One base commit's code, parsed once a file."""

    def __init__(self, git: Git, commit: str) -> None:
        self._git = git
        self._commit = commit
        self.module = lru_cache(maxsize=None)(self._module)

    def _source(self, path: str) -> bytes | None:
        return self._git.show(self._commit, f"sglang/{path}")

    def _module(self, path: str) -> ast.Module | None:
        source = self._source(path)
        return None if source is None else ast.parse(source)

    def digest(self, key: str) -> str:
        """The digest that ``key`` has here; ``absent`` when upstream has no such thing."""
        kind, place = key.split(" ", 1)
        if kind == "tree":
            files = self._files(place)
            return digests.of_files(files) if files else ABSENT
        node = self._find(place)
        if node is None:
            return ABSENT
        by_kind = {"body": digests.of_body, "sig": digests.of_signature, "bases": digests.of_bases}
        return by_kind[kind](node) or ABSENT

    def _find(self, place: str) -> digests.Definition | None:
        path, name = place.split("::")
        module = self.module(path)
        return None if module is None else digests.find(module, name)

    def _files(self, folder: str) -> dict[str, bytes]:
        top = f"sglang/{folder}/"
        names = self._git.nul("ls-tree", "-r", "-z", "--name-only", self._commit, "--", top)
        return {n.removeprefix(top): self._git.show(self._commit, n) or b"" for n in names}

    def text(self, key: str) -> dict[str, list[str]]:
        """The source lines that ``key`` covers, by file, for a diff."""
        kind, place = key.split(" ", 1)
        if kind == "tree":
            return {f"{place}/{n}": _lines(content) for n, content in self._files(place).items()}
        node = self._find(place)
        if node is None:
            return {place: []}
        lines = _lines(self._source(place.split("::")[0]) or b"")
        start = min([node.lineno, *(d.lineno for d in node.decorator_list)])
        return {place: lines[start - 1 : node.end_lineno]}


def _lines(content: bytes) -> list[str]:
    return content.decode("utf-8", "replace").splitlines()


def diff(key: str, old: Upstream, new: Upstream) -> str:
    """Upstream's unified diff of what a pin covers."""
    before, after = old.text(key), new.text(key)
    out: list[str] = []
    for name in sorted(before.keys() | after.keys()):
        out += difflib.unified_diff(
            before.get(name, []), after.get(name, []), f"a/{name}", f"b/{name}", lineterm=""
        )
    return "\n".join(out)


@dataclass(frozen=True)
class Verdict:
    """How the declared pins stand against a base: keys that changed or went, are not signed off, or are
    stale.
    """

    changed: tuple[str, ...]
    gone: tuple[str, ...]
    unsigned: tuple[str, ...]
    stale: tuple[str, ...]

    @property
    def holds(self) -> bool:
        return not (self.changed or self.gone or self.unsigned or self.stale)


def judge(keys: dict[str, list[str]], pins: PinFile, upstream: Upstream) -> Verdict:
    """Compare the declared keys with the signed digests and with what upstream holds."""
    changed, gone, unsigned = [], [], []
    for key in sorted(keys):
        now = upstream.digest(key)
        if now == ABSENT:
            gone.append(key)
        elif key not in pins.digests:
            unsigned.append(key)
        elif pins.digests[key] != now:
            changed.append(key)
    stale = sorted(pins.digests.keys() - keys.keys())
    return Verdict(tuple(changed), tuple(gone), tuple(unsigned), tuple(stale))


def sign(keys: dict[str, list[str]], upstream: Upstream, version: str) -> PinFile:
    """Pin every declared key as upstream has it now; a key that names nothing is refused."""
    signed = {key: upstream.digest(key) for key in keys}
    nothing = [f"{key} ({', '.join(keys[key])})" for key, value in signed.items() if value == ABSENT]
    if nothing:
        raise ForkError("upstream has no:\n  " + "\n  ".join(sorted(nothing)), "correct the declaring module")
    return PinFile(version, signed)
