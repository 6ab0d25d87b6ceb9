"""`MultilabelComparison`: heads that may give an image any number of labels."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from vitdeploy.benchmarks import statistics
from vitdeploy.benchmarks.accuracy import ranking
from vitdeploy.benchmarks.accuracy.comparison import (
    MAX_DISAGREEMENT,
    MAX_FLIPPED,
    Comparison,
    Loss,
    Verdict,
    judged_mean,
    max_error,
    mean_loss,
    more_than,
    require_finite,
    require_pairs,
    require_spread,
    verdict_of,
)
from vitdeploy.benchmarks.accuracy.vacuous import MIN_IMAGES_FOR_CHANCE
from vitdeploy.errors import GateFailedError, InputError


@dataclass(frozen=True, kw_only=True)
class MultilabelComparison(Comparison):
    """Paired results of a multi-label source and engine on the same images.

    `agreement` is the mean over the images of the labels both give, as a share
    of those that either gives (1 where neither gives any), at a probability of
    one half. Where there are true labels the verdict is on the drop of the mean
    average precision (mAP), in points; without, on the disagreement, against
    `MAX_DISAGREEMENT`. `source_entropy_bits` is the entropy of the label sets.
    `flipped` holds images whose label sets differ.
    """

    labelled: bool
    source_map: float | None
    engine_map: float | None
    agreement: float
    judged: Loss
    labels_per_image: float
    kind: Literal["multilabel"] = "multilabel"

    score_name: ClassVar[str] = "mAP"

    @property
    def source_score(self) -> float | None:
        return self.source_map

    @property
    def engine_score(self) -> float | None:
        return self.engine_map

    def loss(self) -> Loss:
        return self.judged

    def in_words(self) -> str:
        loss = self.judged
        if self.labelled:
            change = "gains" if loss.value < 0 else "loses"
            return (
                f"{change} {abs(loss.value):.2f} points of mAP "
                f"(loses at most {max(0.0, loss.upper):.2f} with 95 % confidence)"
            )
        return (
            f"gives {100 * self.agreement:.2f} % of the same labels "
            f"({100 - loss.upper:.2f} % at least with 95 % confidence)"
        )

    def facts(self) -> tuple[tuple[str, str], ...]:
        found = [
            (
                "label agreement",
                f"{self.agreement:.2%} of the labels that either gives; the source gives "
                f"{self.labels_per_image:.2f} an image, its label sets carry "
                f"{self.source_entropy_bits:.2f} bits",
            )
        ]
        if self.source_map is not None and self.engine_map is not None:
            found.append(
                (
                    "mAP",
                    f"{self.engine_map:.2%}, the source {self.source_map:.2%}; drop "
                    f"{self.judged.value:+.2f} points, at most {self.judged.upper:.2f} with 95 % "
                    "confidence",
                )
            )
        found.append(("largest error", f"{self.max_error:.3f} deviations"))
        return tuple(found)


def compare_multilabel(
    source: NDArray[np.float32],
    engine: NDArray[np.float32],
    truth: NDArray[np.bool_] | None,
    *,
    max_drop_points: float = 0.5,
    probabilities: bool = False,
) -> MultilabelComparison:
    """Compare multi-label scores, (images, classes) each; `truth` is of the same shape.

    The scores are logits, or `probabilities`. The drop's interval comes from
    `ranking.RESAMPLES` draws of images, the same for both. As with classes, an
    engine that differs nowhere has lost up to z^2 / (n + z^2): 0.5 points need
    539 images.

    Raises InputError for shapes that do not pair up; GateFailedError for rows
    that are not finite, a source or engine that answers all images alike (or,
    without `truth`, gives all the same labels), and for labels that the source
    does not rank better than shuffled ones.
    """
    require_pairs(source, engine)
    if truth is not None and (truth.shape != source.shape or not truth.any()):
        raise InputError(
            f"labels of {truth.shape} with {int(truth.sum())} marks do not go with scores of "
            f"{source.shape}",
            hint="check that the labels are the model's own classes",
        )
    require_finite(source, "the source")
    require_finite(engine, "the engine")
    require_spread(source, engine)
    threshold = 0.5 if probabilities else 0.0
    own, given = source > threshold, engine > threshold
    either = (own | given).sum(axis=1)
    lost = np.where(either > 0, (own ^ given).sum(axis=1) / np.maximum(either, 1), 0.0)
    entropy = statistics.prediction_entropy(np.unique(own, axis=0, return_inverse=True)[1].ravel())
    if truth is None:
        _require_sets(entropy, len(source))
        verdict, needed = judged_mean(lost, MAX_DISAGREEMENT)
        loss, maps = mean_loss("labels that differ", lost, MAX_DISAGREEMENT), (None, None)
    else:
        _require_meaning(source, truth)
        loss, maps = _drop(source, engine, truth, max_drop_points)
        verdict, needed = _judged(loss, len(source))
    return MultilabelComparison(
        images=len(source),
        labelled=truth is not None,
        source_map=maps[0],
        engine_map=maps[1],
        agreement=float(1 - lost.mean()),
        judged=loss,
        labels_per_image=float(own.sum(axis=1).mean()),
        source_entropy_bits=entropy,
        max_error=max_error(source, engine),
        verdict=verdict,
        images_needed=needed,
        flipped=tuple(int(i) for i in np.flatnonzero(lost)[:MAX_FLIPPED]),
    )


def _drop(
    source: NDArray, engine: NDArray, truth: NDArray[np.bool_], limit: float
) -> tuple[Loss, tuple[float, float]]:
    maps = tuple(ranking.mean_average_precision(scores, truth) for scores in (source, engine))
    drop = 100 * (maps[0] - maps[1])
    drawn = 100 * ranking.resampled_drops(source, engine, truth)
    low, high, upper = np.quantile(drawn, (0.025, 0.975, 0.95))
    unseen = 100 * statistics.bounded_mean_interval(0, len(source), 0.90)[1]
    upper = max(float(upper), drop + unseen)
    loss = Loss("mAP drop", drop, float(min(low, drop)), float(max(high, drop)), upper, limit)
    return loss, (maps[0], maps[1])


def _judged(loss: Loss, n: int) -> tuple[Verdict, int | None]:
    # By symmetry: the bound below lies as far from the drop as the bound above.
    verdict = verdict_of(2 * loss.value - loss.upper, loss.upper, loss.limit)
    if verdict != "inconclusive" or loss.value >= loss.limit:
        return verdict, None
    shrink = (loss.upper - loss.value) / (loss.limit - loss.value)
    return verdict, more_than(n, math.ceil(n * shrink**2))


def _require_sets(entropy: float, n: int) -> None:
    if entropy == 0:
        raise GateFailedError(
            f"the source gives all {n} images the same labels, so agreement proves nothing",
            hint="give images of several classes, and check weights and preprocessing",
        )


def _require_meaning(source: NDArray, truth: NDArray[np.bool_]) -> None:
    same = (truth == truth[0]).all()
    if len(source) < MIN_IMAGES_FOR_CHANCE or same or ranking.beats_shuffled(source, truth):
        return
    raise GateFailedError(
        "the source ranks these labels no better than shuffled ones, so a small drop proves "
        "nothing",
        hint="the labels are shifted, shuffled or of another model (check the class order), "
        "or the source itself does not work at this resolution",
    )
