"""Which roundings of a typed graph move its answers most."""

from __future__ import annotations

import heapq
from collections.abc import Callable

import numpy as np

from vitdeploy.graph.rounding import RoundingGroup

Damage = tuple[RoundingGroup, float]
"""A group, and the output's error when it alone rounds, in deviations."""


class WorstFirst:
    """Rounding groups in the order of what they do to the output, measured as far as asked.

    Errors of roundings are hardly related and add up as squares do: many groups
    together err by at least about as much as the worst of them alone. So the
    whole is halved, and always the worst part again, until single groups come
    out. The first of hundreds costs two measurements for every halving,
    all of them twice as many measurements as there are groups.
    """

    def __init__(self, groups: tuple[RoundingGroup, ...], error: Callable[[range], float]) -> None:
        """`error`: the output's, in deviations, when the groups of these indices round."""
        self._groups = groups
        self._error = error
        self._parts = [(-np.inf, 0, range(len(groups)))] if groups else []
        self._found: list[Damage] = []

    def first(self, count: int) -> list[Damage]:
        """The `count` worst groups, worst first, or all that there are."""
        while len(self._found) < count and self._parts:
            negative, _, part = heapq.heappop(self._parts)
            if len(part) == 1:
                self._found.append((self._groups[part[0]], -negative))
                continue
            middle = len(part) // 2
            for half in (part[:middle], part[middle:]):
                heapq.heappush(self._parts, (-self._error(half), half.start, half))
        return self._found[:count]
