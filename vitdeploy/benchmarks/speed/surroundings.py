"""What stands beside timings: the machine's peak, each engine's share of it, memory, energy."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from vitdeploy.artifacts.engine import Engine
from vitdeploy.backends.base import Session, image_input
from vitdeploy.benchmarks.speed.engines import measure_engines
from vitdeploy.benchmarks.speed.machine import Conditions, Energy, EnergyMeter, energy_of, observe
from vitdeploy.benchmarks.speed.memory import PeakMemory, can_tell, peak_memory
from vitdeploy.benchmarks.speed.roofline import (
    GraphWork,
    MachinePeak,
    RooflineShare,
    measure_peak,
    share_of_roofline,
)
from vitdeploy.benchmarks.speed.throughput import BenchmarkResult, Measurement, TimingConfig
from vitdeploy.benchmarks.speed.timing_guards import Clock
from vitdeploy.errors import UnstableMeasurementError
from vitdeploy.graph.inspection import read_graph
from vitdeploy.progress import SILENT, Progress

_ENERGY_SECONDS = 2.0


_PEAK_TRIES = 3


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What stands for this machine; tests give another."""

    threads: int | None = None
    meter: EnergyMeter | None = None
    clock: Clock = time.perf_counter
    peak: Callable[[], MachinePeak] | None = None

    def measure_peak(self) -> MachinePeak:
        return self.peak() if self.peak else measure_peak(threads=self.threads, clock=self.clock)


def measure_thoroughly(
    engines: Sequence[Engine],
    sessions: Sequence[Session],
    forms: Sequence[Session],
    *,
    batch_sizes: Sequence[int],
    config: TimingConfig | None = None,
    threads: int | None = None,
    progress: Progress = SILENT,
) -> BenchmarkResult:
    """`measure_engines`, with what the machine was like before and after."""
    before = observe(threads)
    result = measure_engines(
        engines, sessions, forms, batch_sizes=batch_sizes, config=config, progress=progress
    )
    machine = Machine(threads=threads)
    return with_surroundings(result, engines, sessions, before, machine=machine, progress=progress)


def with_surroundings(
    result: BenchmarkResult,
    engines: Sequence[Engine],
    sessions: Sequence[Session],
    before: Conditions,
    *,
    machine: Machine | None = None,
    progress: Progress = SILENT,
) -> BenchmarkResult:
    """`result` with what the machine did beside it; `before` was observed before the timings.

    Shares of the roofline are for engines of this CPU whose graph lies beside
    them. Raises UnstableMeasurementError where an engine was timed to be
    faster than this machine can be.
    """
    machine = machine or Machine()
    after = observe(machine.threads)
    batches = [comparison.batch for comparison in result.comparisons]
    peak, shares = _shares(result, engines, machine, progress)
    return replace(
        result,
        conditions=(before, after),
        peak=peak,
        shares=shares,
        energy=_energies(result, engines, sessions, machine, progress),
        memory=_memories(engines, batches, machine, progress),
    )


def _shares(
    result: BenchmarkResult, engines: Sequence[Engine], machine: Machine, progress: Progress
) -> tuple[MachinePeak | None, tuple[RooflineShare, ...]]:
    """The machine's peak and each engine's share of it; neither where no graph lies beside one.

    Other work may hold the machine below its peak while that is measured, so
    where an engine seems too fast it is measured again, and the best counts.
    """
    timed: list[tuple[Measurement, GraphWork, int]] = []
    for engine in engines:
        if engine.manifest.targets != ("cpu",):
            continue
        work = work_beside(engine)
        if work is None:
            progress.note(f"no share of the roofline: {engine.path.name} lies apart from its graph")
            continue
        measured = result.measurements_of(engine.manifest.engine_digest)
        timed += [(each, work, noise(engine, 1).nbytes) for each in measured]
    if not timed:
        return None, ()
    progress.note("measuring what this machine can do")
    peak = machine.measure_peak()
    for _ in range(_PEAK_TRIES - 1):
        try:
            return peak, _of_peak(timed, peak)
        except UnstableMeasurementError:
            progress.note("an engine seems faster than that: measuring again")
        peak = peak.best_with(machine.measure_peak())
    return peak, _of_peak(timed, peak)


def _of_peak(
    timed: Sequence[tuple[Measurement, GraphWork, int]], peak: MachinePeak
) -> tuple[RooflineShare, ...]:
    return tuple(share_of_roofline(each, work, peak, size) for each, work, size in timed)


def work_beside(engine: Engine) -> GraphWork | None:
    """What the graph an engine was built from costs; None where it does not lie beside it.

    Engines are named after their graph; the digest tells whether it is that one.
    """
    for path in sorted(engine.path.parent.glob("*.onnx")):
        if not engine.path.stem.startswith(path.stem):
            continue
        graph = read_graph(path, resolution=engine.manifest.model.resolution)
        work = graph.summary.work
        if graph.digest == engine.manifest.model_digest and work.macs and not work.problem:
            constants = graph.summary.constants.values()
            return GraphWork(work.by_type, sum(constant.size_bytes for constant in constants))
    return None


def noise(engine: Engine, batch: int) -> np.ndarray:
    """Seeded noise in the form the engine takes."""
    model = engine.manifest.model
    takes = image_input(model)
    height, width = model.resolution
    channels = model.source.in_chans
    pixels = np.random.default_rng(0).integers(
        0, 256, (batch, height, width, channels), dtype=np.uint8
    )
    return pixels if takes.dtype == "uint8" else model.source.preprocessing.normalize_bytes(pixels)


def _memories(
    engines: Sequence[Engine], batches: Sequence[int], machine: Machine, progress: Progress
) -> tuple[PeakMemory, ...]:
    if not can_tell():
        progress.note("no peak memory: this system does not say it")
        return ()
    return tuple(
        peak_memory(engine, batch, threads=machine.threads)
        for engine in engines
        for batch in batches
    )


def _energies(
    result: BenchmarkResult,
    engines: Sequence[Engine],
    sessions: Sequence[Session],
    machine: Machine,
    progress: Progress,
) -> tuple[Energy, ...]:
    """Under the names of the measurements, which two engines never share."""
    meter = machine.meter or EnergyMeter()
    if not meter.sources:
        progress.note("no energy: neither RAPL nor NVML counts it here for this user")
        return ()
    found = []
    for engine, session in zip(engines, sessions, strict=True):
        for measured in result.measurements_of(engine.manifest.engine_digest):
            batch = noise(engine, measured.batch)
            energy = energy_of(session, batch, meter, seconds=_ENERGY_SECONDS, clock=machine.clock)
            if energy is not None:
                found.append(replace(energy, name=measured.name))
    return tuple(found)
