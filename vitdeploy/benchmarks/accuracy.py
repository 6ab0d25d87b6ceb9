"""`AccuracyComparison`: what an engine answers against what its source answers, image by image."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from vitdeploy.benchmarks import statistics
from vitdeploy.errors import GateFailedError, InputError

Verdict = Literal["pass", "fail", "inconclusive"]

MAX_DISAGREEMENT = 0.02
"""Without labels, the share of images whose top-1 may differ from the source's."""
MAX_FLIPPED = 64
"""So many indices of differing images are kept."""
MIN_IMAGES_FOR_CHANCE = 30
"""Below this, labels cannot be told from shuffled ones (and no verdict passes anyway)."""


@dataclass(frozen=True)
class AccuracyComparison:
    """Paired results of source and engine on the same images.

    Rates are shares in [0, 1]; what ends in `_points` is in percentage points.
    `lost` counts images the source alone has right, `gained` those the engine
    alone has right; without labels both are 0 and all that needs labels is None.
    `agreement_interval` and `drop_interval_points` are two-sided 95 %,
    `drop_upper_points` is one-sided 95 %. `max_error` is the largest logit
    difference over the deviation of the source's logits. Without labels the
    verdict judges the disagreement against `MAX_DISAGREEMENT`. `flipped` holds
    the indices of the first `MAX_FLIPPED` images whose top-1 differs.
    """

    images: int
    labelled: bool
    source_top1: float | None
    engine_top1: float | None
    agreement: float
    agreement_interval: tuple[float, float]
    lost: int
    gained: int
    drop_points: float | None
    drop_interval_points: tuple[float, float] | None
    drop_upper_points: float | None
    mcnemar_p: float | None
    source_entropy_bits: float
    cosine_mean: float
    cosine_min: float
    max_error: float
    verdict: Verdict
    max_drop_points: float
    images_needed: int | None
    flipped: tuple[int, ...]

    def __post_init__(self) -> None:
        if self.images < 1 or self.max_drop_points <= 0:
            raise InputError(
                f"{self.images} images may lose {self.max_drop_points} points, "
                "and both must be above zero",
                hint="evaluate again",
            )


@dataclass(frozen=True)
class _Judgement:
    """The part of a comparison that depends on whether there are labels."""

    verdict: Verdict
    images_needed: int | None
    source_top1: float | None = None
    engine_top1: float | None = None
    lost: int = 0
    gained: int = 0
    drop_points: float | None = None
    drop_interval_points: tuple[float, float] | None = None
    drop_upper_points: float | None = None
    mcnemar_p: float | None = None


def compare(
    source_logits: NDArray[np.float32],
    engine_logits: NDArray[np.float32],
    labels: NDArray[np.int64] | None,
    *,
    max_drop_points: float = 0.5,
) -> AccuracyComparison:
    """Compare an engine's answers with its source's on the same images.

    Both logits are (n, classes), row i of both of the same image; `labels`
    are (n,) class indices. 2,000 images of which the source alone has 3 right
    and the engine alone 2 drop 0.05 points, at most 0.29, and pass at 0.5.

    With labels: pass where the one-sided 95 % upper bound of the drop is
    within `max_drop_points`, fail where its lower bound is above, else
    inconclusive. Without: the same with the rate of disagreement.

    Raises InputError for shapes that do not pair up and impossible labels;
    GateFailedError for rows that are not finite, for an engine or source that
    answers one class whatever the image, and for labels that the source does
    not match better than chance: there, agreement or a small drop is free.
    """
    _check_shapes(source_logits, engine_logits, labels)
    _require_finite(source_logits, "the source")
    _require_finite(engine_logits, "the engine")
    source, engine = source_logits.argmax(axis=1), engine_logits.argmax(axis=1)
    _require_varied(source, engine)
    images, agreeing = len(source), int((source == engine).sum())
    if labels is None:
        judged = _judge_disagreement(images - agreeing, images)
    else:
        _require_better_than_chance(source, labels)
        judged = _judge_drop(source == labels, engine == labels, max_drop_points)
    cosine = _cosines(source_logits, engine_logits)
    return AccuracyComparison(
        images=images,
        labelled=labels is not None,
        source_top1=judged.source_top1,
        engine_top1=judged.engine_top1,
        agreement=agreeing / images,
        agreement_interval=statistics.proportion_interval(agreeing, images, 0.95),
        lost=judged.lost,
        gained=judged.gained,
        drop_points=judged.drop_points,
        drop_interval_points=judged.drop_interval_points,
        drop_upper_points=judged.drop_upper_points,
        mcnemar_p=judged.mcnemar_p,
        source_entropy_bits=statistics.prediction_entropy(source),
        cosine_mean=float(cosine.mean()),
        cosine_min=float(cosine.min()),
        max_error=_max_error(source_logits, engine_logits),
        verdict=judged.verdict,
        max_drop_points=max_drop_points,
        images_needed=judged.images_needed,
        flipped=tuple(int(i) for i in np.flatnonzero(source != engine)[:MAX_FLIPPED]),
    )


