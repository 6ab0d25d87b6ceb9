"""`AccuracyComparison`: what an engine answers against what its source answers, image by image."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from scipy import special

from vitdeploy.benchmarks import statistics
from vitdeploy.benchmarks.accuracy.comparison import (
    MAX_DISAGREEMENT,
    MAX_FLIPPED,
    Comparison,
    Loss,
    Verdict,
    cosines,
    max_error,
    more_than,
    require_finite,
    require_pairs,
    verdict_of,
)
from vitdeploy.benchmarks.accuracy.vacuous import (
    check_labels,
    require_better_than_chance,
    require_varied,
)
from vitdeploy.errors import InputError


@dataclass(frozen=True)
class ClassChange:
    """How many of a class's images the source and the engine have right."""

    index: int
    images: int
    source_right: int
    engine_right: int


@dataclass(frozen=True, kw_only=True)
class AccuracyComparison(Comparison):
    """Paired results of source and engine on the same images.

    Rates are shares in [0, 1]; what ends in `_points` is in percentage points.
    `lost` counts images the source alone has right, `gained` those the engine
    alone has right; without labels both are 0 and all that needs labels is None.
    `agreement_interval` and `drop_interval_points` are two-sided 95 %,
    `drop_upper_points` is one-sided 95 %. `max_error` is the largest logit
    difference over the deviation of the source's logits. Without labels the
    verdict judges the disagreement against `MAX_DISAGREEMENT`. `flipped` holds
    the indices of the first `MAX_FLIPPED` images whose top-1 differs. The ECE
    (calibration error) is in [0, 1]; top-5 is None of models with fewer than
    six classes. `classes` has an entry for each class that has images.
    """

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
    cosine_mean: float
    cosine_min: float
    max_drop_points: float
    engine_entropy_bits: float | None = None
    source_top5: float | None = None
    engine_top5: float | None = None
    source_ece: float | None = None
    engine_ece: float | None = None
    classes: tuple[ClassChange, ...] = ()
    kind: Literal["classes"] = "classes"

    score_name: ClassVar[str] = "Top-1"

    def __post_init__(self) -> None:
        if self.images < 1 or self.max_drop_points <= 0:
            raise InputError(
                f"{self.images} images may lose {self.max_drop_points} points, "
                "and both must be above zero",
                hint="evaluate again",
            )

    @property
    def source_score(self) -> float | None:
        return self.source_top1

    @property
    def engine_score(self) -> float | None:
        return self.engine_top1

    def loss(self) -> Loss:
        """The drop where there are labels, else the disagreement."""
        limit = self.max_drop_points
        if self.drop_points is not None and self.drop_interval_points is not None:
            low, high = self.drop_interval_points
            upper = high if self.drop_upper_points is None else self.drop_upper_points
            return Loss("drop", self.drop_points, low, high, upper, limit)
        low, high = (100 * (1 - end) for end in reversed(self.agreement_interval))
        different = round((1 - self.agreement) * self.images)
        upper = statistics.proportion_interval(different, self.images, 0.90)[1]
        value = 100 * (1 - self.agreement)
        return Loss("differ", value, low, high, 100 * upper, 100 * MAX_DISAGREEMENT)

    def in_words(self) -> str:
        if self.drop_points is None or self.drop_upper_points is None:
            low, high = self.agreement_interval
            return (
                f"agrees with it on {100 * self.agreement:.2f} % of images "
                f"({100 * low:.2f} to {100 * high:.2f} with 95 % confidence)"
            )
        change = "gains" if self.drop_points < 0 else "loses"
        worst = "loses at most" if self.drop_points < 0 else "at most"
        return (
            f"{change} {abs(self.drop_points):.2f} points "
            f"({worst} {max(0.0, self.drop_upper_points):.2f} with 95 % confidence)"
        )

    def facts(self) -> tuple[tuple[str, str], ...]:
        low, high = self.agreement_interval
        found = [
            (
                "agreement",
                f"{self.agreement:.2%} (95 % interval {low:.2%} to {high:.2%}); entropy of "
                f"the source's answers {self.source_entropy_bits:.2f} bits",
            )
        ]
        if self.labelled and self.drop_points is not None and self.mcnemar_p is not None:
            found += [
                ("top-1", f"{self.engine_top1:.2%}, the source {self.source_top1:.2%}"),
                (
                    "drop",
                    f"{self.drop_points:+.2f} points, at most {self.drop_upper_points:.2f} with "
                    f"95 % confidence ({self.lost} lost, {self.gained} gained; McNemar "
                    f"p = {self.mcnemar_p:.3g})",
                ),
            ]
            if self.engine_top5 is not None:
                found.append(
                    ("top-5", f"{self.engine_top5:.2%}, the source {self.source_top5:.2%}")
                )
            if self.engine_ece is not None:
                found.append(
                    (
                        "calibration error",
                        f"{self.engine_ece:.4f}, the source {self.source_ece:.4f}",
                    )
                )
        found.append(
            (
                "logits",
                f"cosine at least {self.cosine_min:.5f}, largest error "
                f"{self.max_error:.3f} deviations",
            )
        )
        return tuple(found)

    def most_changed(self, most: int = 5) -> tuple[ClassChange, ...]:
        """The classes whose accuracy changed, those that lost most images first."""
        changed = [c for c in self.classes if c.source_right != c.engine_right]
        return tuple(sorted(changed, key=lambda c: c.engine_right - c.source_right)[:most])


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
    source_top5: float | None = None
    engine_top5: float | None = None
    source_ece: float | None = None
    engine_ece: float | None = None
    classes: tuple[ClassChange, ...] = ()


