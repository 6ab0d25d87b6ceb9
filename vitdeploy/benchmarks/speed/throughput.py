"""Timing engines against their source, side by side in the same rounds."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vitdeploy.backends.base import Session
from vitdeploy.benchmarks.speed.end_to_end import EndToEnd
from vitdeploy.benchmarks.speed.machine import Conditions, Energy
from vitdeploy.benchmarks.speed.memory import PeakMemory
from vitdeploy.benchmarks.speed.roofline import MachinePeak, RooflineShare
from vitdeploy.benchmarks.speed.settings import TimingConfig
from vitdeploy.benchmarks.speed.timing_guards import (
    Clock,
    OwnResults,
    Stopwatch,
    device_ms_of,
    stopwatch,
)
from vitdeploy.benchmarks.statistics import ratio_interval
from vitdeploy.errors import InputError, UnstableMeasurementError
from vitdeploy.progress import SILENT, Progress

_WINDOWS = 3
_MIN_ROUNDS = 2
_MAX_REPEATS = 10_000

SCHEMA_VERSION = 1


@dataclass(frozen=True)
class Measurement:
    """Raw timings of one session at one batch size.

    `samples_ms` has one entry a round: milliseconds for one run of a whole
    batch, the mean over `repeats` runs in a row. With more than one repeat the
    percentiles are therefore of rounds, and a single slow run weighs less.
    They are of whole runs, with what is copied to a GPU and back;
    `device_samples_ms` is what the GPU itself counted for the last run of each
    round, copies apart (empty where no device tells).
    """

    name: str
    batch: int
    warmups: int
    repeats: int
    samples_ms: tuple[float, ...]
    device_samples_ms: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        timed = self.samples_ms and min(self.samples_ms) >= 0 and self.p50_ms() > 0
        if self.batch < 1 or not timed:
            raise InputError(
                f"{self.name} has {len(self.samples_ms)} timings at batch {self.batch}, "
                "and all must be above zero",
                hint="measure again",
            )

    def p50_ms(self) -> float:
        return self._percentile(50)

    def p90_ms(self) -> float:
        return self._percentile(90)

    def p99_ms(self) -> float:
        return self._percentile(99)

    def device_p50_ms(self) -> float | None:
        """Of one batch on the device alone; None where that is not known."""
        return float(np.median(self.device_samples_ms)) if self.device_samples_ms else None

    def device_in_words(self) -> str:
        """'engine at batch 8: 3.1 ms on the device alone, ...'; empty where that is not known."""
        alone, whole = self.device_p50_ms(), self.p50_ms()
        if alone is None:
            return ""
        return (
            f"{self.name} at batch {self.batch}: {alone:.3g} ms on the device alone, "
            f"{whole:.3g} ms with copies and waiting ({alone / whole:.0%} of it is computing)"
        )

    def images_per_second(self) -> float:
        """Throughput at the median."""
        return 1000 * self.batch / self.p50_ms()

    def ms_per_image(self) -> float:
        return self.p50_ms() / self.batch

    def _percentile(self, share: float) -> float:
        return float(np.percentile(self.samples_ms, share))


@dataclass(frozen=True)
class Speedup:
    """`name` is `ratio` times as fast as `baseline`; `low` to `high` is the 95 % interval."""

    name: str
    baseline: str
    batch: int
    ratio: float
    low: float
    high: float


@dataclass(frozen=True)
class ThroughputComparison:
    """Measurements of all sessions in the same rounds; speed-ups are against the first.

    `drift` is the largest relative spread left between the last windows'
    medians (1.0 where there were too few rounds to tell).
    """

    batch: int
    measurements: tuple[Measurement, ...]
    speedups: tuple[Speedup, ...]
    stable: bool
    drift: float


@dataclass(frozen=True)
class TimedEngine:
    """What a timed engine is."""

    backend: str
    precision: str


@dataclass(frozen=True)
class BenchmarkResult:
    """Timings of several engines at several batch sizes, as in 'benchmark.json'.

    `engine_digests` are in the order of the measurements, which begin with
    the source where `has_source` is set, and with its other forms
    (`source_variants`: compiled, half precision) after that. `engines` are in
    the order of the digests. `conditions` are those before and after.
    `from_files` has one entry an engine where images were given. `resolution` is
    that of the images, (height, width) (None: by an older version).
    """

    engine_digests: tuple[str, ...]
    has_source: bool
    source_label: str
    comparisons: tuple[ThroughputComparison, ...]
    source_variants: tuple[str, ...] = ()
    engines: tuple[TimedEngine, ...] = ()
    conditions: tuple[Conditions, ...] = ()
    peak: MachinePeak | None = None
    shares: tuple[RooflineShare, ...] = ()
    energy: tuple[Energy, ...] = ()
    memory: tuple[PeakMemory, ...] = ()
    from_files: tuple[EndToEnd, ...] = ()
    resolution: tuple[int, int] | None = None
    schema_version: int = SCHEMA_VERSION

    def __post_init__(self) -> None:
        sessions = len(self.engine_digests) + self.first_engine
        counts = {len(comparison.measurements) for comparison in self.comparisons}
        if counts != {sessions} or not self.engine_digests:
            raise InputError(
                f"there are timings of {sorted(counts)} sessions for {sessions}",
                hint="measure again",
            )

    def times(self) -> list[tuple[str, int]]:
        """(engine digest, batch) of everything timed."""
        return [(digest, c.batch) for digest in self.engine_digests for c in self.comparisons]

    def supersedes(self, older: BenchmarkResult) -> bool:
        """Whether all that the older run measured was measured again."""
        return self.resolution == older.resolution and older._measured() <= self._measured()

    def _measured(self) -> set[tuple[str, str, int]]:
        """(kind of figure, session, batch) of everything that was; that timings settled is a
        finding too."""
        forms = [self.source_label, *self.source_variants] if self.has_source else []
        sessions = [*forms, *self.engine_digests]
        return {
            *(("time", name, c.batch) for name in sessions for c in self.comparisons),
            *(("settled", "", c.batch) for c in self.comparisons if c.stable),
            *(("share", found.name, found.batch) for found in self.shares),
            *(("energy", found.name, found.batch) for found in self.energy),
            *(("memory", found.engine_digest, found.batch) for found in self.memory),
            *(("files", found.engine_digest, found.batch) for found in self.from_files),
        }

    @property
    def first_engine(self) -> int:
        """Where in the measurements engines begin."""
        return self.has_source + len(self.source_variants)

    def fastest_source(self, position: int) -> Measurement | None:
        """Of the source's forms, the fastest in one comparison; None where none was timed."""
        forms = self.comparisons[position].measurements[: self.first_engine]
        return min(forms, key=Measurement.p50_ms, default=None)

    def fair_speedups_of(self, digest: str) -> tuple[Speedup, ...]:
        """Per batch size, against the fastest of PyTorch's forms there; from the raw samples."""
        found = []
        for position, measured in enumerate(self.measurements_of(digest)):
            best = self.fastest_source(position)
            if best is not None:
                ratio = ratio_interval(np.array(best.samples_ms), np.array(measured.samples_ms))
                found.append(Speedup(measured.name, best.name, measured.batch, *ratio))
        return tuple(found)

    def measurements_of(self, digest: str) -> tuple[Measurement, ...]:
        """One measurement per batch size of the engine with this digest."""
        position = self.engine_digests.index(digest) + self.first_engine
        return tuple(comparison.measurements[position] for comparison in self.comparisons)

    def speedups_of(self, digest: str) -> tuple[Speedup, ...]:
        """One speed-up per batch size against the baseline; none for the baseline itself."""
        names = {measurement.name for measurement in self.measurements_of(digest)}
        return tuple(
            speedup
            for comparison in self.comparisons
            for speedup in comparison.speedups
            if speedup.name in names
        )

    def source_measurements(self) -> tuple[Measurement, ...]:
        """The source's own measurements, one per batch size; none where it was not timed."""
        if not self.has_source:
            return ()
        return tuple(comparison.measurements[0] for comparison in self.comparisons)

    def form_measurements(self) -> tuple[Measurement, ...]:
        """Those of the source's other forms: all batch sizes of the first, then of the next."""
        positions = range(self.has_source, self.first_engine)
        return tuple(c.measurements[i] for i in positions for c in self.comparisons)


