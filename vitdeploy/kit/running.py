"""Running a kit on the device: build, judge and time every graph; a report to bring back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from vitdeploy import api, pipeline
from vitdeploy.accelerators import Accelerators
from vitdeploy.artifacts import reference as references
from vitdeploy.artifacts.engine import Engine, read_engine
from vitdeploy.artifacts.files import needing_room, to_json, write_text
from vitdeploy.artifacts.onnx_model import read_onnx_model
from vitdeploy.backends import registry
from vitdeploy.backends.cold_start import ColdStart, measure_cold_start
from vitdeploy.benchmarks.report.model import Report
from vitdeploy.benchmarks.report.write import write_report
from vitdeploy.benchmarks.speed.throughput import TimingConfig
from vitdeploy.environment import Environment
from vitdeploy.errors import EngineError, InputError, MissingDependencyError
from vitdeploy.images import ImageItem, ImageSet
from vitdeploy.kit.contents import REFERENCE, SCHEMA_VERSION, archived, read_kit
from vitdeploy.progress import SILENT, Progress

RESULTS = "results"
_ENGINES = "engines"


@dataclass(frozen=True)
class DeviceFindings:
    """What was found about the device itself, beside the report."""

    environment: Environment
    accelerators: Accelerators
    cold_starts: tuple[ColdStart, ...]
    schema_version: int = SCHEMA_VERSION


def _results_folder(folder: Path, progress: Progress) -> Path:
    """Where findings go, inside the kit and nowhere else. Raises InputError where it cannot be."""
    results, archive = folder / RESULTS, folder / f"{RESULTS}.zip"
    places = (results, results / _ENGINES)
    not_own = any(p.is_symlink() or (p.exists() and not p.is_dir()) for p in places)
    if not_own or archive.is_dir():
        raise InputError(
            f"{folder} holds a {RESULTS} or {archive.name} that is not a run's own",
            hint="move it away: findings are written there",
        )
    if (results / "report.json").exists():
        progress.note(f"{results} holds an earlier run's findings: these take their place")
    return results


def run_kit(
    folder: Path,
    *,
    backends: Sequence[str] = (),
    batch_sizes: Sequence[int] = (1, 8),
    seconds: float = 60.0,
    progress: Progress = SILENT,
) -> tuple[Report, Path]:
    """Build, judge and time every graph of a kit here; the report, and the .zip to bring back.

    Without `backends` the one that `auto` stands for is used. The source's
    stored answers stand for it, and speeds are compared with the first engine.
    An engine that cannot be built is a failed row of the report. Raises
    InputError for a damaged kit, MissingDependencyError without a backend.
    """
    kit = read_kit(folder)
    results = _results_folder(folder, progress)
    names = tuple(dict.fromkeys(backends)) or (registry.choose(None)[0].name,)
    graphs = [read_onnx_model(folder / name) for name in kit.graphs]
    images = ImageSet(
        folder / "images",
        tuple(ImageItem(folder / i.file, i.label, i.more) for i in kit.images),
        kit.labels,
    )
    baseline = api.baseline_from_reference(
        references.load(folder / REFERENCE), graphs[0].description, images
    )
    judgement = pipeline.Judgement(
        baseline=baseline,
        images=images,
        max_drop_points=kit.max_drop_points,
        batch_sizes=batch_sizes,
        timing=TimingConfig(max_seconds=seconds, accept_unstable=True),
    )
    plans = [pipeline.EnginePlan(name, graph) for graph in graphs for name in names]
    engines = results / _ENGINES
    notes = ("speeds are compared with the first engine: PyTorch is not on this device",)
    report = pipeline.run(
        plans, judgement, engines, notes=notes, keep_going=True, progress=progress
    )
    write_report(report, results)
    found = api.doctor()
    starts = _cold_starts(engines, progress)
    device = DeviceFindings(found.environment, found.accelerators, starts)
    write_text(results / "device.json", to_json(device))
    archive = folder / f"{RESULTS}.zip"
    with needing_room(archive):
        archived(results, archive, RESULTS, suffixes=(".json", ".md", ".html"))
    return report, archive


def _cold_starts(folder: Path, progress: Progress) -> tuple[ColdStart, ...]:
    """Of the engines that run here; one that does not start is named, and left out."""
    found = []
    for path in sorted(folder.glob("*.engine")):
        try:
            engine: Engine = read_engine(path)
            if registry.get(engine.manifest.backend).probe().can_execute:
                found.append(measure_cold_start(engine))
        except (EngineError, MissingDependencyError) as error:
            progress.note(f"no cold start: {error}")
    return tuple(found)