def compare(
    source_logits: NDArray[np.float32],
    engine_logits: NDArray[np.float32],
    labels: NDArray[np.int64] | None,
    *,
    max_drop_points: float = 0.5,
    probabilities: bool = False,
) -> AccuracyComparison:
    """Compare an engine's answers with its source's on the same images.

    Both logits are (n, classes), row i of both of the same image; `labels`
    are (n,) class indices. With `probabilities` the rows add up to one already.
    2,000 images of which the source alone has 3 right and the engine alone 2
    drop 0.05 points, at most 0.29, and pass at 0.5.

    With labels: pass where the one-sided 95 % upper bound of the drop is
    within `max_drop_points`, fail where its lower bound is above, else
    inconclusive. Without: the same with the rate of disagreement.

    Raises InputError for shapes that do not pair up and impossible labels;
    GateFailedError for rows that are not finite, for an engine or source that
    answers one class whatever the image (an engine also where its answers keep
    less than half of the source's entropy), and for labels that the source does
    not match better than chance: there, agreement or a small drop is free.
    """
    require_pairs(source_logits, engine_logits)
    check_labels(source_logits, labels)
    require_finite(source_logits, "the source")
    require_finite(engine_logits, "the engine")
    source, engine = source_logits.argmax(axis=1), engine_logits.argmax(axis=1)
    require_varied(source, engine)
    images, agreeing = len(source), int((source == engine).sum())
    if labels is None:
        judged = _judge_disagreement(images - agreeing, images)
    else:
        require_better_than_chance(source, labels)
        judged = _judge_drop(source == labels, engine == labels, max_drop_points)
        judged = _with_labels(judged, source_logits, engine_logits, labels, probabilities)
    cosine = cosines(source_logits.astype(np.float64), engine_logits.astype(np.float64))
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
        max_error=max_error(source_logits, engine_logits),
        verdict=judged.verdict,
        max_drop_points=max_drop_points,
        images_needed=judged.images_needed,
        flipped=tuple(int(i) for i in np.flatnonzero(source != engine)[:MAX_FLIPPED]),
        engine_entropy_bits=statistics.prediction_entropy(engine),
        source_top5=judged.source_top5,
        engine_top5=judged.engine_top5,
        source_ece=judged.source_ece,
        engine_ece=judged.engine_ece,
        classes=judged.classes,
    )


def _with_labels(
    judged: _Judgement,
    source: NDArray[np.float32],
    engine: NDArray[np.float32],
    labels: NDArray[np.int64],
    probabilities: bool,
) -> _Judgement:
    """What labels tell beside the drop: top-5, calibration error, and each class by itself."""

    def right(logits: NDArray) -> NDArray[np.int64]:
        hits = logits.argmax(axis=1) == labels
        return np.bincount(labels[hits], minlength=logits.shape[1])

    def ece(logits: NDArray) -> float:
        shares = logits if probabilities else special.softmax(logits.astype(np.float64), axis=1)
        return statistics.calibration_error(shares, labels)

    has_five = source.shape[1] > 5
    counts = np.bincount(labels, minlength=source.shape[1])
    by_class = zip(counts, right(source), right(engine), strict=True)
    return replace(
        judged,
        source_top5=_top_k(source, labels, 5) if has_five else None,
        engine_top5=_top_k(engine, labels, 5) if has_five else None,
        source_ece=ece(source),
        engine_ece=ece(engine),
        classes=tuple(
            ClassChange(index, int(images), int(of_source), int(of_engine))
            for index, (images, of_source, of_engine) in enumerate(by_class)
            if images
        ),
    )


def _top_k(logits: NDArray, labels: NDArray[np.int64], k: int) -> float:
    """Share of images whose label is among the k largest; of equals the first come first."""
    own = logits[np.arange(len(labels)), labels][:, None]
    before = np.arange(logits.shape[1]) < labels[:, None]
    return float((((logits > own) | ((logits == own) & before)).sum(axis=1) < k).mean())


def _judge_drop(
    source_right: NDArray[np.bool_], engine_right: NDArray[np.bool_], max_drop_points: float
) -> _Judgement:
    n, margin = len(source_right), max_drop_points / 100
    lost = int((source_right & ~engine_right).sum())
    gained = int((engine_right & ~source_right).sum())
    low, high = statistics.tango_interval(lost, gained, n, 0.95)
    upper = statistics.tango_upper(lost, gained, n)
    lower = -statistics.tango_upper(gained, lost, n)
    verdict = verdict_of(lower, upper, margin)
    needed = statistics.images_needed(lost, gained, n, margin)
    return _Judgement(
        verdict=verdict,
        images_needed=more_than(n, needed) if verdict == "inconclusive" else None,
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
    verdict = verdict_of(lower, upper, MAX_DISAGREEMENT)
    needed = statistics.images_needed_for_rate(different, n, MAX_DISAGREEMENT)
    return _Judgement(verdict, more_than(n, needed) if verdict == "inconclusive" else None)
