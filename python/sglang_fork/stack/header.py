# SPDX-License-Identifier: Apache-2.0
"""A patch's header: subject, why, and the trailers that say where it stands and how it is kept honest.

::

    Subject in the imperative

    Why the patch exists, in prose.

    Hook: sglang/srt/models/qwen3_5.py::Qwen3_5ForCausalLM.forward
    Upstream-Status: Pending | Submitted [ref] | Inappropriate [reason] | Backport [ref]
    Test: test/unit/x/test_y.py::test_z
    Drop-When: what must have happened upstream, in words
    Drop-Check: exists sglang/srt/x.py::Class.method
    Patch-Id: mega-x

``Hook`` (one line for each function or file that the patch edits) is written by ``export`` when a new commit
has none, and is checked ever after. ``Drop-Check`` is optional and lets ``upstream status`` decide
``Drop-When`` by itself: ``exists`` or ``absent PATH.py[::NAME]``, ``contains`` or ``lacks PATH TEXT``,
``release >= VERSION``; all of them must hold.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from sglang_fork.errors import ForkError

ONCE = ("Upstream-Status", "Drop-When", "Patch-Id")
MANY = ("Hook", "Test", "Drop-Check")
REQUIRED = ("Upstream-Status", "Test", "Drop-When", "Patch-Id")

_TRAILER = re.compile(r"([A-Z][A-Za-z-]*): (\S.*)")
_STATUS = re.compile(r"Pending|Submitted \[.+\]|Inappropriate \[.+\]|Backport \[.+\]")
_DROP_CHECK = re.compile(
    r"(?:exists|absent) \S+\.py(?:::[\w.]+)?|(?:contains|lacks) \S+ \S.*|release >= \d+(?:\.\d+)+"
)
_PATCH_ID = re.compile(r"[a-z0-9][a-z0-9._-]*")
# Lines at which git am ends the message.
_CUTS = re.compile(r"---|diff -|Index: ")


@dataclass(frozen=True)
class Header:
    """A parsed commit message; ``trailers`` keeps file order."""

    subject: str
    why: str
    trailers: tuple[tuple[str, str], ...]

    def all(self, key: str) -> list[str]:
        return [value for name, value in self.trailers if name == key]

    def one(self, key: str) -> str | None:
        values = self.all(key)
        return values[0] if values else None

    @property
    def patch_id(self) -> str | None:
        return self.one("Patch-Id")

    def with_hooks(self, hooks: list[str]) -> Header:
        """The same header declaring ``hooks``, which come first among the trailers."""
        rest = tuple(t for t in self.trailers if t[0] != "Hook")
        return Header(self.subject, self.why, tuple(("Hook", h) for h in hooks) + rest)

    def text(self) -> str:
        """The commit message, newline-terminated."""
        trailers = "\n".join(f"{key}: {value}" for key, value in self.trailers)
        return "\n\n".join(part for part in (self.subject, self.why, trailers) if part) + "\n"


def parse(message: str) -> Header:
    """Split a commit message. The last paragraph is the trailers when every line of it is one or continues
    one.
    """
    subject, _, rest = message.strip("\n").partition("\n")
    paragraphs = re.split(r"\n\s*\n", rest.strip("\n")) if rest.strip() else []
    trailers = _parse_trailers(paragraphs[-1]) if paragraphs else None
    if trailers is not None:
        paragraphs.pop()
    why = "\n\n".join("\n".join(line.rstrip() for line in p.split("\n")) for p in paragraphs)
    return Header(subject.strip(), why, tuple(trailers or ()))


def _parse_trailers(paragraph: str) -> list[tuple[str, str]] | None:
    found: list[tuple[str, str]] = []
    for line in paragraph.split("\n"):
        match = _TRAILER.fullmatch(line.rstrip())
        if match:
            found.append((match[1], match[2]))
        elif found and line[:1].isspace():
            found[-1] = (found[-1][0], f"{found[-1][1]} {line.strip()}")
        else:
            return None
    return found


def lint(message: str) -> list[str]:
    """What is wrong with a patch's header, empty when nothing is."""
    header = parse(message)
    faults = _lint_text(message, header)
    if not header.trailers:
        return [*faults, "no trailers: the last paragraph must be 'Key: value' lines alone"]
    faults += [f"no {key}: trailer" for key in REQUIRED if not header.all(key)]
    faults += [f"{key}: given twice" for key in ONCE if len(header.all(key)) > 1]
    faults += [f"unknown trailer {key}:" for key, _ in header.trailers if key not in ONCE + MANY]
    status, name = header.one("Upstream-Status"), header.patch_id
    if status and not _STATUS.fullmatch(status):
        faults.append(
            f"Upstream-Status: {status!r} is none of "
            "Pending, Submitted [ref], Inappropriate [reason], Backport [ref]"
        )
    for rule in header.all("Drop-Check"):
        if not _DROP_CHECK.fullmatch(rule):
            faults.append(f"Drop-Check: {rule!r} is no rule that upstream status knows")
    if name and not _PATCH_ID.fullmatch(name):
        faults.append(f"Patch-Id: {name!r} must be lower-case letters, digits, '.', '_' and '-'")
    return faults


def _lint_text(message: str, header: Header) -> list[str]:
    faults = []
    if not header.subject or len(header.subject) > 72:
        faults.append(f"the subject must have 1 to 72 characters, has {len(header.subject)}")
    if not header.why:
        faults.append("no paragraph that says why")
    for line in message.splitlines():
        if not line.isascii() or not line.isprintable():
            faults.append(f"not printable ASCII: {line!r}")
        if _CUTS.match(line):
            faults.append(f"git am would cut the message at: {line!r}")
    return faults


def require(message: str, what: str) -> Header:
    """The parsed header, or a ForkError listing every fault."""
    faults = lint(message)
    if faults:
        raise ForkError(f"{what}: its header does not pass:\n  " + "\n  ".join(faults))
    return parse(message)
