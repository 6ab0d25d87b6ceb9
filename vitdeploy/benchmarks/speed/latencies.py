"""Percentiles of raw latencies, each with the interval its number of queries allows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from vitdeploy.errors import InputError

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Percentile:
    """The latency that `share` of all queries stay within, and its 95 % interval.

    `high_ms` is None where so few queries bound nothing: no maximum of fewer
    than 368 samples is above the 99th percentile with 97.5 % confidence.
    """

    share: float
    value_ms: float
    low_ms: float
    high_ms: float | None

    def figures(self) -> str:
        """'12.3 ms (11.9 to 14.0)', '12.3 ms (11.9 or more)'."""
        upper = "or more" if self.high_ms is None else f"to {_told(self.high_ms)}"
        return f"{_told(self.value_ms)} ms ({_told(self.low_ms)} {upper})"

    def in_words(self) -> str:
        """'p99 12.3 ms (11.9 to 14.0)'."""
        return f"p{100 * self.share:g} {self.figures()}"


def _told(ms: float) -> str:
    """Three significant digits, without an exponent: 0.123, 12.3, 1,230."""
    return f"{ms:,.0f}" if ms >= 1000 else f"{ms:.3g}"


def percentile(samples_ms: Sequence[float], share: float) -> Percentile:
    """The nearest-rank percentile, with an interval between two order statistics.

    Distribution-free: of n samples, as many as Binomial(n, share) lie below
    the true percentile, whatever its shape. Source: Hahn and Meeker,
    Statistical Intervals, 2nd ed., section 5.2. The samples are taken as
    independent; those of a queue are not, and its true interval is wider.
    Raises InputError without samples or for a share outside (0, 1).
    """
    n = len(samples_ms)
    if n == 0 or not 0 < share < 1:
        raise InputError(f"{n} samples have no percentile {share}", hint="measure again")
    ordered = np.sort(np.asarray(samples_ms, dtype=np.float64))
    tail = (1 - CONFIDENCE) / 2
    below = stats.binom(n, share)
    # Ranks count from 1. P(X_(l) > percentile) = P(B <= l - 1), P(X_(u) < percentile) = P(B >= u).
    low = int(below.ppf(tail))
    high = int(below.ppf(1 - tail)) + 1
    return Percentile(
        share,
        float(ordered[max(1, math.ceil(share * n - 1e-9)) - 1]),
        float(ordered[max(low, 1) - 1]),
        float(ordered[high - 1]) if high <= n else None,
    )


def most_over(queries: int, share: float = 0.99, confidence: float = CONFIDENCE) -> int:
    """How many of `queries` may exceed a bound that `share` of all shall hold; -1: too few tell.

    The largest k with P(Binomial(queries, 1 - share) <= k) <= 1 - confidence,
    as in MLPerf's early stopping: 298 queries tell nothing about a p99, 299
    may have none over, 1,000 at most 4.
    """
    k = int(stats.binom.ppf(1 - confidence, queries, 1 - share))
    while k >= 0 and stats.binom.cdf(k, queries, 1 - share) > 1 - confidence:
        k -= 1
    return k
