"""One way to call the comparisons of every kind of model."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitdeploy.benchmarks.accuracy.classes import AccuracyComparison, compare
from vitdeploy.benchmarks.accuracy.features import FeatureComparison, compare_features
from vitdeploy.benchmarks.accuracy.kinds import Kind
from vitdeploy.benchmarks.accuracy.multilabel import MultilabelComparison, compare_multilabel
from vitdeploy.benchmarks.accuracy.regression import RegressionComparison, compare_regression
from vitdeploy.images import ImageSet

AnyComparison = AccuracyComparison | FeatureComparison | MultilabelComparison | RegressionComparison


def judge(
    kind: Kind,
    source: NDArray[np.float32],
    engine: NDArray[np.float32],
    images: ImageSet,
    *,
    max_drop_points: float = 0.5,
    probabilities: bool = False,
) -> AnyComparison:
    """Compare two sets of answers on the same images; see the comparison of each kind.

    `max_drop_points` is of top-1 or mAP; without labels, and for features and
    numbers, the documented bounds hold. Raises what those comparisons raise.
    """
    if kind == "features":
        return compare_features(source, engine)
    if kind == "regression":
        return compare_regression(source, engine)
    options: dict[str, Any] = {"max_drop_points": max_drop_points, "probabilities": probabilities}
    if kind == "multilabel":
        truth = images.truth(source.shape[1]) if images.is_labelled else None
        return compare_multilabel(source, engine, truth, **options)
    labels = images.label_indices() if images.is_labelled else None
    return compare(source, engine, labels, **options)
