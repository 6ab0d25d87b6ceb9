"""A kit: all that a device needs to build, judge and time engines, and a report to bring back.

A Jetson's engine must be built on that Jetson. So what travels is the graphs,
the source's answers on a few images, those images, and one command; PyTorch
stays where the model was exported. What the machine that packs writes down in
`kit.json` is checked, file by file, before the device begins.
"""

from __future__ import annotations

import os
import secrets
import shutil
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path, PurePosixPath

import numpy as np

from vitdeploy import __version__, api, pipeline
from vitdeploy.accelerators import Accelerators
from vitdeploy.artifacts import reference as references
from vitdeploy.artifacts.engine import Engine, read_engine
from vitdeploy.artifacts.files import (
    file_digest,
    from_json,
    read_text,
    require_writable,
    to_json,
    write_text,
)
from vitdeploy.artifacts.onnx_model import (
    OnnxModel,
    external_locations,
    load_proto,
    read_onnx_model,
)
from vitdeploy.artifacts.reference import ReferenceOutputs
from vitdeploy.artifacts.strict import printable
from vitdeploy.backends import registry
from vitdeploy.backends.cold_start import ColdStart, measure_cold_start
from vitdeploy.benchmarks.report.model import Report
from vitdeploy.benchmarks.report.write import write_report
from vitdeploy.benchmarks.speed.throughput import TimingConfig
from vitdeploy.environment import Environment
from vitdeploy.errors import EngineError, InputError, MissingDependencyError
from vitdeploy.images import ImageItem, ImageSet, image_digest
from vitdeploy.progress import SILENT, Progress

MANIFEST = "kit.json"
REFERENCE = "reference.npz"
RESULTS = "results"
SCHEMA_VERSION = 1
_SCRIPTS = ("run_kit.py", "run.sh", "README.md")


@dataclass(frozen=True)
class KitImage:
    """One image of the evaluation subset; labels as in `ImageItem`."""

    file: str
    digest: str
    label: int | None = None
    more: tuple[int, ...] = ()


@dataclass(frozen=True)
class Kit:
    """What a kit's `kit.json` says. `files` maps every other file to its sha256."""

    model: str
    requirement: str
    graphs: tuple[str, ...]
    images: tuple[KitImage, ...]
    labels: tuple[str, ...]
    files: dict[str, str]
    max_drop_points: float = 0.5
    schema_version: int = SCHEMA_VERSION
    kind: str = "kit"


@dataclass(frozen=True, kw_only=True)
class KitContent:
    """What goes into a kit. `wheels` are packages for devices without a network."""

    graphs: Sequence[OnnxModel]
    reference: ReferenceOutputs
    images: ImageSet
    max_drop_points: float = 0.5
    wheels: Sequence[Path] = ()
    constraints: Path | None = None


@dataclass(frozen=True)
class DeviceFindings:
    """What was found about the device itself, beside the report."""

    environment: Environment
    accelerators: Accelerators
    cold_starts: tuple[ColdStart, ...]
    schema_version: int = SCHEMA_VERSION


def subset(images: ImageSet, count: int, seed: int) -> ImageSet:
    """At most `count` images, evenly over the classes; the same seed draws the same ones."""
    generator = np.random.default_rng(seed)
    order = generator.permutation(len(images)).tolist()
    by_class: dict[int | None, list[int]] = {}
    for index in order:
        by_class.setdefault(images.items[index].label, []).append(index)
    # The first of each class, then the second of each, until there are enough.
    ranked = [(rank, row[rank]) for row in by_class.values() for rank in range(len(row))]
    chosen = [index for _, index in sorted(ranked, key=lambda pair: pair[0])[:count]]
    return images.take(sorted(chosen))


def pack(content: KitContent, destination: Path) -> Kit:
    """Write a kit: a .zip file, or else a folder, whole or not at all.

    Raises InputError where graphs are of different models, where the reference
    lacks an image or is of another model, and where `destination` exists.
    """
    _require_one_model(content)
    if destination.exists() or destination.is_symlink():
        raise InputError(f"{destination} exists", hint="name another kit, or delete that one")
    require_writable(destination)
    folder = destination.with_name(f".{destination.stem}.{secrets.token_hex(4)}.partial")
    try:
        kit = _fill(content, folder)
        if destination.suffix == ".zip":
            archive = folder.with_suffix(".zip")
            _zip(folder, archive, destination.stem)
            archive.replace(destination)
        else:
            folder.replace(destination)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        folder.with_suffix(".zip").unlink(missing_ok=True)
    return kit


def read_kit(folder: Path) -> Kit:
    """The kit unpacked in `folder`, every file looked into.

    Raises InputError for a manifest that contradicts itself or names files outside the kit, and
    where a file is missing or has other bytes than were packed.
    """
    path = folder / MANIFEST
    kit = from_json(read_text(path, what="kit"), Kit, origin=str(path))
    wrong = _contradiction(kit)
    if wrong:
        raise InputError(f"{path} {wrong}", hint="pack the kit again with `vitdeploy package`")
    for name, digest in kit.files.items():
        if not (folder / name).is_file():
            raise InputError(f"the kit lacks {name}", hint="copy or unpack it again, whole")
        if file_digest(folder / name) != digest:
            raise InputError(f"{name} is not as it was packed", hint="copy or unpack the kit again")
    return kit


