"""Evaluation: the same images through source and engine."""

from __future__ import annotations

import base64
import hashlib
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitdeploy.artifacts.onnx_model import ModelDescription
from vitdeploy.artifacts.reference import ReferenceOutputs
from vitdeploy.artifacts.strict import printable
from vitdeploy.backends.base import Session
from vitdeploy.benchmarks.accuracy import ranking
from vitdeploy.benchmarks.accuracy.judging import AnyComparison
from vitdeploy.benchmarks.accuracy.kinds import Kind
from vitdeploy.benchmarks.report.model import AccuracyForecast, Flip
from vitdeploy.errors import GateFailedError, InputError
from vitdeploy.images import ImageSet, batches, decode, image_digest
from vitdeploy.preprocessing import Preprocessing, Size
from vitdeploy.progress import SILENT, Progress

_BATCH = 32
_THUMBNAILS = 24
SCHEMA_VERSION = 1


@dataclass(frozen=True)
class EvaluationResult:
    """One engine (or graph) against the source, as it stands in '<engine>.accuracy.json'.

    `native_top1` is the source's accuracy (of multi-label models: mAP) at its
    own resolution, so that the price of changing it is never hidden (None: not
    measured, or no labels). `forecast` is what the graph's emulations said.
    """

    engine_file: str
    engine_digest: str
    backend: str
    model: ModelDescription
    source_label: str
    images_root: str
    native_top1: float | None
    unreadable: tuple[str, ...]
    comparison: AnyComparison
    flips: tuple[Flip, ...] = ()
    forecast: AccuracyForecast | None = None
    images_digest: str = ""
    schema_version: int = SCHEMA_VERSION

    def size(self) -> Size:
        """(height, width) of the images that the engine saw."""
        return self.model.resolution

    def supersedes(self, older: EvaluationResult) -> bool:
        """Whether it is of the same images at the same size, or the other of an older build."""
        if older.engine_digest != self.engine_digest:
            return True
        if older.native_top1 is not None and self.native_top1 is None:
            return False  # stored outputs of the source do not tell
        return (self.images_digest, self.size()) == (older.images_digest, older.size())


def logits_of(
    session: Session,
    images: ImageSet,
    preprocessing: Preprocessing,
    size: Size,
    *,
    as_bytes: bool = False,
    progress: Progress = SILENT,
) -> NDArray[np.float32]:
    """(images, classes) float32, in the set's order. `as_bytes`: the graph normalizes."""
    parts = []
    with progress.task(f"evaluating {session.name} at {size[0]}x{size[1]}", len(images)) as task:
        for batch in batches(images, preprocessing, size, _BATCH, as_bytes=as_bytes):
            parts.append(session.run(batch))
            task.advance(len(batch))
    return np.concatenate(parts)


def score_of(kind: Kind, answers: NDArray[np.float32], images: ImageSet) -> float | None:
    """Top-1, or the mAP of multi-label answers; None for others and without labels.

    Raises GateFailedError for values that are not finite.
    """
    if kind == "classes":
        return top1(answers, images)
    _require_finite(answers)
    if kind != "multilabel" or not images.is_labelled:
        return None
    return ranking.mean_average_precision(answers, images.truth(answers.shape[1]))


def top1(logits: NDArray[np.float32], images: ImageSet) -> float | None:
    """Share of images answered right; None without labels. Raises GateFailedError for NaN."""
    _require_finite(logits)
    if not images.is_labelled:
        return None
    return float((logits.argmax(-1) == images.label_indices()).mean())


def _require_finite(logits: NDArray[np.float32]) -> None:
    if not np.isfinite(logits).all():
        raise GateFailedError(
            "the source answers values that are not finite", hint="check its weights"
        )


def reference_outputs(
    logits: NDArray[np.float32], images: ImageSet, model: ModelDescription
) -> ReferenceOutputs:
    """The source's answers at a graph's resolution, as an artifact; one long row an image."""
    return ReferenceOutputs(
        logits.reshape(len(logits), -1),
        tuple(image_digest(item.path) for item in images.items),
        model.source.weights_digest,
        model.source.preprocessing.digest,
        model.resolution,
        model.output,
    )


def digest_of(images: ImageSet) -> str:
    """sha256 over the images' digests, whatever their order."""
    digests = sorted(image_digest(item.path) for item in images.items)
    return hashlib.sha256("".join(digests).encode()).hexdigest()


def require_classes(model: ModelDescription) -> None:
    """Raise InputError where a graph answers no classes: a search for layers goes by top-1."""
    task = model.source.task
    if task == "classify" and model.output in ("logits", "probabilities"):
        return
    raise InputError(
        f"the graph answers {model.output} for the task {task}, and layers are searched for by "
        "the drop of top-1",
        hint="leave --max-drop out, and judge the engine with `vitdeploy evaluate`",
    )


def require_disjoint(calibration_digests: Sequence[str], images: ImageSet) -> None:
    """Raise InputError where evaluation images were calibrated with, by content."""
    calibrated = set(calibration_digests)
    shared = [i for i, item in enumerate(images.items) if image_digest(item.path) in calibrated]
    if shared:
        raise InputError(
            f"{len(shared)} of {len(images)} evaluation images were used for calibration "
            f"(first: {images.name(shared[0])})",
            hint="evaluate on images the engine has not seen",
        )


def flips_of(
    engine_name: str,
    comparison: AnyComparison,
    source_logits: NDArray[np.float32],
    engine_logits: NDArray[np.float32],
    images: ImageSet,
    labels: Sequence[str],
    *,
    probabilities: bool = False,
) -> tuple[Flip, ...]:
    """The first images that source and engine name differently, with thumbnails.

    Features and numbers name nothing. Raises InputError where `labels`, if
    there are any, are not one a class.
    """
    if comparison.kind not in ("classes", "multilabel"):
        return ()
    classes = engine_logits.shape[1]
    if labels and len(labels) != classes:
        raise InputError(
            f"{engine_name} answers {classes} classes and has names for {len(labels)}",
            hint="export the model again",
        )
    names: list[str] = list(labels) or [str(index) for index in range(classes)]
    threshold = 0.5 if probabilities else 0.0

    def named(row: NDArray) -> str:
        if comparison.kind == "classes":
            return names[int(row.argmax())]
        return ", ".join(names[i] for i in np.flatnonzero(row > threshold).tolist()) or "nothing"

    flips = []
    for index in comparison.flipped[:_THUMBNAILS]:
        item = images.items[index]
        own = () if item.label is None else (item.label, *item.more)
        flips.append(
            Flip(
                engine=printable(engine_name),
                image=printable(item.path.name),
                thumbnail=_thumbnail(item.path),
                true_label=", ".join(names[i] for i in own) if own else None,
                source_prediction=named(source_logits[index]),
                engine_prediction=named(engine_logits[index]),
            )
        )
    return tuple(flips)


def _thumbnail(path: Path) -> str:
    """A PNG data URI of at most 96 pixels; small originals are enlarged without smoothing."""
    image = decode(path)
    image.thumbnail((96, 96))
    if max(image.size) <= 48:
        image = image.resize((image.width * 2, image.height * 2), Image.Resampling.NEAREST)
    buffer = io.BytesIO()
    image.save(buffer, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()
