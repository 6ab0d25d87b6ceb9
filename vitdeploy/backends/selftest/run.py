"""Build the tiny engine, compare it with ONNX Runtime, time it."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitdeploy import __version__, environment
from vitdeploy.artifacts.engine import Engine, read_engine
from vitdeploy.backends.base import Backend, BuildOptions, Session
from vitdeploy.backends.onnxruntime_ import GraphSession
from vitdeploy.backends.selftest.graph import images, tiny_vit
from vitdeploy.backends.tensorrt.options import TensorRTOptions
from vitdeploy.environment import Environment
from vitdeploy.errors import MissingDependencyError
from vitdeploy.progress import SILENT, Progress
from vitdeploy.target import CPU, Target, parse_targets

LIMITS = {"fp32": 1e-3, "fp16": 0.05}
"""The largest difference of a logit, over the deviation of logits from image to image."""

_NAMED = "sm86,sm89,sm120"
"""What TensorRT-RTX builds for where no GPU is."""

_LARGEST = 8
_BATCHES = (1, 1, 1, 5, _LARGEST, _LARGEST + 3, 1)
"""Thrice the same for a CUDA graph; one that the engine does not take in one run; back again."""

_TIMED = (1, _LARGEST)
_RUNS = 20


@dataclass(frozen=True)
class Comparison:
    """The engine's logits against ONNX Runtime's: the largest difference over their
    deviation, and the share of images with the same top-1."""

    images: int
    max_error: float
    agreement: float
    limit: float

    @property
    def passed(self) -> bool:
        return self.max_error <= self.limit


@dataclass(frozen=True)
class SelfTest:
    """What happened. Where the engine could not be run here, `comparison` is None,
    `not_run` says why, and nothing is proved but that it builds.

    `latency_ms` is the median of a run, by batch.
    """

    backend: str
    version: str
    reference_version: str
    precision: str
    targets: tuple[str, ...]
    build_seconds: float
    size_bytes: int
    environment: Environment
    comparison: Comparison | None
    not_run: str
    latency_ms: dict[str, float]

    @property
    def passed(self) -> bool:
        return self.comparison is None or self.comparison.passed

    def block(self) -> str:
        """Everything at a glance, to paste into a bug report."""
        here = self.environment
        packages = ", ".join(f"{name} {version}" for name, version in here.packages.items())
        lines = [
            f"vitdeploy {__version__} selftest, Python {here.python}, {here.system}",
            f"CPU {here.cpu}, {here.cores} cores, {here.memory_bytes / 2**30:.0f} GiB; "
            f"GPU {here.gpu or 'none'}",
            packages,
            f"{self.backend} {self.version}: built {self.precision} for "
            f"{', '.join(self.targets)} in {self.build_seconds:.1f} s, "
            f"{self.size_bytes / 1e6:.2f} MB",
        ]
        if self.comparison is None:
            lines.append(f"NOT RUN: {self.not_run}; that it builds is all that was tested")
            return "\n".join(lines)
        found = self.comparison
        lines.append(
            f"{found.images} images against ONNX Runtime {self.reference_version}: largest "
            f"difference {found.max_error:.2g} of the logits' deviation (limit {found.limit:g}), "
            f"same top-1 {found.agreement:.1%}"
        )
        times = (f"batch {batch} {ms:.3f} ms" for batch, ms in self.latency_ms.items())
        lines.append(f"median of {_RUNS} runs: {', '.join(times)}")
        lines.append("PASSED" if found.passed else "FAILED")
        return "\n".join(lines)


def selftest(
    backend: Backend,
    targets: Sequence[Target] | None = None,
    *,
    progress: Progress = SILENT,
    clock: Callable[[], float] = time.perf_counter,
) -> SelfTest:
    """Build for `targets` (None: this machine), and run what can be run here.

    Without a GPU TensorRT-RTX builds for three GPUs by name, and nothing is
    run. Raises what the backend's build and load raise, and
    MissingDependencyError without ONNX Runtime.
    """
    availability = backend.probe()
    if not availability.available:
        raise MissingDependencyError(
            f"{backend.name} cannot be used here: {availability.reason}",
            hint="`vitdeploy doctor` lists what can",
        )
    on_gpu = backend.name.startswith("tensorrt")
    if targets is None:
        ahead = backend.name == "tensorrt-rtx" and not availability.can_execute
        targets = parse_targets(_NAMED) if ahead else (CPU,)
    ranges = ((1, 1, 1), (1, 4, _LARGEST)) if on_gpu else ()
    options = BuildOptions(
        targets=tuple(targets),
        batch=(1, 4, _LARGEST),
        tensorrt=TensorRTOptions(batches=ranges),
    )
    with tempfile.TemporaryDirectory(prefix="vitdeploy-") as name:
        folder = Path(name)
        model = tiny_vit("fp16" if on_gpu else "fp32", folder / "selftest.onnx")
        engine = backend.build(model, options, folder / "selftest.engine", progress)
        comparison, latency_ms = None, {}
        if availability.can_execute:
            reference = GraphSession(tiny_vit("fp32", folder / "reference.onnx").path)
            session = backend.load(read_engine(engine.path))
            with _closing(session):
                comparison = _compare(session, reference, LIMITS[model.description.precision])
                latency_ms = {str(batch): _median_ms(session, batch, clock) for batch in _TIMED}
        return _found(engine, comparison, latency_ms)


def _found(engine: Engine, comparison: Comparison | None, latency_ms: dict[str, float]) -> SelfTest:
    manifest = engine.manifest
    here = environment.describe()
    return SelfTest(
        backend=manifest.backend,
        version=manifest.backend_version,
        reference_version=here.packages.get("onnxruntime", "")
        or here.packages.get("onnxruntime-gpu", ""),
        precision=manifest.model.precision,
        targets=manifest.targets,
        build_seconds=manifest.build_seconds,
        size_bytes=engine.size_bytes,
        environment=here,
        comparison=comparison,
        not_run="" if comparison is not None else "no NVIDIA GPU is here to run it on",
        latency_ms=latency_ms,
    )


def _compare(session: Session, reference: Session, limit: float) -> Comparison:
    """Batches of several sizes; each answer is kept and judged at the end, so that one that
    a later run wrote over is seen."""
    pixels = images(sum(_BATCHES))
    ends = np.cumsum(_BATCHES)[:-1]
    answers = [session.run(part) for part in np.split(pixels, ends)]
    given = np.concatenate(answers)
    expected = reference.run(pixels)
    # Of each class over the images: what all images share says nothing.
    deviation = expected.std(axis=0).mean()
    difference = np.abs(given - expected).max() / deviation
    # What is not finite is no agreement, whatever it compares as.
    error = float(difference) if np.isfinite(given).all() else float("inf")
    return Comparison(
        images=len(pixels),
        max_error=error,
        agreement=float(np.mean(given.argmax(1) == expected.argmax(1))),
        limit=limit,
    )


def _median_ms(session: Session, batch: int, clock: Callable[[], float]) -> float:
    pixels: NDArray[np.float32] = images(batch)
    session.run(pixels)
    times = []
    for _ in range(_RUNS):
        started = clock()
        session.run(pixels)
        times.append(1000 * (clock() - started))
    return statistics.median(times)


def _closing(session: Any) -> Any:
    return closing(session) if hasattr(session, "close") else nullcontext()
