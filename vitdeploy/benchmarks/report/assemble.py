"""From engines, evaluations and timings to the report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from vitdeploy import environment
from vitdeploy.artifacts.engine import Engine
from vitdeploy.artifacts.onnx_model import ModelDescription
from vitdeploy.artifacts.strict import printable
from vitdeploy.benchmarks.accuracy.evaluation import EvaluationResult
from vitdeploy.benchmarks.naming import engine_names
from vitdeploy.benchmarks.report import wording
from vitdeploy.benchmarks.report.model import (
    AccuracyForecast,
    Flip,
    Report,
    ReportRow,
    SpeedDetails,
)
from vitdeploy.benchmarks.report.positions import ReportedPositions
from vitdeploy.benchmarks.speed.scenarios import ScenarioResult
from vitdeploy.benchmarks.speed.throughput import BenchmarkResult
from vitdeploy.errors import InputError


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """What is known about the engines of one model at one resolution.

    `evaluations` and `scenarios` are keyed by engine digest, `forecasts` by that of the graph;
    `failed` are rows of engines that could not be built. `created` is ISO 8601.
    """

    engines: Sequence[Engine]
    evaluations: Mapping[str, EvaluationResult]
    forecasts: Mapping[str, AccuracyForecast] = field(default_factory=dict)
    benchmark: BenchmarkResult | None = None
    scenarios: Mapping[str, ScenarioResult] = field(default_factory=dict)
    failed: Sequence[ReportRow] = ()
    positions: ReportedPositions | None = None
    notes: Sequence[str] = ()
    created: str = ""
    title: str = ""


def assemble(evidence: Evidence) -> Report:
    """One record of it all. Raises InputError where there is nothing to report on."""
    if not evidence.engines:
        raise InputError("there is no engine to report on", hint="run `vitdeploy build-engine`")
    model = _common_model(evidence.engines)
    evaluations = list(evidence.evaluations.values())
    _require_same_images(evaluations)
    first = evaluations[0] if evaluations else None
    benchmark = evidence.benchmark
    label = benchmark.source_label if benchmark else "nothing"
    height, width = model.resolution
    names = engine_names(evidence.engines)
    rows = [_row(*each, evidence) for each in zip(names, evidence.engines, strict=True)]
    return Report(
        title=evidence.title or f"{model.source.name} at {height}x{width}",
        created=evidence.created,
        model=model,
        source_label=first.source_label if first else label,
        native_resolution=model.source.native_resolution,
        native_top1=first.native_top1 if first else None,
        source_top1=first.comparison.source_score if first else None,
        score_name=first.comparison.score_name if first else "Top-1",
        evaluation_images=first.comparison.images if first else 0,
        evaluation_root=first.images_root if first else "",
        images_digest=first.images_digest if first else "",
        rows=(*rows, *evidence.failed),
        environment=environment.describe(),
        unreadable=first.unreadable if first else (),
        verification=model.verification,
        quantization=next(
            (e.manifest.model.quantization for e in evidence.engines if _is_quantized(e)), None
        ),
        source_throughput=benchmark.source_measurements() if benchmark else (),
        source_forms=benchmark.form_measurements() if benchmark else (),
        peak=benchmark.peak if benchmark else None,
        conditions=benchmark.conditions if benchmark else (),
        flips=_flips(rows, evidence),
        positions=evidence.positions,
        notes=(*evidence.notes, *_unstable(benchmark)),
    )


def _require_same_images(evaluations: Sequence[EvaluationResult]) -> None:
    """Accuracies of other images do not stand side by side; older records do not name theirs."""
    known = {found.images_digest: found for found in evaluations if found.images_digest}
    if len(known) > 1:
        told = [f"{e.engine_file} on {e.comparison.images:,}" for e in known.values()]
        raise InputError(
            f"the engines were evaluated on different images: {', '.join(told)}",
            hint="evaluate them on the same",
        )


def _flips(rows: Sequence[ReportRow], evidence: Evidence) -> tuple[Flip, ...]:
    """Those of every engine, under the names that the report gives to engines."""
    return tuple(
        replace(flip, engine=row.name)
        for row in rows
        if row.engine_digest in evidence.evaluations
        for flip in evidence.evaluations[row.engine_digest].flips
    )


def _row(name: str, engine: Engine, evidence: Evidence) -> ReportRow:
    manifest = engine.manifest
    digest = manifest.engine_digest
    row = ReportRow(
        name=name,
        backend=manifest.backend,
        precision=manifest.model.precision,
        status="built",
        note="" if manifest.backend.startswith("tensorrt") else "neither evaluated nor timed",
        file=printable(engine.path.name),
        size_bytes=engine.size_bytes,
        targets=manifest.targets,
        graph_digest=manifest.model_digest,
        engine_digest=digest,
        forecast=evidence.forecasts.get(manifest.model_digest),
    )
    evaluation = evidence.evaluations.get(digest)
    benchmark = evidence.benchmark
    timed = benchmark if benchmark is not None and digest in benchmark.engine_digests else None
    scenarios = evidence.scenarios.get(digest)
    if evaluation is None and timed is None and scenarios is None:
        return row
    return replace(
        row,
        status="ok",
        note="; ".join(
            filter(None, ["" if evaluation else "timed, not evaluated", _of_sizes(manifest.model)])
        ),
        accuracy=None if evaluation is None else evaluation.comparison,
        forecast=row.forecast if evaluation is None else evaluation.forecast or row.forecast,
        throughput=timed.measurements_of(digest) if timed else (),
        speedups=timed.speedups_of(digest) if timed else (),
        stable=timed is None or all(c.stable for c in timed.comparisons),
        details=replace(_details(timed, digest), scenarios=scenarios),
    )


def _of_sizes(model: ModelDescription) -> str:
    """What was found of an engine for a range of sizes holds for one of them."""
    sizes = model.resolution_range
    return f"run at {wording.size(model.resolution)}, takes {sizes.in_words()}" if sizes else ""


def _details(benchmark: BenchmarkResult | None, digest: str) -> SpeedDetails:
    if benchmark is None:
        return SpeedDetails()
    name = benchmark.measurements_of(digest)[0].name
    return SpeedDetails(
        fair_speedups=benchmark.fair_speedups_of(digest) if benchmark.source_variants else (),
        shares=tuple(found for found in benchmark.shares if found.name == name),
        memory=tuple(found for found in benchmark.memory if found.engine_digest == digest),
        energy=tuple(found for found in benchmark.energy if found.name == name),
        from_files=tuple(found for found in benchmark.from_files if found.engine_digest == digest),
    )


def _common_model(engines: Sequence[Engine]) -> ModelDescription:
    models = [engine.manifest.model for engine in engines]
    keys = {(m.source.weights_digest, m.resolution) for m in models}
    if len(keys) > 1:
        found = sorted({f"{m.source.name} at {m.resolution[0]}x{m.resolution[1]}" for m in models})
        raise InputError(
            f"the engines belong to different models or resolutions: {', '.join(found)}",
            hint="name the engines of one of them",
        )
    return next((m for m in models if m.precision == "fp32"), models[0])


def _is_quantized(engine: Engine) -> bool:
    return engine.manifest.model.quantization is not None


def _unstable(benchmark: BenchmarkResult | None) -> list[str]:
    unsettled = [c for c in (benchmark.comparisons if benchmark else ()) if not c.stable]
    return [
        f"timings at batch {c.batch} did not settle: "
        + ("too few rounds to tell" if c.drift >= 1 else f"they still drifted by {c.drift:.0%}")
        for c in unsettled
    ]
