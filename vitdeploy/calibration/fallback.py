"""Layers taken back to float, the most sensitive first, until the accuracy holds."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from vitdeploy.artifacts.onnx_model import FallbackStep, ModelDescription
from vitdeploy.backends.onnxruntime_ import GraphSession
from vitdeploy.benchmarks.accuracy.classes import AccuracyComparison, compare
from vitdeploy.benchmarks.accuracy.evaluation import logits_of, require_classes, require_disjoint
from vitdeploy.benchmarks.statistics import tango_upper
from vitdeploy.calibration.plan import QuantizationPlan
from vitdeploy.calibration.sensitivity import Sensitivity, sensitivities
from vitdeploy.calibration.tuning import Tuning
from vitdeploy.errors import GateFailedError, InconclusiveError, InputError
from vitdeploy.graph import files
from vitdeploy.graph.files import RunnableGraph
from vitdeploy.images import ImageSet, image_digest
from vitdeploy.progress import Progress

MINIMUM = 64
"""Images in each half: fewer decide nothing."""


@dataclass(frozen=True)
class Fallback:
    """The part of the plan that stays quantized, and the curve that led to it.

    The last of `steps` is of the half of the images that chose nothing.
    """

    part: QuantizationPlan
    steps: tuple[FallbackStep, ...]


def find_fallback(
    tuning: Tuning, images: ImageSet, *, max_drop_points: float, seed: int = 0
) -> Fallback:
    """Keep 0, 1, 2, 4, 8, ... of the most sensitive units in float until the drop is within
    `max_drop_points`, its one-sided 95 % bound and all.

    Chosen on one half of the images, reported on the other. Without labels the
    float graph's own answers are the labels: the drop is then disagreement.

    Raises InconclusiveError where the images are too few to tell (with the
    number that would do), GateFailedError where no part holds, InputError for
    images that were calibrated with, or are too few to halve.
    """
    description = tuning.gathering.model.description
    require_classes(description)
    require_disjoint(tuning.gathering.calibration.digests, images)
    progress = tuning.gathering.progress
    choosing, reporting = (
        _Judge(tuning, half, max_drop_points, progress) for half in _halves(images, seed)
    )
    ranked: list[Sensitivity] | None = None
    steps: list[FallbackStep] = []
    for count in _counts(len(tuning.plan.units())):
        if count and ranked is None:
            ranked = sensitivities(tuning)
        part = tuning.plan.without(_reasons((ranked or [])[:count]))
        step, found = choosing.judged(part)
        steps.append(step)
        progress.note(step.in_words())
        # Where even the drop seen is too large, more images would not help: more layers may.
        if found is not None and found.verdict == "inconclusive" and found.images_needed:
            raise _inconclusive(found, max_drop_points)
        if step.verdict == "pass":
            reported, final = reporting.judged(part)
            steps.append(replace(reported, held_out=True))
            progress.note(steps[-1].in_words())
            if final is not None and final.verdict == "inconclusive":
                raise _inconclusive(final, max_drop_points)
            if reported.verdict == "pass":
                return Fallback(part, tuple(steps))
            raise _failed(steps, max_drop_points)
    raise _failed(steps, max_drop_points)


class _Judge:
    """One half of the images, and what the float graph answers on them."""

    def __init__(
        self, tuning: Tuning, images: ImageSet, max_drop_points: float, progress: Progress
    ) -> None:
        self._tuning = tuning
        self._images = images
        self._max_drop = max_drop_points
        self._progress = progress
        self._exact, _ = self._answers(files.runnable(tuning.graph), "fp32")
        labels = images.label_indices() if images.is_labelled else self._exact.argmax(axis=1)
        self._labels: NDArray[np.int64] = np.asarray(labels, dtype=np.int64)
        # A float model that nothing can be judged by is told of before anything is searched.
        compare(self._exact, self._exact, self._labels)

    def judged(self, part: QuantizationPlan) -> tuple[FallbackStep, AccuracyComparison | None]:
        """One point of the curve; no comparison where the graph answers nothing any more."""
        graph = files.runnable(self._tuning.quantized(part))
        answers, rate = self._answers(graph, self._tuning.grid.name)
        kept = len(self._tuning.plan.quantized) - len(part.quantized)
        try:
            found = compare(self._exact, answers, self._labels, max_drop_points=self._max_drop)
        except GateFailedError:  # not finite, or a few classes whatever the image
            return self._collapsed(kept, answers, rate), None
        step = FallbackStep(
            kept=kept,
            images=found.images,
            agreement=found.agreement,
            drop_points=found.drop_points,
            drop_upper_points=found.drop_upper_points,
            verdict=found.verdict,
            images_per_second=rate,
        )
        return step, found

    def _collapsed(self, kept: int, answers: NDArray[np.float32], rate: float) -> FallbackStep:
        finite = np.isfinite(answers).all(axis=1)
        source, engine = self._exact.argmax(axis=1), answers.argmax(axis=1)
        before, after = source == self._labels, finite & (engine == self._labels)
        lost, gained = int((before & ~after).sum()), int((after & ~before).sum())
        return FallbackStep(
            kept=kept,
            images=len(answers),
            agreement=float((finite & (source == engine)).mean()),
            drop_points=100 * (lost - gained) / len(answers),
            drop_upper_points=100 * tango_upper(lost, gained, len(answers)),
            verdict="fail",
            images_per_second=rate,
        )

    def _answers(self, graph: RunnableGraph, name: str) -> tuple[NDArray[np.float32], float]:
        session = _Timed(GraphSession(graph, name=name))
        description: ModelDescription = self._tuning.gathering.model.description
        answers = logits_of(
            session,
            self._images,
            description.source.preprocessing,
            description.resolution,
            as_bytes=description.input_format == "uint8-nhwc",
            progress=self._progress,
        )
        return answers, len(answers) / session.seconds


class _Timed:
    """A session that adds up the time it runs, decoding left out."""

    def __init__(self, inner: GraphSession) -> None:
        self._inner = inner
        self.name = inner.name
        self.seconds = 0.0

    def run(self, batch: NDArray[np.float32]) -> NDArray[np.float32]:
        started = time.perf_counter()
        answers = self._inner.run(batch)
        self.seconds += time.perf_counter() - started
        return answers


def _halves(images: ImageSet, seed: int) -> tuple[ImageSet, ImageSet]:
    """Two halves that share no image, nor a copy of one: equal bytes count once."""
    first: dict[str, int] = {}
    for index, item in enumerate(images.items):
        first.setdefault(image_digest(item.path), index)
    images = images.take(list(first.values()))
    if len(images) < 2 * MINIMUM:
        raise InputError(
            f"{len(images)} different evaluation images are too few to choose layers on one half "
            "and report on the other",
            hint=f"give at least {2 * MINIMUM}; thousands for a small --max-drop",
        )
    order = list(range(len(images)))
    random.Random(seed).shuffle(order)
    return images.take(sorted(order[0::2])), images.take(sorted(order[1::2]))


def _counts(units: int) -> Iterator[int]:
    yield 0
    count = 1
    while count < units:
        yield count
        count *= 2


def _reasons(kept: list[Sensitivity]) -> dict[str, str]:
    return {
        name: f"sensitive: quantized alone it moves the answers by {entry.error:.3f} deviations"
        for entry in kept
        for name in entry.names
    }


def _inconclusive(found: AccuracyComparison, max_drop_points: float) -> InconclusiveError:
    needed = found.images_needed  # of one half
    return InconclusiveError(
        f"{found.images} images cannot tell whether the drop of {found.drop_points:+.2f} points "
        f"is within {max_drop_points} (95 % bound {found.drop_upper_points:+.2f})",
        hint="allow a larger --max-drop"
        if needed is None
        else f"give about {2 * needed:,} evaluation images, or allow a larger --max-drop",
    )


def _failed(steps: list[FallbackStep], max_drop_points: float) -> GateFailedError:
    last = steps[-1]
    return GateFailedError(
        f"with {last.kept} nodes back in float the drop is still {last.drop_points:+.2f} points, "
        f"and {max_drop_points} are allowed",
        hint="more and more varied calibration images may help; else take FP16",
    )
