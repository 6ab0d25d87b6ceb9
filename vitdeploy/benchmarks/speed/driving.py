"""Who sends the queries of a scenario, and takes the latencies: `Driver`.

vitdeploy's own is here; MLPerf LoadGen, where it is installed, is
`loadgen.LoadGenDriver`. Both answer raw latencies; what is made of them is the same.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from vitdeploy.backends.base import Session
from vitdeploy.benchmarks.speed.latencies import most_over
from vitdeploy.benchmarks.speed.scenarios import ScenarioConfig
from vitdeploy.benchmarks.speed.throughput import Clock

Sleep = Callable[[float], None]


class Driver(Protocol):
    """Sends queries and takes latencies."""

    @property
    def name(self) -> str: ...

    def stream(
        self, session: Session, batch: NDArray, *, queries: int, seconds: float
    ) -> list[float]:
        """Latencies in ms of at least `queries` and `seconds` of queries, one after the other."""
        ...

    def serve(
        self,
        session: Session,
        images: NDArray,
        rate_per_s: float,
        config: ScenarioConfig,
        *,
        seconds: float = math.inf,
    ) -> list[float]:
        """Latencies in ms of queries of one image that arrive at random, waiting included.

        Up to `len(images)` that wait are run as one batch. Ends early after
        `seconds`, and may once more queries were late than can be allowed;
        only queries that were answered by then are in the list.
        """
        ...


class OwnDriver:
    """Sends queries from this thread. Clock and sleep can be replaced by tests."""

    name = "vitdeploy"

    def __init__(self, clock: Clock = time.perf_counter, sleep: Sleep = time.sleep) -> None:
        self._clock, self._sleep = clock, sleep

    def stream(
        self, session: Session, batch: NDArray, *, queries: int, seconds: float
    ) -> list[float]:
        found: list[float] = []
        start = self._clock()
        while len(found) < queries or self._clock() - start < seconds:
            sent = self._clock()
            session.run(batch)
            found.append(1000 * (self._clock() - sent))
        return found

    def serve(
        self,
        session: Session,
        images: NDArray,
        rate_per_s: float,
        config: ScenarioConfig,
        *,
        seconds: float = math.inf,
    ) -> list[float]:
        queries = queries_at(rate_per_s, config)
        arrivals = poisson_arrivals(rate_per_s, queries, config.seed)
        allowed, over, done = most_over(queries), 0, 0
        found: list[float] = []
        start = self._clock()
        while done < queries and over <= allowed:
            now = self._clock() - start
            if max(now, float(arrivals[done])) >= seconds:
                break
            if arrivals[done] > now:
                self._sleep(float(arrivals[done]) - now)
                now = self._clock() - start
            arrived = int(np.searchsorted(arrivals, now, side="right"))
            # At least the one that was slept for: a clock may round it away.
            taken = min(max(arrived - done, 1), len(images))
            session.run(images[:taken])
            waited = 1000 * (self._clock() - start - arrivals[done : done + taken])
            found.extend(waited.tolist())
            over += int((waited > config.bound_ms).sum())
            done += taken
        return found


def poisson_arrivals(rate_per_s: float, queries: int, seed: int) -> NDArray[np.float64]:
    """(queries,) times in seconds; the same seed at twice the rate halves every time."""
    gaps = np.random.default_rng(seed).exponential(1.0, queries)
    return np.cumsum(gaps) / rate_per_s


def queries_at(rate_per_s: float, config: ScenarioConfig) -> int:
    """How many queries are sent at a rate: enough for the time, and for a p99 to be told."""
    return max(config.min_queries, round(rate_per_s * config.min_seconds))