def measure_interleaved(
    sessions: Sequence[Session],
    batch: NDArray[np.float32],
    *,
    config: TimingConfig | None = None,
    clock: Clock = time.perf_counter,
    witness: Clock | None = None,
    progress: Progress = SILENT,
) -> ThroughputComparison:
    """Time `sessions` on `batch`, (n, channels, height, width), in interleaved rounds.

    Every round runs each session, and the order rotates: A B C, B C A, C A B.
    Each turn begins with one untimed run.
    What slows the machine for a while thus slows all of them, and the ratios
    stay. The first session is the baseline. Settled means that three windows
    in a row agree in the baseline's time and in every other's ratio to it.

    `witness` is a second clock that must agree with `clock` (default: the
    system's unadjusted one, beside the default `clock`).

    Raises InputError for no sessions or names that repeat, EngineError for a
    session that overwrites its earlier results, and UnstableMeasurementError
    where the clock jumps, or where `max_seconds` pass before timings settle
    and the config does not accept that.
    """
    config = config or TimingConfig()
    names = [session.name for session in sessions]
    if not names or len(set(names)) < len(names):
        raise InputError(
            f"sessions need names of their own, not {names}", hint="measure each engine once"
        )
    watch = stopwatch(clock) if witness is None else Stopwatch(clock, witness)
    repeats = [_warm_up(session, batch, config, watch) for session in sessions]
    rows, device_rows, drift = _rounds(sessions, batch, repeats, config, watch, progress)
    stable = drift <= config.tolerance
    samples = np.array(rows)
    measurements = tuple(
        Measurement(
            name,
            len(batch),
            config.warmups,
            repeats[i],
            tuple(samples[:, i].tolist()),
            tuple(device_rows[i]),
        )
        for i, name in enumerate(names)
    )
    speedups = tuple(
        Speedup(name, names[0], len(batch), *ratio_interval(samples[:, 0], samples[:, i]))
        for i, name in enumerate(names)
        if i > 0
    )
    compared = ThroughputComparison(len(batch), measurements, speedups, stable, drift)
    if not (stable or config.accept_unstable):
        raise _unsettled(compared, config)
    progress.note(_in_words(compared))
    return compared


