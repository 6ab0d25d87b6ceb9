"""Timing engines of one model side by side, each fed what it takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vitdeploy.artifacts.engine import Engine
from vitdeploy.backends.base import Session, image_input
from vitdeploy.benchmarks.naming import engine_names
from vitdeploy.benchmarks.speed.throughput import (
    BenchmarkResult,
    TimedEngine,
    TimingConfig,
    measure_interleaved,
)
from vitdeploy.benchmarks.speed.timing_guards import device_ms_of, settle
from vitdeploy.errors import InputError
from vitdeploy.progress import SILENT, Progress


def common_input_shape(engines: Sequence[Engine]) -> tuple[int, int, int]:
    """(channels, height, width) that all engines take. InputError where there is no such."""
    if not engines:
        raise InputError("there is no engine to benchmark", hint="run `vitdeploy build-engine`")
    shapes = {engine.manifest.model.input_shape for engine in engines}
    if len(shapes) > 1:
        raise InputError(
            f"the engines take images of different sizes: {sorted(shapes)}",
            hint="benchmark engines of one resolution together; --res says at which one of a "
            "range is run",
        )
    return shapes.pop()


def measure_engines(
    engines: Sequence[Engine],
    sessions: Sequence[Session],
    forms: Sequence[Session],
    *,
    batch_sizes: Sequence[int],
    config: TimingConfig | None = None,
    progress: Progress = SILENT,
) -> BenchmarkResult:
    """Time loaded `engines` on the same seeded noise, one comparison per batch size.

    `forms` are those of the source (eager, compiled, ...), which take part in
    every round; the first is the baseline, without any the first engine is.

    Engines that normalize in the graph get the bytes that the others, and the
    baseline, get normalized. Raises InputError where sizes differ, and what
    `measure_interleaved` raises.
    """
    channels, height, width = common_input_shape(engines)
    preprocessing = engines[0].manifest.model.source.preprocessing
    generator = np.random.default_rng(0)
    names = engine_names(engines)
    comparisons = []
    for size in batch_sizes:
        pixels = generator.integers(0, 256, (size, height, width, channels), dtype=np.uint8)
        floats = preprocessing.normalize_bytes(pixels)
        fed: list[Session] = [*forms]
        for engine, session, name in zip(engines, sessions, names, strict=True):
            takes = image_input(engine.manifest.model)
            fed.append(_Fed(name, session, pixels if takes.dtype == "uint8" else floats))
        comparisons.append(measure_interleaved(fed, floats, config=config, progress=progress))
    return BenchmarkResult(
        engine_digests=tuple(engine.manifest.engine_digest for engine in engines),
        has_source=bool(forms),
        source_label=forms[0].name if forms else names[0],
        comparisons=tuple(comparisons),
        source_variants=tuple(form.name for form in forms[1:]),
        engines=tuple(
            TimedEngine(engine.manifest.backend, engine.manifest.model.precision)
            for engine in engines
        ),
        resolution=(height, width),
    )


@dataclass(frozen=True)
class _Fed:
    """A session under a name of its own, with the batch in the form it takes."""

    name: str
    session: Session
    own: NDArray

    def run(self, batch: NDArray) -> NDArray[np.float32]:
        return self.session.run(self.own)

    def synchronize(self) -> None:
        settle(self.session)

    def device_ms(self) -> float | None:
        return device_ms_of(self.session)
