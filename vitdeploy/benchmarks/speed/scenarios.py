"""Single-stream, multi-stream, offline and server, after MLPerf Inference: what is asked and found.

Source: Reddi et al., MLPerf Inference Benchmark, ISCA 2020.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from vitdeploy.benchmarks.speed.latencies import Percentile, percentile
from vitdeploy.benchmarks.speed.settings import check_settings
from vitdeploy.errors import InputError

SCHEMA_VERSION = 1
SHARES = (0.5, 0.9, 0.99)
STREAMS = 8
"""Images of one multi-stream query, as in MLPerf."""
CLOSE = 1.05
"""A batch is enough that gives up no more of the throughput than this factor, and the server's
highest rate is known within it."""

StreamName = Literal["single-stream", "multi-stream"]


@dataclass(frozen=True, kw_only=True)
class ScenarioConfig:
    """How many queries are sent, and what ends a search.

    `min_queries` and `min_seconds` bound a stream and each rate of the server
    from below, `max_seconds` a stream, an offline sweep and the server's
    whole search from above. An offline sweep doubles the
    batch up to `largest_batch` and ends after two doublings that gain less than
    `least_gain` each. `bound_ms` is what the server's p99 must hold.
    """

    warmups: int = 3
    min_queries: int = 400
    min_seconds: float = 5.0
    max_seconds: float = 60.0
    tolerance: float = 0.05
    largest_batch: int = 64
    least_gain: float = 0.03
    bound_ms: float = 100.0
    served_batch: int = 8
    seed: int = 0
    accept_unstable: bool = False

    def __post_init__(self) -> None:
        check_settings(
            self,
            counts=("warmups", "min_queries", "largest_batch", "served_batch"),
            positive=("tolerance", "bound_ms", "least_gain", "max_seconds"),
            not_negative=("min_seconds",),
        )
        if self.max_seconds < self.min_seconds:
            raise InputError(
                f"at least {self.min_seconds:g} s and at most {self.max_seconds:g} s is no time",
                hint="let max_seconds be the longer one",
            )


@dataclass(frozen=True)
class StreamResult:
    """Raw latencies of queries sent one after the other, `batch` images each.

    `drift` is the largest spread between the medians of the three thirds.
    """

    scenario: StreamName
    name: str
    driver: str
    batch: int
    latencies_ms: tuple[float, ...]
    drift: float
    stable: bool

    def percentiles(self) -> tuple[Percentile, ...]:
        """p50, p90 and p99."""
        return tuple(percentile(self.latencies_ms, share) for share in SHARES)

    def in_words(self) -> str:
        """'... single-stream: p50 8.1 ms (8.0 to 8.2), p90 ..., p99 ...; 400 queries of 1'."""
        told = ", ".join(found.in_words() for found in self.percentiles())
        unsettled = "" if self.stable else " (timings did not settle)"
        return (
            f"{self.name}, {self.scenario}: {told}; {len(self.latencies_ms)} queries of "
            f"{self.batch} by {self.driver}{unsettled}"
        )


@dataclass(frozen=True)
class SweepPoint:
    """Offline throughput at one batch size; `low` to `high` is its 95 % interval.

    `high` is None where too few runs bound it.
    """

    batch: int
    images_per_second: float
    low: float
    high: float | None


def _rate(point: SweepPoint) -> str:
    speed = point.images_per_second
    return f"{speed:,.0f} images/s" if speed >= 100 else f"{speed:.3g} images/s"


@dataclass(frozen=True)
class OfflineResult:
    """Throughput over batch sizes.

    `still_growing`: the largest batch allowed, or the time, ended the sweep
    while throughput grew. `unfinished` says so where it was the time.
    """

    name: str
    driver: str
    points: tuple[SweepPoint, ...]
    still_growing: bool
    unfinished: str = ""

    def best(self) -> SweepPoint:
        return max(self.points, key=lambda point: point.images_per_second)

    def enough(self) -> SweepPoint:
        """The smallest batch within 5 % of the best throughput: larger ones only add latency."""
        least = self.best().images_per_second / CLOSE
        return next(point for point in self.points if point.images_per_second >= least)

    def course(self) -> str:
        """What happens over the batch, in words.

        'still grows at batch 64, ...', 'has its knee at batch 4 (...)', or where larger batches
        are slower 'is highest at batch 1 (...) and falls beyond, to 180 images/s at batch 8'.
        """
        enough, best, last = self.enough(), self.best(), self.points[-1]
        told = f"batch {best.batch} ({_rate(best)}"
        if self.still_growing:
            return f"still grows at {told}), the largest tried"
        slowest = min(self.points[self.points.index(best) :], key=lambda p: p.images_per_second)
        if slowest.images_per_second < best.images_per_second / CLOSE:
            less = "" if enough == best else f", hardly more than at batch {enough.batch}"
            return (
                f"is highest at {told}{less}) and falls beyond, to "
                f"{_rate(slowest)} at batch {slowest.batch}"
            )
        if enough == last:
            which = "the only one" if len(self.points) == 1 else "the largest"
            return f"is highest at {told}), {which} tried"
        return (
            f"has its knee at batch {enough.batch} ({_rate(enough)}): "
            f"up to batch {last.batch} larger ones gain less than 5 %"
        )

    def in_words(self) -> str:
        more = f"; {self.unfinished}" if self.unfinished else ""
        return f"{self.name}: offline throughput {self.course()}{more}"


@dataclass(frozen=True)
class ServerRun:
    """One rate: whether p99 was shown to hold, and what it was.

    `cut_short`: it ended before all queries were sent, because too many were
    late, or (`undecided`) because the time of the search was up.
    """

    rate_per_s: float
    queries: int
    over: int
    p99_ms: float
    holds: bool
    cut_short: bool
    undecided: bool = False

    def outcome(self) -> str:
        return "held" if self.holds else "time was up" if self.undecided else "too many late"


@dataclass(frozen=True)
class ServerResult:
    """The highest Poisson rate whose p99 holds; None where none that was tried does.

    `unfinished` says why the search ended before the rate was known within
    5 %, and what would do; empty where it did not.
    """

    name: str
    driver: str
    bound_ms: float
    served_batch: int
    seed: int
    rate_per_s: float | None
    runs: tuple[ServerRun, ...]
    unfinished: str = ""

    def reached(self) -> str:
        """'70 queries/s', 'at least 70 queries/s, less than 100', 'less than 20 queries/s'."""
        failed = [r.rate_per_s for r in self.runs if not (r.holds or r.undecided)]
        if self.rate_per_s is None:
            return f"less than {min(failed):.3g} queries/s" if failed else "not known"
        if not self.unfinished:
            return f"{self.rate_per_s:.3g} queries/s"
        above = [rate for rate in failed if rate > self.rate_per_s]
        less = f", less than {min(above):.3g}" if above else ""
        return f"at least {self.rate_per_s:.3g} queries/s{less}"

    def in_words(self) -> str:
        more = f" ({self.unfinished})" if self.unfinished else ""
        return f"{self.name}: {self.reached()} with p99 within {self.bound_ms:g} ms{more}"


@dataclass(frozen=True)
class ScenarioResult:
    """What 'scenarios.json' holds: all scenarios of one engine on one machine.

    `resolution` is that of engines of a range of sizes (None: the engine's only one).
    """

    engine_digest: str
    streams: tuple[StreamResult, ...] = ()
    offline: OfflineResult | None = None
    server: ServerResult | None = None
    resolution: tuple[int, int] | None = None
    schema_version: int = SCHEMA_VERSION

    def size(self) -> tuple[int, int] | None:
        """As `resolution`."""
        return self.resolution

    def supersedes(self, older: ScenarioResult) -> bool:
        """Whether every scenario was run again, a server's under the same bound."""
        if older.engine_digest != self.engine_digest:
            return True
        bounds = [found.server and found.server.bound_ms for found in (self, older)]
        return (
            self.resolution == older.resolution
            and {s.scenario for s in older.streams} <= {s.scenario for s in self.streams}
            and (older.offline is None or self.offline is not None)
            and (older.server is None or bounds[0] == bounds[1])
        )

    def with_older(self, older: ScenarioResult) -> ScenarioResult:
        """Scenarios are run one by one: those that were not run again stay as they were."""
        if (older.engine_digest, older.resolution) != (self.engine_digest, self.resolution):
            return self
        own = {stream.scenario for stream in self.streams}
        return replace(
            self,
            streams=(*(s for s in older.streams if s.scenario not in own), *self.streams),
            offline=self.offline or older.offline,
            server=self.server or older.server,
        )

    def in_words(self) -> tuple[str, ...]:
        """A sentence a scenario."""
        lines = [stream.in_words() for stream in self.streams]
        lines += [found.in_words() for found in (self.offline, self.server) if found is not None]
        return tuple(lines)
