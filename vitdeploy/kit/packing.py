"""Packing a kit, whole or not at all."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import numpy as np

from vitdeploy import __version__
from vitdeploy.artifacts import reference as references
from vitdeploy.artifacts.files import (
    file_digest,
    needing_room,
    require_writable,
    to_json,
    write_text,
)
from vitdeploy.artifacts.onnx_model import OnnxModel, Output, external_locations, load_proto
from vitdeploy.artifacts.reference import ReferenceOutputs
from vitdeploy.artifacts.strict import printable
from vitdeploy.errors import InputError
from vitdeploy.images import ImageSet, image_digest
from vitdeploy.kit.contents import MANIFEST, REFERENCE, Kit, KitImage, archived

_SCRIPTS = ("run_kit.py", "run.sh", "README.md")


@dataclass(frozen=True, kw_only=True)
class KitContent:
    """What goes into a kit. `wheels` are packages for devices without a network."""

    graphs: Sequence[OnnxModel]
    reference: ReferenceOutputs
    images: ImageSet
    max_drop_points: float = 0.5
    wheels: Sequence[Path] = ()
    constraints: Path | None = None


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


def require_destination(destination: Path) -> None:
    """Raise InputError where a kit could not be written: nothing is ever replaced by one."""
    if destination.exists() or destination.is_symlink():
        raise InputError(f"{destination} exists", hint="name another kit, or delete that one")
    require_writable(destination)


def pack(content: KitContent, destination: Path) -> Kit:
    """Write a kit: a .zip file, or else a folder, whole or not at all.

    Raises InputError where graphs are of different models, where two wheels have
    one name, where the reference lacks an image or is of another model, and where
    `destination` exists.
    """
    require_one_model(content.graphs)
    content.reference.require_source(*_identity(content.graphs[0]))
    content.reference.for_images([image_digest(item.path) for item in content.images.items])
    _require_own_names(content.wheels)
    require_destination(destination)
    folder = destination.with_name(f".{destination.stem}.{secrets.token_hex(4)}.partial")
    try:
        with needing_room(destination):
            kit = _fill(content, folder)
            packed = folder
            if destination.suffix.lower() == ".zip":
                packed = folder.with_suffix(".zip")
                archived(folder, packed, destination.stem)
            require_destination(destination)  # another one may have been packed meanwhile
            packed.replace(destination)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        folder.with_suffix(".zip").unlink(missing_ok=True)
    return kit


def require_one_model(graphs: Sequence[OnnxModel]) -> None:
    """Raise InputError unless there are graphs, each named once, of one model at one size."""
    if not graphs:
        raise InputError("a kit needs a graph", hint="name the .onnx files that `export` wrote")
    parts = ("weights", "preprocessing", "resolution", "output")
    first = _identity(graphs[0])
    for graph in graphs[1:]:
        pairs = zip(parts, first, _identity(graph), strict=True)
        different = [part for part, own, other in pairs if own != other]
        if different:
            raise InputError(
                f"{graph.path.name} has other {' and '.join(different)} than {graphs[0].path.name}",
                hint="pack a kit for each",
            )
    _require_own_names([graph.path for graph in graphs])


def _require_own_names(files: Sequence[Path]) -> None:
    names = [file.name for file in files]
    again = sorted({name for name in names if names.count(name) > 1})
    if again:
        raise InputError(f"two files have the same name, {again[0]}", hint="rename one of them")


def _identity(graph: OnnxModel) -> tuple[str, str, tuple[int, int], Output]:
    model, source = graph.description, graph.description.source
    return source.weights_digest, source.preprocessing.digest, model.resolution, model.output


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
