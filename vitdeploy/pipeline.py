"""The whole way in one call: graphs, engines, evidence, report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from vitdeploy import api
from vitdeploy.artifacts import reference
from vitdeploy.artifacts.engine import Engine
from vitdeploy.artifacts.onnx_model import OnnxModel, read_onnx_model
from vitdeploy.artifacts.source import SourceDescription, description_in
from vitdeploy.backends import registry
from vitdeploy.backends.base import BuildOptions
from vitdeploy.benchmarks.accuracy.evaluation import EvaluationResult
from vitdeploy.benchmarks.naming import engine_name
from vitdeploy.benchmarks.report.assemble import Evidence, assemble
from vitdeploy.benchmarks.report.model import Report, ReportRow
from vitdeploy.benchmarks.report.positions import reported_positions
from vitdeploy.benchmarks.speed.throughput import TimingConfig
from vitdeploy.demo import assets
from vitdeploy.errors import (
    EngineError,
    GateFailedError,
    InconclusiveError,
    InputError,
    MissingDependencyError,
    VitDeployError,
)
from vitdeploy.images import ImageSet, scan
from vitdeploy.progress import SILENT, Progress
from vitdeploy.target import parse_targets

if TYPE_CHECKING:
    from vitdeploy.models.source import SourceModel


RTX_TARGETS = "sm86,sm89,sm120"
"""GPU generations TensorRT-RTX builds for ahead of time: RTX 30, 40 and 50."""


@dataclass(frozen=True)
class EnginePlan:
    """One engine to build: a graph, a backend, and the devices (None: this CPU)."""

    backend: str
    graph: OnnxModel
    targets: str | None = None


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """What engines are judged on. `source` None: speed is compared with the first engine.

    `checkpoint` is where the report finds the positions as they were trained.
    """

    baseline: api.Baseline
    images: ImageSet
    source: SourceModel | None = None
    checkpoint: Path | None = None
    max_drop_points: float = 0.5
    batch_sizes: Sequence[int] = (1, 8)
    timing: TimingConfig | None = None


def run(
    plans: Sequence[EnginePlan],
    judgement: Judgement,
    folder: Path,
    *,
    notes: Sequence[str] = (),
    keep_going: bool = False,
    progress: Progress = SILENT,
) -> Report:
    """Build every engine, judge and time those that run here, and assemble the report.

    An engine that cannot be built becomes a failed row; the others go on. So
    does, to `keep_going`, one whose comparison is void (answers that are not
    finite, or one class only); it raises GateFailedError otherwise.
    """
    built, failed = _built(plans, folder, progress)
    runnable = [one for one in built if _runs_here(one.engine)]
    evaluations, void = _judged(runnable, judgement, keep_going=keep_going, progress=progress)
    failed += void
    judged = [one.engine for one in runnable if one.digest in evaluations]
    engines = [one.engine for one in built if one not in runnable or one.digest in evaluations]
    if not engines and keep_going:
        raise EngineError(
            "no engine of the plan could be built and judged: "
            + "; ".join(f"{row.name}: {row.note}" for row in failed),
            hint="`vitdeploy doctor` shows what is missing here",
        )
    benchmark = None
    if judged:
        benchmark = api.benchmark(
            judged,
            judgement.source,
            batch_sizes=judgement.batch_sizes,
            config=judgement.timing,
            progress=progress,
        )
    return assemble(
        Evidence(
            engines=engines,
            evaluations=evaluations,
            benchmark=benchmark,
            failed=failed,
            positions=reported_positions(plans[0].graph.path, judgement.checkpoint, progress.note),
            notes=notes,
            created=now(),
        )
    )


@dataclass(frozen=True)
class _Built:
    plan: EnginePlan
    engine: Engine

    @property
    def digest(self) -> str:
        return self.engine.manifest.engine_digest


def _built(
    plans: Sequence[EnginePlan], folder: Path, progress: Progress
) -> tuple[list[_Built], list[ReportRow]]:
    """The engines of the plans, and a row for each that could not be built."""
    built: list[_Built] = []
    failed: list[ReportRow] = []
    for plan in plans:
        try:
            built.append(_Built(plan, _build(plan, folder, progress)))
        except (EngineError, MissingDependencyError) as error:
            failed.append(_failed_row(plan, error))
            progress.note(f"failed: {plan.backend} {plan.graph.description.precision}: {error}")
    return built, failed


def _judged(
    runnable: Sequence[_Built], judgement: Judgement, *, keep_going: bool, progress: Progress
) -> tuple[dict[str, EvaluationResult], list[ReportRow]]:
    """What was found of each engine, by digest, and a row for each whose comparison is void."""
    found: dict[str, EvaluationResult] = {}
    failed: list[ReportRow] = []
    for one in runnable:
        try:
            found[one.digest] = api.evaluate(
                one.engine,
                judgement.baseline,
                judgement.images,
                api.Criterion(judgement.max_drop_points),
                progress=progress,
            )
        except (EngineError, GateFailedError) as error:
            if not keep_going:
                raise
            failed.append(_failed_row(one.plan, error))
            progress.note(f"failed: {one.engine.path.name}: {error}")
    return found, failed


@dataclass(frozen=True)
class DemoStart:
    """Where the demo begins: PyTorch and the checkpoint, or the stored graph and outputs."""

    graph: OnnxModel
    baseline: api.Baseline
    source: SourceModel | None
    notes: tuple[str, ...] = ()


def demo(
    folder: Path,
    *,
    resolution: tuple[int, int] | None = None,
    images: int = 2000,
    seconds: float = 20.0,
    progress: Progress = SILENT,
) -> Report:
    """The main job on the embedded model; see `vitdeploy demo --help`.

    Without PyTorch the stored graph and outputs of the source take its place,
    and the report says so. Raises MissingDependencyError where neither
    PyTorch's nor any CPU runtime's wheel is installed.
    """
    evaluation = scan(assets.images_folder("evaluation"), labels=_demo_description().labels)
    chosen = [i * len(evaluation) // images for i in range(min(images, len(evaluation)))]
    evaluation = evaluation.take(chosen)
    calibration = scan(assets.images_folder("calibration"), labels=evaluation.labels)
    size = resolution or assets.RESOLUTION
    start = _demo_start(size, folder, calibration, evaluation, progress)
    int8 = api.with_precision(
        start.graph,
        api.PrecisionRequest(precision="int8", calibration=calibration),
        folder,
        progress=progress,
    )
    plans = [
        EnginePlan(backend, graph)
        for backend in ("onnxruntime", "openvino")
        if backend == "onnxruntime" or registry.get(backend).probe().available
        for graph in (start.graph, int8)
    ]
    notes = list(start.notes)
    rtx = registry.get("tensorrt-rtx").probe()
    if rtx.available:
        half = api.PrecisionRequest(precision="fp16", images=calibration)
        typed = [api.with_precision(graph, half, folder) for graph in (start.graph, int8)]
        plans.extend(EnginePlan("tensorrt-rtx", graph, RTX_TARGETS) for graph in typed)
    else:
        notes.append(f"no TensorRT-RTX engines: {rtx.reason}")
    judgement = Judgement(
        baseline=start.baseline,
        images=evaluation,
        source=start.source,
        checkpoint=assets.CHECKPOINT,
        timing=TimingConfig(max_seconds=seconds, min_round_ms=80.0, accept_unstable=True),
    )
    return run(plans, judgement, folder, notes=notes, progress=progress)


def _demo_start(
    size: tuple[int, int],
    folder: Path,
    calibration: ImageSet,
    evaluation: ImageSet,
    progress: Progress,
) -> DemoStart:
    try:
        from vitdeploy.export.export import ExportOptions
        from vitdeploy.models.load import ModelRequest
    except ImportError as error:
        return _stored_start(size, folder, evaluation, str(error.name or error))
    source = api.load_model(ModelRequest(name=str(assets.CHECKPOINT)))
    graph = api.export(
        source, ExportOptions(resolution=size), folder, images=calibration, progress=progress
    )
    baseline = api.baseline_from_source(source, size, evaluation, progress=progress)
    return DemoStart(graph, baseline, source)


def _stored_start(
    size: tuple[int, int], folder: Path, evaluation: ImageSet, missing: str
) -> DemoStart:
    if size != assets.RESOLUTION:
        raise MissingDependencyError(
            f"exporting at {size[0]}x{size[1]} needs PyTorch and timm ({missing} is missing)",
            hint="pip install 'vitdeploy[torch]', or leave --res out: a graph at "
            f"{assets.RESOLUTION[0]} is stored",
        )
    graph = read_onnx_model(assets.GRAPH)
    baseline = api.baseline_from_reference(
        reference.load(assets.reference_path(size)),
        graph.description,
        evaluation,
        native=reference.load(assets.reference_path(assets.NATIVE)),
    )
    note = (
        f"{missing} is not installed: the stored graph and the stored outputs of PyTorch were "
        "used, and speed-ups are against ONNX Runtime FP32"
    )
    return DemoStart(graph, baseline, None, (note,))


def _demo_description() -> SourceDescription:
    description = description_in(assets.CHECKPOINT)
    if description is None:
        raise InputError(
            f"{assets.CHECKPOINT} does not describe itself", hint="install vitdeploy again"
        )
    return description


def require_passing(report: Report) -> None:
    """Raise GateFailedError where an engine's accuracy dropped, InconclusiveError where unknown."""
    for verdict, kind in (("fail", GateFailedError), ("inconclusive", InconclusiveError)):
        rows = [row for row in report.rows if row.accuracy and row.accuracy.verdict == verdict]
        needed = max((row.accuracy.images_needed or 0 for row in rows if row.accuracy), default=0)
        if rows:
            raise kind(
                f"accuracy {'dropped too far' if verdict == 'fail' else 'is not settled'}: "
                f"{', '.join(row.name for row in rows)}",
                hint=f"judge on about {needed:,} images"
                if verdict == "inconclusive" and needed
                else "the report shows the images that changed",
            )


def now() -> str:
    """The time of day, ISO 8601, UTC."""
    return datetime.now(tz=timezone.utc).isoformat(timespec="seconds")


def _build(plan: EnginePlan, folder: Path, progress: Progress) -> Engine:
    options = BuildOptions()
    if plan.targets is not None:
        options = BuildOptions(targets=parse_targets(plan.targets))
    backend = registry.get(plan.backend)
    return api.build_engine(plan.graph, backend, folder, options, progress=progress)


def _runs_here(engine: Engine) -> bool:
    return registry.get(engine.manifest.backend).probe().can_execute


def _failed_row(plan: EnginePlan, error: VitDeployError) -> ReportRow:
    precision = plan.graph.description.precision
    targets = tuple((plan.targets or "cpu").split(","))
    return ReportRow(
        name=engine_name(plan.backend, precision, targets),
        backend=plan.backend,
        precision=precision,
        status="failed",
        note=f"{error}; {error.hint}" if error.hint else str(error),
        targets=targets,
    )
