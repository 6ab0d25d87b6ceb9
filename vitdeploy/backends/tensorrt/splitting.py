"""How a batch of any size is run by an engine whose profiles take only some."""

from __future__ import annotations

import math
from functools import lru_cache

Span = tuple[int, int]
"""(smallest, largest) batch of one profile."""


def profile_for(count: int, spans: tuple[Span, ...]) -> int | None:
    """The profile to run `count` images with: the one that ends closest above; None if none does.

    >>> profile_for(3, ((1, 64), (2, 4)))
    1
    """
    fitting = [i for i, (low, high) in enumerate(spans) if low <= count <= high]
    return min(fitting, key=lambda i: spans[i][1], default=None)


@lru_cache(maxsize=64)
def split(count: int, spans: tuple[Span, ...]) -> tuple[int, ...]:
    """The fewest runs that make `count` images, the larger ones first; empty where there is none.

    >>> split(70, ((1, 64),))
    (64, 6)
    >>> split(5, ((2, 4),))
    (3, 2)
    >>> split(5, ((4, 4),))
    ()
    """
    widest = max(high for _, high in spans)
    whole, rest = divmod(count, widest)
    if rest == 0 or profile_for(rest, spans) is not None:
        return (widest,) * whole + ((rest,) if rest else ())
    return _fewest(count, [n for n in range(widest, 0, -1) if profile_for(n, spans) is not None])


def _fewest(count: int, sizes: list[int]) -> tuple[int, ...]:
    """By what is known of every smaller count; `sizes` are what one run takes, falling."""
    last: list[int] = [0]
    runs: list[float] = [0]
    for total in range(1, count + 1):
        ways = [(runs[total - size], -size) for size in sizes if size <= total]
        best, size = min(ways, default=(math.inf, 0))
        runs.append(best + 1)
        last.append(-size)
    if runs[count] == math.inf:
        return ()
    found = []
    while count:
        found.append(last[count])
        count -= last[count]
    return tuple(sorted(found, reverse=True))
