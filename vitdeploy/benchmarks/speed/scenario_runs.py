"""Running the scenarios: streams of queries, a sweep over batches, a search for a rate."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from vitdeploy.artifacts.engine import Engine
from vitdeploy.backends.base import Session
from vitdeploy.benchmarks.naming import engine_names
from vitdeploy.benchmarks.speed.driving import Driver, queries_at
from vitdeploy.benchmarks.speed.latencies import most_over, percentile
from vitdeploy.benchmarks.speed.scenarios import (
    CLOSE,
    STREAMS,
    OfflineResult,
    ScenarioConfig,
    ScenarioResult,
    ServerResult,
    ServerRun,
    StreamName,
    StreamResult,
    SweepPoint,
)
from vitdeploy.benchmarks.speed.surroundings import noise
from vitdeploy.benchmarks.speed.timing_guards import Clock
from vitdeploy.errors import InputError, UnstableMeasurementError
from vitdeploy.progress import SILENT, Progress

_THIRDS = 3


def run_scenarios(
    engine: Engine,
    session: Session,
    chosen: Sequence[str],
    config: ScenarioConfig,
    driver: Driver,
    progress: Progress = SILENT,
) -> ScenarioResult:
    """The `chosen` scenarios on seeded noise, within the batches the engine was built for."""
    model = engine.manifest.model
    largest = min(config.largest_batch, engine.manifest.batch[2])
    images = noise(engine, max(largest, 1))
    streams: list[StreamResult] = []
    names: tuple[tuple[StreamName, int], ...] = (("single-stream", 1), ("multi-stream", STREAMS))
    for scenario, size in names:
        if scenario in chosen:
            streams.append(run_stream(scenario, session, images[:size], config, driver))
    offline = server = None
    if "offline" in chosen:
        offline = run_offline(session, images, config, driver, progress)
    if "server" in chosen:
        server = run_server(session, images, config, driver, progress)
    (name,) = engine_names([engine])
    return ScenarioResult(
        engine.manifest.engine_digest,
        tuple(replace(stream, name=name) for stream in streams),
        None if offline is None else replace(offline, name=name),
        None if server is None else replace(server, name=name),
        model.resolution if model.resolution_range else None,
    )


def run_stream(
    scenario: StreamName,
    session: Session,
    batch: NDArray,
    config: ScenarioConfig,
    driver: Driver,
) -> StreamResult:
    """Send `batch` again and again, each time when the one before is done.

    Single-stream takes one image. Repeats until the thirds of all queries
    agree. Raises UnstableMeasurementError where `max_seconds` pass before,
    unless the config accepts that; InputError for another batch.
    """
    if scenario == "single-stream" and len(batch) != 1:
        raise InputError(f"single-stream is one image, not {len(batch)}", hint="give one")
    _warm(session, [batch], config)
    found: list[float] = []
    while True:
        # In the first pass the whole minimum, then as much again each time.
        found += driver.stream(
            session, batch, queries=config.min_queries, seconds=config.min_seconds
        )
        drift = _drift(found)
        stable = drift <= config.tolerance
        if stable or sum(found) >= 1000 * config.max_seconds:
            break
    if not (stable or config.accept_unstable):
        raise UnstableMeasurementError(
            f"{scenario}: after {len(found)} queries the medians of the first, second and last "
            f"third still differ by {100 * drift:.0f} %, more than {100 * config.tolerance:.0f} %",
            hint="stop other work on this machine, allow more time (--seconds), or take such "
            "figures knowingly with --accept-unstable",
        )
    return StreamResult(
        scenario, session.name, driver.name, len(batch), tuple(found), drift, stable
    )


def run_offline(
    session: Session,
    images: NDArray,
    config: ScenarioConfig,
    driver: Driver,
    progress: Progress = SILENT,
    clock: Clock = time.perf_counter,
) -> OfflineResult:
    """Throughput at batch 1, 2, 4, ... until two doublings in a row gain next to nothing.

    `images` holds at least `largest_batch` of them. One doubling without gain
    does not end the sweep: kernels exist for some sizes and not for others.
    Before a batch that would take longer than is left of `max_seconds` it ends.
    """
    end = clock() + config.max_seconds
    largest = min(config.largest_batch, len(images))
    points: list[SweepPoint] = []
    best, flat, batch, unfinished = 0.0, 0, 1, ""
    with progress.task(f"offline: {session.name}") as task:
        while batch <= largest and flat < 2:
            left = end - clock()
            if points and _sweep_runs(config) * batch / points[-1].images_per_second > left:
                unfinished = f"batch {batch} did not fit into {config.max_seconds:g} s (--seconds)"
                break
            points.append(_sweep_point(session, images[:batch], config, driver))
            speed = points[-1].images_per_second
            flat = flat + 1 if best and speed < best * (1 + config.least_gain) else 0
            best = max(best, speed)
            batch *= 2
            task.advance()
    growing = flat == 0 and len(points) > 1
    return OfflineResult(session.name, driver.name, tuple(points), growing, unfinished)


def _sweep_runs(config: ScenarioConfig) -> int:
    """The interval of a median needs far fewer runs than that of a p99."""
    return max(10, config.min_queries // 20)


def _sweep_point(
    session: Session, batch: NDArray, config: ScenarioConfig, driver: Driver
) -> SweepPoint:
    _warm(session, [batch], config)
    runs = _sweep_runs(config)
    times = driver.stream(session, batch, queries=runs, seconds=config.min_seconds / 5)
    middle = percentile(times, 0.5)
    images = 1000 * len(batch)
    slowest = None if middle.high_ms is None else images / middle.high_ms
    return SweepPoint(len(batch), images / middle.value_ms, slowest or 0.0, images / middle.low_ms)


def run_server(
    session: Session,
    images: NDArray,
    config: ScenarioConfig,
    driver: Driver,
    progress: Progress = SILENT,
    clock: Clock = time.perf_counter,
) -> ServerResult:
    """The highest rate of random arrivals whose p99 holds `bound_ms`, within 5 %.

    `images` holds at least `served_batch`: so many that wait run as one batch.
    A rate holds where so few of its queries were late that 99 % of all are in
    time with 95 % confidence (`most_over`). After `max_seconds`, or where the
    next rate could not be judged within them, the search ends with what it
    knows.
    """
    end = clock() + config.max_seconds
    images = images[: config.served_batch]
    _warm(session, [images[:size] for size in range(1, len(images) + 1)], config)
    alone = percentile(driver.stream(session, images[:1], queries=10, seconds=0.0), 0.5)
    runs: list[ServerRun] = []
    unfinished: list[str] = []

    def holds(rate: float) -> bool | None:
        left, needed = end - clock(), queries_at(rate, config) / rate
        if needed > left:
            unfinished.append(
                f"to try {rate:.3g} queries/s takes {needed:.3g} s more, and of "
                f"{config.max_seconds:g} s {max(0.0, left):.2g} were left: allow more time "
                "(--seconds)"
            )
            return None
        run = _server_run(session, images, rate, config, driver, left)
        runs.append(run)
        progress.note(
            f"server: {rate:.3g} queries/s, p99 {run.p99_ms:.3g} ms, {run.over} of "
            f"{run.queries} late: {run.outcome()}"
        )
        if run.undecided:
            unfinished.append(
                f"{config.max_seconds:g} s were over while {rate:.3g} queries/s were tried: allow "
                "more time (--seconds)"
            )
            return None
        return run.holds

    rate = highest_rate(holds, start=0.5 * 1000 / alone.value_ms)
    return ServerResult(
        session.name,
        driver.name,
        config.bound_ms,
        len(images),
        config.seed,
        rate,
        tuple(runs),
        "".join(unfinished),
    )


def highest_rate(
    holds: Callable[[float], bool | None], *, start: float, steps: int = 8
) -> float | None:
    """The highest rate that holds, within 5 %: doubled or halved from `start`, then bisected.

    None where `steps` halvings find none that does. A rate of which nothing
    can be told (None) ends the search with the highest known to hold.
    """
    low: float | None = None
    high: float | None = None
    rate = start
    while (held := holds(rate)) is not None:
        if held:
            low = rate
        else:
            high = rate
        if low is not None and high is not None:
            if high / low <= CLOSE:
                break
            rate = (low * high) ** 0.5
        elif steps == 0:
            break
        else:
            steps -= 1
            rate = 2 * rate if held else rate / 2
    return low


def _server_run(
    session: Session,
    images: NDArray,
    rate: float,
    config: ScenarioConfig,
    driver: Driver,
    seconds: float,
) -> ServerRun:
    planned = queries_at(rate, config)
    waited = driver.serve(session, images, rate, config, seconds=seconds)
    over = sum(latency > config.bound_ms for latency in waited)
    cut, allowed = len(waited) < planned, most_over(planned)
    return ServerRun(
        rate,
        len(waited),
        over,
        percentile(waited, 0.99).value_ms if waited else 0.0,
        not cut and over <= allowed,
        cut,
        cut and over <= allowed,
    )


def _warm(session: Session, batches: Sequence[NDArray], config: ScenarioConfig) -> None:
    for batch in batches:
        for _ in range(config.warmups):
            session.run(batch)


def _drift(samples: Sequence[float]) -> float:
    """Largest over smallest, less one, of the medians of three thirds."""
    thirds = [float(np.median(part)) for part in np.array_split(np.asarray(samples), _THIRDS)]
    return max(thirds) / min(thirds) - 1 if min(thirds) > 0 else 1.0
