"""The last check of a quantized graph: it must answer as its float version does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from vitdeploy.calibration.answers import answers, inputs_of
from vitdeploy.calibration.drawing import draw
from vitdeploy.calibration.image_set import CalibrationSet
from vitdeploy.calibration.plan import QuantizationPlan
from vitdeploy.calibration.sensitivity import sensitivities
from vitdeploy.calibration.tuning import Tuning
from vitdeploy.errors import GateFailedError
from vitdeploy.images import ImageSet, scan
from vitdeploy.progress import SILENT, Progress

HELD_OUT = 64
LEAST_AGREEMENT = 0.90
"""Share of images with the float graph's top-1, or mean cosine (see `Agreement`)."""

Measure = Literal["top-1", "cosine", "cosine of logits"]

_BLAMED = 5
_ROUNDING = 1e-6
"""Of float32, as a share of the largest answer."""
_CLASSES = ("logits", "probabilities")


@dataclass(frozen=True)
class Agreement:
    """How far a quantized graph answers as its float version.

    `share` is that of the images with the same top-1. Where top-1 tells
    nothing (features, numbers, a float graph that answers one class so often
    that a constant would agree) it is the mean cosine of the answers, less
    their mean over the images. `held_out`: it was not calibrated on these images.
    """

    images: int
    share: float
    measure: Measure
    held_out: bool

    def in_words(self) -> str:
        which = "held-out" if self.held_out else "calibration"
        if self.measure == "top-1":
            return f"top-1 of {100 * self.share:.1f} % of {self.images} {which} images"
        vacuous = ", as the float model's top-1 hardly varies"
        return (
            f"mean cosine of {self.share:.3f} on {self.images} {which} images"
            f"{vacuous if self.measure == 'cosine of logits' else ''}"
        )


def judging_images(calibration: CalibrationSet, *, progress: Progress = SILENT) -> ImageSet | None:
    """`HELD_OUT` images that could have been drawn and were not; None where there are fewer."""
    everything = calibration.drawn_from or scan(calibration.images.root)
    wanted = len(calibration) + HELD_OUT
    if len(everything) < wanted:
        return None
    drawn = draw(everything, wanted, calibration.seed + 1, progress=progress)
    seen = set(calibration.digests)
    fresh = [index for index, picture in drawn.chosen.items() if picture.digest not in seen]
    return everything.take(fresh[:HELD_OUT]) if len(fresh) >= HELD_OUT else None


def agreement(tuning: Tuning, part: QuantizationPlan) -> Agreement:
    """Compare on held-out images; where the folder has none, on the calibration images."""
    calibration, progress = tuning.gathering.calibration, tuning.gathering.progress
    description = tuning.gathering.model.description
    fresh = judging_images(calibration, progress=progress)
    images = fresh or calibration.images.take(range(min(HELD_OUT, len(calibration))))
    inputs = inputs_of(images, description)
    with progress.task("comparing with the float model", 2) as task:
        exact = answers(tuning.graph, inputs)
        task.advance()
        answered = answers(tuning.quantized(part), inputs)
        task.advance()
    classes = description.source.task == "classify" and description.output in _CLASSES
    share, measure = _compared(exact, answered, classes=classes)
    return Agreement(len(images), share, measure, fresh is not None)


def require_agreement(tuning: Tuning, part: QuantizationPlan) -> Agreement:
    """Raise GateFailedError, with the layers to blame, where a graph has lost its answers."""
    found = agreement(tuning, part)
    if found.share >= LEAST_AGREEMENT:
        return found
    blamed = sensitivities(tuning)[:_BLAMED]
    keep = " ".join(f"--keep {name}" for entry in blamed for name in entry.names)
    raise GateFailedError(
        f"the quantized model has lost its float version's answers: {found.in_words()}; what "
        f"quantizing one layer alone does: {', '.join(entry.in_words() for entry in blamed)}",
        hint=f"keep layers in float ({keep}), let --max-drop choose them, "
        "or take the graph all the same with --force",
    )


def _compared(
    exact: NDArray[np.float32], answered: NDArray[np.float32], *, classes: bool
) -> tuple[float, Measure]:
    if not classes:
        return _mean_cosine(exact, answered), "cosine"
    if np.bincount(exact.argmax(1)).max() >= LEAST_AGREEMENT * len(exact):
        return _mean_cosine(exact, answered), "cosine of logits"
    same = (exact.argmax(1) == answered.argmax(1)) & np.isfinite(answered).all(1)
    return float(same.mean()), "top-1"


def _mean_cosine(exact: NDArray[np.float32], answered: NDArray[np.float32]) -> float:
    """Rows that are not finite count as zero, and so do those that vary by rounding alone."""
    center = exact.mean(axis=0, dtype=np.float64)
    finite = np.isfinite(answered).all(axis=1, keepdims=True)
    a, b = exact - center, np.where(finite, answered, center) - center
    a[np.abs(a).max(axis=1) <= _ROUNDING * np.abs(exact).max()] = 0
    if exact.shape[1] == 1:  # the cosine of one number is its sign
        a, b = a.T, b.T
    norms = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    return float(((a * b).sum(axis=1) / np.maximum(norms, np.finfo(np.float32).tiny)).mean())
