"""The float models that every peer is given, and the images, as files.

A subject's folder holds `model.onnx`, `calibration/*.npy` (the batches, preprocessed once for
all peers), `calibration.json` (which images those are) and, where answers are judged,
`evaluation.npy` and `labels.npy`.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx_ir as ir
from numpy.lib.format import open_memmap
from numpy.typing import NDArray

from tests.planted_models import gelu_outliers, norm_outliers
from vitdeploy.artifacts.files import atomic_path
from vitdeploy.artifacts.onnx_model import OnnxModel, read_onnx_model
from vitdeploy.calibration.image_set import (
    CalibrationSet,
    choose,
    load_calibration_set,
    require_unseen,
    save_calibration_set,
)
from vitdeploy.demo import assets
from vitdeploy.errors import InputError
from vitdeploy.graph import files
from vitdeploy.images import ImageSet, batches, scan

BATCH = 8
"""Images in a calibration file. Peers may feed them one by one; none sees another order."""


@dataclass(frozen=True)
class Prepared:
    """A subject on disk."""

    folder: Path

    @property
    def model_path(self) -> Path:
        return self.folder / "model.onnx"

    def model(self) -> OnnxModel:
        return read_onnx_model(self.model_path)

    def calibration(self) -> CalibrationSet:
        return load_calibration_set(self.folder / "calibration.json")

    def batches(self) -> Iterator[NDArray[np.float32]]:
        """(up to `BATCH`, channels, height, width) each, in order."""
        for path in sorted((self.folder / "calibration").glob("*.npy")):
            yield np.load(path)

    def image_count(self) -> int:
        """Calibration images that were drawn: fewer than asked for where the folder holds fewer."""
        paths = (self.folder / "calibration").glob("*.npy")
        return sum(len(np.load(path, mmap_mode="r")) for path in paths)

    def single_images(self) -> Iterator[NDArray[np.float32]]:
        """(1, channels, height, width) each, the same images in the same order."""
        for batch in self.batches():
            yield from (batch[i : i + 1] for i in range(len(batch)))


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A model to quantize.

    `judged`: its answers mean something, so that agreement does. Folders are
    None for the demo's own images.
    """

    key: str
    title: str
    make: Callable[[Path], object]
    calibration_images: int = 128
    judged: bool = True
    calibration_folder: Path | None = None
    evaluation_folder: Path | None = None


def prepare(subject: Subject, work: Path) -> Prepared:
    """Write what is missing of the subject's folder. Raises InputError as reading images does."""
    prepared = Prepared(work / subject.key)
    prepared.folder.mkdir(parents=True, exist_ok=True)
    if not prepared.model_path.exists():
        subject.make(prepared.model_path)
    source = prepared.model().description.source
    # Planted models have random classes' heads or the demo's own: labels are the demo's.
    labels = source.labels if subject.judged else ()
    evaluation = None
    if subject.judged:
        folder = subject.evaluation_folder or assets.images_folder("evaluation")
        evaluation = scan(folder, labels=labels)
        _write_evaluation(prepared, evaluation)
    if not (prepared.folder / "calibration.json").exists():
        folder = subject.calibration_folder or assets.images_folder("calibration")
        chosen = choose(scan(folder, labels=labels), count=subject.calibration_images)
        if evaluation is not None:
            require_unseen(chosen, evaluation)
        _write_calibration(prepared, chosen)
    return prepared


def _write_calibration(prepared: Prepared, chosen: CalibrationSet) -> None:
    folder = prepared.folder / "calibration"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    description = prepared.model().description
    preprocessing = description.source.preprocessing
    for index, batch in enumerate(
        batches(chosen.images, preprocessing, description.resolution, BATCH)
    ):
        np.save(folder / f"{index:04d}.npy", batch)
    # Last: where it stands, the batches are whole.
    save_calibration_set(chosen, prepared.folder / "calibration.json")


def _write_evaluation(prepared: Prepared, images: ImageSet) -> None:
    path = prepared.folder / "evaluation.npy"
    if path.exists():
        return
    description = prepared.model().description
    shape = (len(images), *description.input_shape)
    np.save(prepared.folder / "labels.npy", images.label_indices())
    with atomic_path(path) as temporary:
        written = open_memmap(temporary, "w+", np.float32, shape)
        start = 0
        preprocessing = description.source.preprocessing
        for batch in batches(images, preprocessing, description.resolution, 50):
            written[start : start + len(batch)] = batch
            start += len(batch)
        written.flush()


def _planted(plant: Callable[[ir.Model, float], None], factor: float) -> Callable[[Path], object]:
    def make(path: Path) -> None:
        demo = read_onnx_model(assets.GRAPH)
        graph = files.load(demo)
        plant(graph, factor)
        files.save(graph, demo.description, path)

    return make


def _base_sized(path: Path) -> None:
    # Imported here: everything else does without PyTorch.
    from tools.export_table.rows import ROWS
    from tools.export_table.sources import lively_source
    from vitdeploy.export.export import ExportOptions, export

    row = next(row for row in ROWS if row.model == "vit_base_patch16_224")
    exported = export(lively_source(row), ExportOptions(), path.parent / "export")
    files.save(files.load(exported), exported.description, path)


SUBJECTS = {
    subject.key: subject
    for subject in (
        Subject(
            key="demo",
            title="the embedded model at 192x192",
            make=lambda path: files.save(
                files.load(assets.GRAPH), read_onnx_model(assets.GRAPH).description, path
            ),
        ),
        Subject(
            key="demo-norm100",
            title="the same with four LayerNorm channels at 100x (exact in float)",
            make=_planted(norm_outliers, 100),
        ),
        Subject(
            key="demo-gelu100",
            title="the same with four channels behind each GELU at 100x",
            make=_planted(gelu_outliers, 100),
        ),
        Subject(
            key="vit-base",
            title="ViT-B/16 at 224 with random weights",
            make=_base_sized,
            calibration_images=32,
            judged=False,
        ),
    )
}


def subject_named(name: str, calibration: Path | None, evaluation: Path | None) -> Subject:
    """One of `SUBJECTS`, or a graph that vitdeploy wrote, judged on folders of its own.

    Raises InputError for neither.
    """
    if name in SUBJECTS:
        return SUBJECTS[name]
    path = Path(name)
    if path.suffix != ".onnx" or not path.is_file():
        raise InputError(
            f"{name} is no model here",
            hint=f"name one of {', '.join(SUBJECTS)}, or an .onnx file that vitdeploy wrote",
        )
    if calibration is None or evaluation is None:
        raise InputError(
            f"{path.name} comes without images",
            hint="give --calib FOLDER and --eval FOLDER, both with one sub-folder a class",
        )
    own = read_onnx_model(path)
    return Subject(
        key=path.stem,
        title=f"{own.description.source.name} ({path.name})",
        make=lambda copy: files.save(files.load(own), own.description, copy),
        calibration_folder=calibration,
        evaluation_folder=evaluation,
    )
