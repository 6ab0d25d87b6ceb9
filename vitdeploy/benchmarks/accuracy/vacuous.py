"""Comparisons of classes that would prove nothing: refused before anything is counted."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from vitdeploy.benchmarks import statistics
from vitdeploy.errors import GateFailedError, InputError

MIN_IMAGES_FOR_CHANCE = 30
"""Below this, labels cannot be told from shuffled ones (and no verdict passes anyway)."""
LEAST_ENTROPY = 0.5
"""Share of the source's entropy that the engine's predictions keep: one that answers the
largest class almost always loses few points on an imbalanced set, and has collapsed."""


def check_labels(source: NDArray[np.float32], labels: NDArray[np.int64] | None) -> None:
    """Raise InputError unless there is a label an image, each one of the model's classes."""
    if labels is None:
        return
    images, classes = source.shape
    if labels.shape != (images,):
        raise InputError(
            f"there are {labels.shape} labels for {images} images", hint="give one label an image"
        )
    if labels.min() < 0 or labels.max() >= classes:
        raise InputError(
            f"labels reach from {labels.min()} to {labels.max()}, the model has {classes} classes",
            hint="check that the image folder names the model's own classes",
        )


def require_varied(source: NDArray[np.intp], engine: NDArray[np.intp]) -> None:
    """Raise GateFailedError where source or engine answer (nearly) one class, (n,) indices each."""
    if (source == source[0]).all():
        raise GateFailedError(
            f"the source answers class {source[0]} on all {len(source)} images, so agreement "
            "proves nothing",
            hint="give images of several classes, and check weights and preprocessing",
        )
    if (engine == engine[0]).all():
        raise GateFailedError(
            f"the engine answers class {engine[0]} on all {len(engine)} images, the source does "
            "not: the engine has collapsed",
            hint="calibrate with more and more varied images, or keep more nodes in float",
        )
    own, kept = (statistics.prediction_entropy(answers) for answers in (source, engine))
    if kept < LEAST_ENTROPY * own:
        raise GateFailedError(
            f"the engine's answers carry {kept:.2f} bits where the source's carry {own:.2f}: it "
            "prefers a few classes, whatever the image, and has collapsed",
            hint="calibrate with more and more varied images, or keep more nodes in float",
        )


def require_better_than_chance(source: NDArray[np.intp], labels: NDArray[np.int64]) -> None:
    """Refuse labels that could as well be shuffled (a single class cannot be judged so)."""
    n, size = len(labels), int(max(source.max(), labels.max())) + 1
    answered, labelled = (np.bincount(v, minlength=size) / n for v in (source, labels))
    if n < MIN_IMAGES_FOR_CHANCE or labelled.max() == 1:
        return
    chance = float(answered @ labelled)
    right = int((source == labels).sum())
    if stats.binomtest(right, n, chance, alternative="greater").pvalue > 0.05:
        raise GateFailedError(
            f"the source has {right} of {n} images right, no more than the {100 * chance:.1f} % "
            "of chance, so a small drop proves nothing",
            hint="the labels are shifted, shuffled or of another model (check the class order), "
            "or the source itself does not work at this resolution",
        )