def _contradiction(kit: Kit) -> str:
    """What is wrong with a manifest; empty where nothing is."""
    named = [*kit.graphs, *(image.file for image in kit.images), REFERENCE]
    if not (kit.graphs and kit.images):
        return "names no graph, or no image"
    if len(set(named)) < len(named):
        return "names a file twice"
    if any(not _is_inside(name) for name in (*named, *kit.files)):
        return "names a file outside the kit"
    if not kit.files.keys() >= {*named}:
        return "does not say what its files hold"
    labels = [label for i in kit.images for label in (i.label, *i.more) if label is not None]
    if any(not 0 <= label < len(kit.labels) for label in labels):
        return "labels an image with a class that it does not name"
    return "" if kit.max_drop_points > 0 else "allows no drop of more than 0 points"


def _is_inside(name: str) -> bool:
    path = PurePosixPath(name)
    return not (path.is_absolute() or ".." in path.parts or "\\" in name or "\0" in name)


def _results_folder(folder: Path) -> Path:
    """Where findings go, inside the kit and nowhere else. Raises InputError where it cannot be."""
    results, archive = folder / RESULTS, folder / f"{RESULTS}.zip"
    if results.is_symlink() or (results.exists() and not results.is_dir()) or archive.is_dir():
        raise InputError(
            f"{folder} holds a {RESULTS} or {archive.name} that is not a run's own",
            hint="move it away: findings are written there",
        )
    results.mkdir(exist_ok=True)
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
    results = _results_folder(folder)
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
    engines = results / "engines"
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
    _zip(results, archive, RESULTS, suffixes=(".json", ".md", ".html"))
    return report, archive


def _require_one_model(content: KitContent) -> None:
    if not content.graphs:
        raise InputError("a kit needs a graph", hint="name the .onnx files that `export` wrote")
    for graph in content.graphs:
        model = graph.description
        own = (model.source.weights_digest, model.source.preprocessing.digest)
        content.reference.require_source(*own, model.resolution, model.output)
    names = [graph.path.name for graph in content.graphs]
    if len(set(names)) < len(names):
        raise InputError("two graphs have the same name", hint="rename one of them")
    content.reference.for_images([image_digest(item.path) for item in content.images.items])


def _fill(content: KitContent, folder: Path) -> Kit:
    """All files of the kit in `folder`, and their manifest."""
    (folder / "graphs").mkdir(parents=True)
    for graph in content.graphs:
        _copy_graph(graph, folder / "graphs")
    images = _copy_images(content.images, folder)
    digests = tuple(image.digest for image in images)
    own = content.reference
    kept = ReferenceOutputs(
        own.for_images(digests),
        digests,
        own.weights_digest,
        own.preprocessing_digest,
        own.resolution,
        own.output,
    )
    references.save(kept, folder / REFERENCE)
    requirement = f"vitdeploy=={__version__}"
    write_text(folder / "requirements.txt", f"{requirement}\n")
    for name in _SCRIPTS:
        script = resources.files("vitdeploy") / "kit_files" / name
        write_text(folder / name, script.read_text(encoding="utf-8"))
    if content.constraints is not None:
        shutil.copyfile(content.constraints, folder / "constraints.txt")
    for wheel in content.wheels:
        (folder / "wheels").mkdir(exist_ok=True)
        shutil.copyfile(wheel, folder / "wheels" / wheel.name)
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    kit = Kit(
        model=content.graphs[0].description.source.name,
        requirement=requirement,
        graphs=tuple(f"graphs/{graph.path.name}" for graph in content.graphs),
        images=images,
        labels=content.images.labels,
        files={path.relative_to(folder).as_posix(): file_digest(path) for path in files},
        max_drop_points=content.max_drop_points,
    )
    write_text(folder / MANIFEST, to_json(kit))
    return kit


def _copy_graph(graph: OnnxModel, folder: Path) -> None:
    names = [graph.path.name, *external_locations(load_proto(graph.path))]
    for name in names:
        shutil.copyfile(graph.path.parent / name, folder / name)


def _copy_images(images: ImageSet, folder: Path) -> tuple[KitImage, ...]:
    """Each under a number of its own, so that names of any folder and system will do."""
    (folder / "images").mkdir()
    copied = []
    for number, item in enumerate(images.items):
        name = f"images/{number:06d}{printable(item.path.suffix.lower())}"
        shutil.copyfile(item.path, folder / name)
        copied.append(KitImage(name, file_digest(folder / name), item.label, item.more))
    return tuple(copied)


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


def _zip(folder: Path, archive: Path, name: str, suffixes: tuple[str, ...] = ()) -> None:
    """The files of `folder` (only those with these suffixes) below a folder called `name`."""
    partial = archive.with_name(f".{archive.name}.partial")
    try:
        with zipfile.ZipFile(partial, "w", zipfile.ZIP_DEFLATED) as stream:
            for path in sorted(folder.rglob("*")):
                if path.is_file() and (not suffixes or path.suffix in suffixes):
                    stream.write(path, os.path.join(name, path.relative_to(folder)))  # noqa: PTH118
        partial.replace(archive)
    finally:
        partial.unlink(missing_ok=True)
