"""Evidence for an engine: its timings beside the source's, and the report of all findings."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from vitdeploy.api.engines import load_engine
from vitdeploy.api.sources import needs_torch
from vitdeploy.artifacts.engine import Engine
from vitdeploy.backends.base import Session
from vitdeploy.benchmarks.report.assemble import Evidence, assemble
from vitdeploy.benchmarks.report.model import Report
from vitdeploy.benchmarks.report.write import write_report
from vitdeploy.benchmarks.speed.engines import common_input_shape, measure_engines
from vitdeploy.benchmarks.speed.surroundings import measure_thoroughly
from vitdeploy.benchmarks.speed.throughput import BenchmarkResult, TimingConfig
from vitdeploy.progress import SILENT, Progress

if TYPE_CHECKING:
    from vitdeploy.models.source import SourceModel


def benchmark(
    engines: Sequence[Engine],
    source: SourceModel | None,
    *,
    batch_sizes: Sequence[int] = (1, 8),
    config: TimingConfig | None = None,
    thorough: bool = False,
    threads: int | None = None,
    progress: Progress = SILENT,
) -> BenchmarkResult:
    """Time source and engines interleaved; without a source the first engine is the baseline.

    `thorough` adds PyTorch compiled and in half precision, peak, memory and energy.
    Raises InputError where engines differ in resolution.
    """
    forms: list[Session] = []
    if source is not None:
        with needs_torch("benchmarking the source"):
            from vitdeploy.backends.torch_ import source_sessions
        own = source.at(common_input_shape(engines)[1:])
        forms += source_sessions(own, threads=threads, fair=thorough, progress=progress)
    ready = [load_engine(engine, threads=threads) for engine in engines]
    measure = partial(measure_thoroughly, threads=threads) if thorough else measure_engines
    return measure(engines, ready, forms, batch_sizes=batch_sizes, config=config, progress=progress)


def report(evidence: Evidence, folder: Path) -> tuple[Report, dict[str, Path]]:
    """Assemble what was found and write report.json, report.md and report.html into `folder`."""
    assembled = assemble(evidence)
    return assembled, write_report(assembled, folder)
