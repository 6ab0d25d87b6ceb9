"""Judging: what the source answers, and how an engine's answers compare with it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from vitdeploy.api.engines import load_engine
from vitdeploy.api.sources import needs_torch
from vitdeploy.artifacts.engine import Engine
from vitdeploy.artifacts.onnx_model import ModelDescription
from vitdeploy.artifacts.reference import ReferenceOutputs
from vitdeploy.artifacts.source import Task
from vitdeploy.artifacts.strict import printable
from vitdeploy.backends.base import Session
from vitdeploy.benchmarks.accuracy import evaluation
from vitdeploy.benchmarks.accuracy.evaluation import EvaluationResult
from vitdeploy.benchmarks.accuracy.judging import judge
from vitdeploy.benchmarks.accuracy.kinds import kind_of
from vitdeploy.images import ImageSet, image_digest
from vitdeploy.progress import SILENT, Progress

if TYPE_CHECKING:
    from vitdeploy.models.source import SourceModel


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


@dataclass(frozen=True)
class Criterion:
    """What an engine must hold: the points it may lose, and of what.

    `task` overrules what the model says it is for.
    """

    max_drop_points: float = 0.5
    task: Task | None = None


def evaluate(
    engine: Engine,
    baseline: Baseline,
    images: ImageSet,
    criterion: Criterion | None = None,
    *,
    session: Session | None = None,
    progress: Progress = SILENT,
) -> EvaluationResult:
    """Judge an engine against the source on the same images.

    `session` is the engine where it is loaded already (not `alone`).

    Raises InputError where images were calibrated with, GateFailedError where
    the comparison is void (not finite, one class only).
    """
    criterion = criterion or Criterion()
    model = engine.manifest.model
    kind = kind_of(model.source.task, model.output, asked=criterion.task)
    require_unseen(engine, images)
    logits = evaluation.logits_of(
        session or load_engine(engine, alone=False),
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
        max_drop_points=criterion.max_drop_points,
        probabilities=probabilities,
    )
    flips = evaluation.flips_of(
        engine.path.stem,
        comparison,
        baseline.logits,
        logits,
        images,
        model.source.labels,
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
        unreadable=(),
        comparison=comparison,
        flips=flips,
        images_digest=evaluation.digest_of(images),
    )