def _unsettled(compared: ThroughputComparison, config: TimingConfig) -> UnstableMeasurementError:
    rounds = len(compared.measurements[0].samples_ms)
    needed = _WINDOWS * _window(config, len(compared.measurements))
    if rounds < needed:
        why = (
            f"only {rounds} rounds fit into {config.max_seconds:g} s, and {needed} tell whether "
            "timings have settled"
        )
    else:
        why = (
            f"after {rounds} rounds timings still differ by {100 * compared.drift:.0f} % between "
            f"windows, more than {100 * config.tolerance:.0f} %"
        )
    return UnstableMeasurementError(
        f"{why}; so far, {_in_words(compared)}",
        hint="stop other work on this machine, allow more time (--seconds), or take such figures "
        "knowingly with --accept-unstable",
    )


def _in_words(compared: ThroughputComparison) -> str:
    """'batch 8: PyTorch 12.31 ms/image, engine 3.08 ms/image (4.00x)'."""
    ratios = {speedup.name: f" ({speedup.ratio:.2f}x)" for speedup in compared.speedups}
    figures = ", ".join(
        f"{measured.name} {measured.ms_per_image():.2f} ms/image{ratios.get(measured.name, '')}"
        for measured in compared.measurements
    )
    return f"batch {compared.batch}: {figures}"


def _window(config: TimingConfig, sessions: int) -> int:
    """Rounds in a window, in which every session runs equally often in every position."""
    return math.ceil(config.window / sessions) * sessions


def _warm_up(
    session: Session, batch: NDArray[np.float32], config: TimingConfig, watch: Stopwatch
) -> int:
    """Run the warm-ups; answer how many runs fill a round."""
    fastest = min(watch.run_ms(session, batch, 1) for _ in range(config.warmups))
    if fastest <= 0:
        return _MAX_REPEATS
    return min(_MAX_REPEATS, max(1, math.ceil(config.min_round_ms / fastest)))


def _rounds(
    sessions: Sequence[Session],
    batch: NDArray[np.float32],
    repeats: list[int],
    config: TimingConfig,
    watch: Stopwatch,
    progress: Progress,
) -> tuple[list[list[float]], list[list[float]], float]:
    """Rows of ms per run, one a round and one column a session; what devices counted, one
    row a session; and the drift left."""
    count = len(sessions)
    window = _window(config, count)
    rows: list[list[float]] = []
    device_rows: list[list[float]] = [[] for _ in sessions]
    own = OwnResults()
    start = watch.clock()
    limit, shown = math.ceil(config.max_seconds), 0
    with progress.task(f"timing {count} sessions at batch {len(batch)}, seconds", limit) as task:
        while True:
            row = [0.0] * count
            for position in range(count):
                i = (len(rows) + position) % count
                # Untimed: caches, and threads that still spin, belong to the session before.
                own.check(sessions[i], sessions[i].run(batch))
                row[i] = watch.run_ms(sessions[i], batch, repeats[i])
                counted = device_ms_of(sessions[i])
                if counted is not None:
                    device_rows[i].append(counted)
            rows.append(row)
            drift = _drift(np.array(rows), window)
            elapsed = watch.clock() - start
            task.advance(min(limit, int(elapsed)) - shown)
            shown = min(limit, int(elapsed))
            late = elapsed >= config.max_seconds and len(rows) >= _MIN_ROUNDS
            if drift <= config.tolerance or late:
                return rows, device_rows, drift


def _drift(samples: NDArray[np.float64], window: int) -> float:
    """Largest spread, max / min - 1, of the last windows' medians, over all sessions."""
    if len(samples) < _WINDOWS * window or samples.min() <= 0:
        return 1.0
    figures = samples.copy()
    figures[:, 1:] /= samples[:, :1]
    recent = figures[-_WINDOWS * window :].reshape(_WINDOWS, window, -1)
    medians = np.median(recent, axis=1)
    return float((medians.max(axis=0) / medians.min(axis=0) - 1).max())
