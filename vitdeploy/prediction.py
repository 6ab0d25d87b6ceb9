"""Labels and scores of images, from any engine or graph. PyTorch is not needed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from vitdeploy.artifacts.engine import Engine
from vitdeploy.artifacts.files import reading, require_file
from vitdeploy.artifacts.onnx_model import ModelDescription, OnnxModel
from vitdeploy.artifacts.strict import printable
from vitdeploy.backends import registry
from vitdeploy.backends.base import Session
from vitdeploy.benchmarks.accuracy.kinds import Kind, kind_of
from vitdeploy.errors import GateFailedError, InputError, counted
from vitdeploy.images import decode, image_files
from vitdeploy.progress import SILENT, Progress

SCHEMA_VERSION = 1
_BATCH = 32


@dataclass(frozen=True)
class Answer:
    """One label (or output number) of an image.

    `score` is a probability for classes (softmax) and for several labels
    (sigmoid of each), and the number itself for regression.
    """

    label: str
    index: int
    score: float


@dataclass(frozen=True)
class FeatureSummary:
    """What can be said of features in a line: their shape, norm, mean and deviation."""

    shape: tuple[int, ...]
    norm: float
    mean: float
    deviation: float
    first: tuple[float, ...]


@dataclass(frozen=True)
class Prediction:
    """One image: its best answers, best first, or a summary of its features."""

    image: str
    answers: tuple[Answer, ...] = ()
    features: FeatureSummary | None = None


@dataclass(frozen=True)
class Unreadable:
    """An image that was left out, and why."""

    image: str
    reason: str


@dataclass(frozen=True)
class Predictions:
    """All images in the order they were named; `runtime` says what computed them."""

    model: str
    runtime: str
    kind: Kind
    predictions: tuple[Prediction, ...]
    unreadable: tuple[Unreadable, ...] = ()
    schema_version: int = SCHEMA_VERSION


def images_named(places: Sequence[Path]) -> list[Path]:
    """The files named, and all images in and below the folders named, in natural order.

    Raises InputError for what does not exist, for a folder without images and
    where nothing is named.
    """
    found: list[Path] = []
    for place in places:
        with reading(place, "image"):
            is_folder, is_file = place.is_dir(), place.is_file()
        below = image_files(place) if is_folder else []
        if is_folder and not below:
            raise InputError(f"{place} holds no images", hint="name image files, or their folder")
        if not is_folder and not is_file:
            require_file(place, what="image")
        found += below if is_folder else [place]
    if not found:
        raise InputError("no image was named", hint="name image files, or a folder of them")
    return found


def predict(
    model: Engine | OnnxModel,
    images: Sequence[Path],
    *,
    top: int = 5,
    threads: int | None = None,
    progress: Progress = SILENT,
) -> Predictions:
    """Answer `images` (files), each prepared by the model's own Preprocessing.

    A graph in place of an engine runs in ONNX Runtime on the CPU. Images that
    cannot be read are listed in the result. Raises InputError where none can,
    GateFailedError where an answer is not finite, and what loading raises.
    """
    session, description, sizes = _opened(model, threads)
    kind = kind_of(description.source.task, description.output)
    answered: list[Prediction] = []
    broken: list[Unreadable] = []
    with progress.task(f"predicting with {session.name}", len(images)) as task:
        for start in range(0, len(images), sizes[1]):
            chunk = images[start : start + sizes[1]]
            names, batch = [], []
            for path, found in zip(chunk, _prepared(chunk, description), strict=True):
                if isinstance(found, InputError):
                    broken.append(Unreadable(printable(str(path)), str(found)))
                else:
                    names.append(printable(str(path)))
                    batch.append(found)
            if batch:
                outputs = _run(session, np.stack(batch), smallest=sizes[0])
                answered += [
                    _prediction(name, row, kind, description, top)
                    for name, row in zip(names, outputs, strict=True)
                ]
            task.advance(len(chunk))
    if not answered:
        raise InputError(
            f"none of {counted(len(images), 'image')} can be read (first: {broken[0].reason})",
            hint="name files that hold an image: JPEG, PNG, WebP, BMP, TIFF or GIF",
        )
    label = f"{description.source.name} {description.precision}"
    if description.resolution_range is not None:
        label += " at {}x{}".format(*description.resolution)
    return Predictions(label, session.name, kind, tuple(answered), tuple(broken))


def _opened(
    model: Engine | OnnxModel, threads: int | None
) -> tuple[Session, ModelDescription, tuple[int, int]]:
    """A session, what it computes, and the (smallest, best) number of images a run."""
    if isinstance(model, Engine):
        manifest = model.manifest
        session = registry.get(manifest.backend).load(model, threads=threads)
        smallest, best, _ = manifest.batch
        return session, manifest.model, (smallest, min(best, max(_BATCH, smallest)))
    from vitdeploy.backends.onnxruntime_ import GraphSession

    description = model.description
    half = description.precision.endswith(("fp16", "bf16"))
    session = GraphSession(
        model.path,
        threads=threads,
        name=f"ONNX Runtime {description.precision} (the graph, on the CPU"
        f"{', in float32' if half else ''})",
        description=description,
    )
    return session, description, (1, _BATCH)


def _prepared(
    paths: Sequence[Path], description: ModelDescription
) -> Iterator[NDArray | InputError]:
    """Each image as the graph takes it, or why it cannot be read, in order."""
    own = description.source.preprocessing
    prepare = own.apply_bytes if description.input_format == "uint8-nhwc" else own.apply

    def one(path: Path) -> NDArray | InputError:
        try:
            return prepare(decode(path), description.resolution)
        except InputError as error:
            return error

    with ThreadPoolExecutor(max_workers=2) as pool:
        yield from pool.map(one, paths)


def _run(session: Session, batch: NDArray, *, smallest: int) -> NDArray[np.float32]:
    """Answers of every image; an engine of larger batches sees the last image again."""
    missing = smallest - len(batch)
    if missing <= 0:
        return session.run(batch)
    return session.run(np.concatenate([batch, np.repeat(batch[-1:], missing, axis=0)]))[
        : len(batch)
    ]


def _prediction(
    image: str, row: NDArray[np.float32], kind: Kind, description: ModelDescription, top: int
) -> Prediction:
    if not np.isfinite(row).all():
        raise GateFailedError(
            f"the answer for {image} is not finite",
            hint="judge the engine with `vitdeploy evaluate`; FP16 may overflow in this model",
        )
    if kind == "features":
        return Prediction(image, features=_summary(row))
    scores = _scores(row, kind, probabilities=description.output == "probabilities")
    order = np.argsort(-scores, kind="stable") if kind != "regression" else np.arange(len(scores))
    labels = description.source.labels
    named = len(labels) == len(scores)
    answers = (
        Answer(labels[i] if named else str(i), i, float(scores[i])) for i in order[:top].tolist()
    )
    return Prediction(image, tuple(answers))


def _scores(row: NDArray[np.float32], kind: Kind, *, probabilities: bool) -> NDArray[np.float64]:
    """(classes,) probabilities, or the numbers themselves."""
    values = row.reshape(-1).astype(np.float64)
    if probabilities or kind == "regression":
        return values
    if kind == "multilabel":
        return 0.5 * (1 + np.tanh(0.5 * values))  # the sigmoid, which cannot overflow so
    powers = np.exp(values - values.max())
    return powers / powers.sum()


def _summary(row: NDArray[np.float32]) -> FeatureSummary:
    values = row.astype(np.float64).reshape(-1)
    return FeatureSummary(
        shape=row.shape,
        norm=float(np.linalg.norm(values)),
        mean=float(values.mean()),
        deviation=float(values.std()),
        first=tuple(float(value) for value in values[:4]),
    )
