# SPDX-License-Identifier: Apache-2.0
"""Which parts of a megakernel's slots are measured beside all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def slot_lists(needs: Mapping[str, Sequence[str]], bound: Sequence[str], kind: str) -> list[tuple[str, ...]]:
    """Parts of the ``bound`` slots: ``without`` leaves out each one and what needs it, ``alone`` runs each
    one and what it needs; none for another kind. The empty list, the whole one and repetitions are left out.
    """
    lists: list[tuple[str, ...]] = []
    for name in bound if kind in ("without", "alone") else ():
        if kind == "alone":
            part = _closure(name, {slot: needs[slot] for slot in bound})
        else:
            users = {slot: tuple(o for o in bound if slot in needs[o]) for slot in bound}
            part = set(bound) - _closure(name, users)
        listed = tuple(slot for slot in bound if slot in part)
        if 0 < len(listed) < len(bound) and listed not in lists:
            lists.append(listed)
    return lists


def _closure(name: str, edges: Mapping[str, Sequence[str]]) -> set[str]:
    found, ahead = set[str](), [name]
    while ahead:
        slot = ahead.pop()
        if slot in edges and slot not in found:
            found.add(slot)
            ahead.extend(edges[slot])
    return found
