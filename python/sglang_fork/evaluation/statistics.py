# SPDX-License-Identifier: Apache-2.0
"""The exact McNemar test of two servers on the same questions, and an interval for an accuracy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Paired:
    """Questions by whether the first and the second server answered them right."""

    both: int
    first_alone: int
    second_alone: int
    neither: int

    @classmethod
    def of(cls, first: Sequence[bool], second: Sequence[bool]) -> Paired:
        pairs = list(zip(first, second, strict=True))
        return cls(
            *(pairs.count(kind) for kind in ((True, True), (True, False), (False, True), (False, False)))
        )

    @property
    def p_value(self) -> float:
        """Two-sided and exact: were the two equally good, each discordant question would be a fair coin."""
        count = self.first_alone + self.second_alone
        fewer = min(self.first_alone, self.second_alone)
        tail = sum(math.comb(count, k) for k in range(fewer + 1))
        return min(1.0, 2 * tail / int(2**count))


def wilson(right: int, count: int, z: float = 1.959964) -> tuple[float, float]:
    """The 95 % Wilson interval of a share; (0, 1) where nothing was asked."""
    if count == 0:
        return 0.0, 1.0
    share, scale = right / count, 1 + z * z / count
    centre = (share + z * z / (2 * count)) / scale
    reach = z * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count)) / scale
    return (centre - reach if right else 0.0), (centre + reach if right < count else 1.0)