def _judge_drop(
    source_right: NDArray[np.bool_], engine_right: NDArray[np.bool_], max_drop_points: float
) -> _Judgement:
    n, margin = len(source_right), max_drop_points / 100
    lost = int((source_right & ~engine_right).sum())
    gained = int((engine_right & ~source_right).sum())
    low, high = statistics.tango_interval(lost, gained, n, 0.95)
    upper = statistics.tango_upper(lost, gained, n)
    lower = -statistics.tango_upper(gained, lost, n)
    verdict = _verdict(lower, upper, margin)
    needed = statistics.images_needed(lost, gained, n, margin)
    return _Judgement(
        verdict=verdict,
        images_needed=_more_than(n, needed) if verdict == "inconclusive" else None,
        source_top1=float(source_right.mean()),
        engine_top1=float(engine_right.mean()),
        lost=lost,
        gained=gained,
        drop_points=100 * (lost - gained) / n,
        drop_interval_points=(100 * low, 100 * high),
        drop_upper_points=100 * upper,
        mcnemar_p=statistics.mcnemar_exact(lost, gained),
    )


def _judge_disagreement(different: int, n: int) -> _Judgement:
    # The ends of a two-sided 90 % interval are the one-sided 95 % bounds.
    lower, upper = statistics.proportion_interval(different, n, 0.90)
    verdict = _verdict(lower, upper, MAX_DISAGREEMENT)
    needed = statistics.images_needed_for_rate(different, n, MAX_DISAGREEMENT)
    return _Judgement(verdict, _more_than(n, needed) if verdict == "inconclusive" else None)


def _verdict(lower: float, upper: float, margin: float) -> Verdict:
    if upper <= margin:
        return "pass"
    return "fail" if lower > margin else "inconclusive"


def _more_than(n: int, needed: int | None) -> int | None:
    return None if needed is None else max(needed, n + 1)


def _check_shapes(
    source: NDArray[np.float32], engine: NDArray[np.float32], labels: NDArray[np.int64] | None
) -> None:
    if source.shape != engine.shape or source.ndim != 2 or source.size == 0:
        raise InputError(
            f"cannot compare logits {source.shape} with {engine.shape}",
            hint="both must be (images, classes), of the same images, and at least one",
        )
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


def _require_finite(logits: NDArray[np.float32], who: str) -> None:
    broken = np.flatnonzero(~np.isfinite(logits).all(axis=1))
    if len(broken):
        raise GateFailedError(
            f"{who} answers {len(broken)} of {len(logits)} images with values that are not "
            f"finite, first image {broken[0]}",
            hint="an FP16 graph that overflows does this: keep the nodes that overflow in FP32",
        )


def _require_varied(source: NDArray[np.intp], engine: NDArray[np.intp]) -> None:
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


def _require_better_than_chance(source: NDArray[np.intp], labels: NDArray[np.int64]) -> None:
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


def _cosines(source: NDArray[np.float32], engine: NDArray[np.float32]) -> NDArray[np.float64]:
    """(n,) cosines between the logits of each image; 0 where one of both is all zero."""
    a, b = source.astype(np.float64), engine.astype(np.float64)
    norms = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    products = (a * b).sum(axis=1)
    return np.divide(products, norms, out=np.zeros_like(products), where=norms > 0)


def _max_error(source: NDArray[np.float32], engine: NDArray[np.float32]) -> float:
    reference = source.astype(np.float64)
    return float(np.abs(engine - reference).max() / reference.std())
