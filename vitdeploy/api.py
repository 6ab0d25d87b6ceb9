"""The stages as Python functions: train, export, build, evaluate, benchmark, report.

Each takes and returns artifacts; the command line is a thin face over them.
PyTorch and timm are imported by the functions that need the source model, so
a device that only runs engines needs neither.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from vitdeploy import accelerators, environment
from vitdeploy.accelerators import Accelerators
from vitdeploy.artifacts.engine import Engine
from vitdeploy.artifacts.files import require_writable
from vitdeploy.artifacts.onnx_model import ModelDescription, OnnxModel
from vitdeploy.artifacts.reference import ReferenceOutputs
from vitdeploy.artifacts.source import SourceDescription, Task
from vitdeploy.artifacts.strict import printable
from vitdeploy.backends import registry
from vitdeploy.backends.base import (
    Availability,
    Backend,
    BuildOptions,
    Session,
    require_own_options,
)
from vitdeploy.backends.selftest.run import selftest as selftest
from vitdeploy.backends.tensorrt import device
from vitdeploy.benchmarks.accuracy import evaluation
from vitdeploy.benchmarks.accuracy.evaluation import EvaluationResult
from vitdeploy.benchmarks.accuracy.forecasting import forecast as forecast
from vitdeploy.benchmarks.accuracy.judging import judge
from vitdeploy.benchmarks.accuracy.kinds import kind_of
from vitdeploy.benchmarks.report.assemble import Evidence, assemble
from vitdeploy.benchmarks.report.model import AccuracyForecast, Report
from vitdeploy.benchmarks.report.write import write_report
from vitdeploy.benchmarks.speed.engines import common_input_shape, measure_engines
from vitdeploy.benchmarks.speed.surroundings import measure_thoroughly
from vitdeploy.benchmarks.speed.throughput import BenchmarkResult, TimingConfig
from vitdeploy.calibration.precision import PrecisionRequest as PrecisionRequest
from vitdeploy.calibration.precision import with_precision as with_precision
from vitdeploy.environment import Environment
from vitdeploy.errors import InputError, MissingDependencyError
from vitdeploy.images import ImageSet, image_digest
from vitdeploy.prediction import predict as predict
from vitdeploy.progress import SILENT, Progress
from vitdeploy.target import CPU, Target

if TYPE_CHECKING:
    from vitdeploy.export.export import ExportOptions
    from vitdeploy.models.load import ModelRequest
    from vitdeploy.models.source import SourceModel
    from vitdeploy.training.destination import Destination
    from vitdeploy.training.recipe import TrainingRecipe
    from vitdeploy.training.run import EpochResult


@contextmanager
def needs_torch(what: str) -> Iterator[None]:
    """Turn a missing PyTorch, torchvision or timm into one error with its remedy."""
    try:
        yield
    except ImportError as error:
        raise MissingDependencyError(
            f"{what} needs the source model, and {error.name or error} is not installed",
            hint="pip install 'vitdeploy[torch]' (training: 'vitdeploy[train]')",
        ) from error


def load_model(request: ModelRequest) -> SourceModel:
    """Load a source model; see `vitdeploy.models.load.load_source`."""
    with needs_torch("loading a model"):
        from vitdeploy.models.load import load_source
    return load_source(request)


def starting_point(request: ModelRequest, *, seed: int, threads: int | None = None) -> SourceModel:
    """The model training begins with; random weights depend on the seed alone.

    From scratch, positions are drawn wider than timm does (see `widen_positions`).
    """
    with needs_torch("training"):
        import torch

        from vitdeploy.models.load import seeded_random_source
        from vitdeploy.training.initialize import from_scratch
    if threads is not None:
        torch.set_num_threads(threads)
    source = seeded_random_source(request, seed)
    return from_scratch(source, seed) if request.random_weights else source


def train(
    source: SourceModel,
    images: ImageSet,
    evaluation_images: ImageSet | None,
    recipe: TrainingRecipe,
    destination: Destination,
    *,
    progress: Progress = SILENT,
) -> tuple[SourceModel, list[EpochResult]]:
    """Train and write a self-describing checkpoint; see `vitdeploy.training.loop.train`."""
    with needs_torch("training"):
        from vitdeploy.training import loop
    return loop.train(source, images, evaluation_images, recipe, destination, progress=progress)


def export(
    source: SourceModel,
    options: ExportOptions,
    folder: Path,
    *,
    images: ImageSet | None = None,
    progress: Progress = SILENT,
) -> OnnxModel:
    """Write a verified fp32 graph; see `vitdeploy.export.export.export`."""
    with needs_torch("exporting"):
        from vitdeploy.export import export as stage
    return stage.export(source, options, folder, images=images, progress=progress)


def choose_backend(name: str, targets: Sequence[Target] | None) -> tuple[Backend, str]:
    """The backend called `name` ('auto' picks one), and why."""
    if name == "auto":
        return registry.choose(targets)
    return registry.get(name), "it was asked for"


def targets_of(backend: Backend, targets: Sequence[Target] | None) -> tuple[Target, ...]:
    """What a graph is planned for: the targets given, else this machine's GPU or its CPU.

    Raises MissingDependencyError where there is a GPU that cannot be asked what it is.
    """
    if targets is not None:
        return tuple(targets)
    if backend.name.startswith("tensorrt") and environment.has_nvidia_driver():
        capability = device.compute_capability()
        return (Target(f"sm{capability}", capability),)
    return (CPU,)


def check_options(backend: Backend, options: BuildOptions, precision: str) -> None:
    """Raise what a build would, as far as machine and options tell: before a graph is quantized.

    Backends of other packages need not have a `check_options`; `build` refuses then.
    """
    require_own_options(options, backend.name)
    check = getattr(backend, "check_options", None)
    if check is not None:
        check(options, precision)


def build_engine(
    model: OnnxModel,
    backend: Backend,
    folder: Path,
    options: BuildOptions | None = None,
    *,
    progress: Progress = SILENT,
) -> Engine:
    """Compile a graph into '<graph's stem>_<backend>-<digest>.engine' with its manifest.

    The digest is of the graph and of all options: builds of other graphs, or
    for other batches and threads, never take each other's place.
    """
    options = options or BuildOptions()
    availability = backend.probe()
    if not availability.available:
        raise MissingDependencyError(
            f"{backend.name} cannot be used here: {availability.reason}",
            hint="`vitdeploy doctor` lists what can",
        )
    targets = "" if options.targets == (CPU,) else "-" + "-".join(t.name for t in options.targets)
    digest = hashlib.sha256(f"{model.digest} {options}".encode()).hexdigest()[:8]
    output = folder / f"{model.path.stem}_{backend.name}{targets}-{digest}.engine"
    require_writable(output)
    return backend.build(model, options, output, progress)


def load_engine(engine: Engine, *, threads: int | None = None) -> Session:
    """Load an engine on this machine. Raises EngineError where it does not belong here."""
    return registry.get(engine.manifest.backend).load(engine, threads=threads)


def require_unseen(engine: Engine, images: ImageSet) -> None:
    """Raise InputError where an engine was calibrated with some of these images."""
    quantization = engine.manifest.model.quantization
    if quantization is not None:
        evaluation.require_disjoint(quantization.image_digests, images)


@dataclass(frozen=True)
class Baseline:
    """What the source answered on the images an engine is judged on.

    `logits` is (images, classes), or whatever the engine answers, at its
    resolution, `top1` the accuracy (mAP of multi-label models) there,
    `native_top1` that at the source's own resolution.
    """

    label: str
    logits: NDArray[np.float32]
    top1: float | None
    native_top1: float | None


def baseline_from_source(
    source: SourceModel,
    resolution: tuple[int, int],
    images: ImageSet,
    *,
    threads: int | None = None,
    progress: Progress = SILENT,
) -> Baseline:
    """Run the PyTorch model at `resolution`, and at its native one for comparison.

    What is compared is `source.output`; take the engine's.
    """
    with needs_torch("evaluating the source"):
        from vitdeploy.backends.torch_ import TorchSession
    preprocessing = source.description.preprocessing

    def answers(size: tuple[int, int]) -> NDArray[np.float32]:
        session = TorchSession(source.at(size), threads=threads)
        return evaluation.logits_of(session, images, preprocessing, size, progress=progress)

    native = source.description.native_resolution
    logits = answers(resolution)
    at_native = logits if native == resolution else answers(native)
    kind = kind_of(source.description.task, source.output)
    scores = [evaluation.score_of(kind, found, images) for found in (logits, at_native)]
    return Baseline("PyTorch eager fp32", logits, *scores)


def baseline_from_reference(
    reference: ReferenceOutputs,
    model: ModelDescription,
    images: ImageSet,
    *,
    native: ReferenceOutputs | None = None,
) -> Baseline:
    """Stored outputs of the source in place of the source itself.

    Raises InputError where they are of other images, weights, preprocessing
    or another resolution.
    """
    digests = [image_digest(item.path) for item in images.items]
    own = (model.source.weights_digest, model.source.preprocessing.digest)
    reference.require_source(*own, model.resolution, model.output)
    kind = kind_of(model.source.task, model.output)
    logits = reference.for_images(digests)
    native_top1 = None
    if native is not None:
        native.require_source(*own, model.source.native_resolution, model.output)
        native_top1 = evaluation.score_of(kind, native.for_images(digests), images)
    return Baseline(
        "PyTorch eager fp32 (stored outputs)",
        logits,
        evaluation.score_of(kind, logits, images),
        native_top1,
    )


def evaluate(
    engine: Engine,
    baseline: Baseline,
    images: ImageSet,
    *,
    max_drop_points: float = 0.5,
    task: Task | None = None,
    unreadable: Sequence[str] = (),
    forecasted: AccuracyForecast | None = None,
    threads: int | None = None,
    progress: Progress = SILENT,
) -> EvaluationResult:
    """Judge an engine against the source on the same images.

    `task` overrules what the model says it is for; `forecasted` is kept beside
    what was found. Raises InputError where images were calibrated with, GateFailedError where
    the comparison is void (not finite, one class only).
    """
    model = engine.manifest.model
    kind = kind_of(model.source.task, model.output, asked=task)
    require_unseen(engine, images)
    session = load_engine(engine, threads=threads)
    logits = evaluation.logits_of(
        session,
        images,
        model.source.preprocessing,
        model.resolution,
        as_bytes=model.input_format == "uint8-nhwc",
        progress=progress,
    )
    probabilities = model.output == "probabilities"
    comparison = judge(
        kind,
        baseline.logits,
        logits,
        images,
        max_drop_points=max_drop_points,
        probabilities=probabilities,
    )
    return EvaluationResult(
        engine_file=printable(engine.path.name),
        engine_digest=engine.manifest.engine_digest,
        backend=engine.manifest.backend,
        model=model,
        source_label=baseline.label,
        images_root=printable(images.root.name),
        native_top1=baseline.native_top1,
        unreadable=tuple(unreadable),
        comparison=comparison,
        flips=evaluation.flips_of(
            engine.path.stem,
            comparison,
            baseline.logits,
            logits,
            images,
            model.source.labels,
            probabilities=probabilities,
        ),
        forecast=forecasted,
        images_digest=evaluation.digest_of(images),
    )


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


@dataclass(frozen=True)
class Diagnosis:
    """This machine, every backend, and what is in conflict (with its remedy)."""

    environment: Environment
    accelerators: Accelerators
    backends: dict[str, Availability]
    problems: list[str]


def doctor() -> Diagnosis:
    """Look at this machine; nothing is built or run."""
    here = environment.describe()
    backends = {name: registry.get(name).probe() for name in registry.names()}
    return Diagnosis(here, accelerators.look(), backends, environment.conflicts(here.packages))


def relabelled(source: SourceModel, name: str) -> SourceModel:
    """The same model under another name, which files and reports then carry."""
    return replace(source, description=replace(source.description, name=name))


def require_same_source(source: SourceDescription, model: ModelDescription) -> None:
    """Raise InputError unless a graph was made from these weights."""
    if source.weights_digest == model.source.weights_digest:
        return
    raise InputError(
        f"the engine was made from {model.source.name} "
        f"({model.source.weights_digest[:8]}), not from {source.name} "
        f"({source.weights_digest[:8]})",
        hint="name the model it was exported from with --model",
    )
