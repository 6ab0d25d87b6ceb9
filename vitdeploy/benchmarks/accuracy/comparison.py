"""What comparisons of every task share: one face for reports, and what makes any of them void."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from vitdeploy.benchmarks import statistics
from vitdeploy.errors import GateFailedError, InputError

Verdict = Literal["pass", "fail", "inconclusive"]

MAX_DISAGREEMENT = 0.02
"""Without labels, the share of its answers that an engine may change.

Of classes: images whose top-1 differs. A trained classifier's labelled drop is a small
part of its disagreement (most flips are between two wrong answers, or cancel), and INT8
graphs that lose under half a point agree on 98 to 99.5 %.
"""
MAX_FLIPPED = 64
"""So many indices of differing images are kept."""
LEAST_SPREAD = 1e-5
"""Answers that differ between images by less, as a share of the largest, differ by rounding."""


@dataclass(frozen=True)
class Loss:
    """What a verdict is about, in percentage points; larger is worse.

    `low` and `high` end the two-sided 95 % interval, `upper` is the one-sided
    95 % bound that must be within `limit`.
    """

    what: str
    value: float
    low: float
    high: float
    upper: float
    limit: float


@dataclass(frozen=True, kw_only=True)
class Comparison(ABC):
    """An engine's answers against its source's, whatever the task.

    `score_name` names the scores ('Top-1', 'mAP', 'Cosine', 'R2'); scores are
    None where there is no such number. `source_entropy_bits` says how much the
    agreement can mean: 0 where one answer serves all images. `flipped` holds
    the indices of at most `MAX_FLIPPED` images that are answered differently,
    and `max_error` is the largest difference over the deviation of the
    source's answers. Each kind has an `agreement` too (None where there is no
    such number), which some keep and some derive.
    """

    images: int
    verdict: Verdict
    images_needed: int | None
    flipped: tuple[int, ...]
    source_entropy_bits: float
    max_error: float

    score_name: ClassVar[str]

    @property
    def source_score(self) -> float | None:
        return None

    @property
    @abstractmethod
    def engine_score(self) -> float | None: ...

    @abstractmethod
    def loss(self) -> Loss:
        """What was lost, against what may be."""

    @abstractmethod
    def in_words(self) -> str:
        """The end of a sentence that begins with the engine: 'loses 0.05 points (...)'."""

    @abstractmethod
    def facts(self) -> tuple[tuple[str, str], ...]:
        """(name, value) of every finding, in the order of importance."""


def verdict_of(lower: float, upper: float, margin: float) -> Verdict:
    """`lower` and `upper` are one-sided 95 % bounds of what was lost."""
    if upper <= margin:
        return "pass"
    return "fail" if lower > margin else "inconclusive"


def worst_of(*verdicts: Verdict) -> Verdict:
    """One failure fails; one open question leaves all open."""
    return max(verdicts, key=("pass", "inconclusive", "fail").index)


def more_than(n: int, needed: int | None) -> int | None:
    """`needed`, which is more than the `n` that did not do."""
    return None if needed is None else max(needed, n + 1)


def judged_mean(losses: NDArray[np.float64], limit: float) -> tuple[Verdict, int | None]:
    """Verdict on the mean of per-image losses in [0, 1], and the images that would settle it."""
    n, total = len(losses), float(losses.sum())
    # The ends of a two-sided 90 % interval are the one-sided 95 % bounds.
    lower, upper = statistics.bounded_mean_interval(total, n, 0.90)
    verdict = verdict_of(lower, upper, limit)
    if verdict != "inconclusive":
        return verdict, None
    return verdict, more_than(n, statistics.images_needed_for_rate(total, n, limit))


def mean_loss(what: str, losses: NDArray[np.float64], limit: float) -> Loss:
    """The mean of per-image losses in [0, 1] with its bounds, in points."""
    n, total = len(losses), float(losses.sum())
    low, high = statistics.bounded_mean_interval(total, n, 0.95)
    upper = statistics.bounded_mean_interval(total, n, 0.90)[1]
    return Loss(what, 100 * total / n, 100 * low, 100 * high, 100 * upper, 100 * limit)


def require_pairs(source: NDArray, engine: NDArray) -> None:
    """Raise InputError unless both are (images, numbers) of at least one image."""
    if source.shape != engine.shape or source.ndim != 2 or source.size == 0:
        raise InputError(
            f"cannot compare answers {source.shape} with {engine.shape}",
            hint="both must be (images, numbers), of the same images, and at least one",
        )


def require_finite(answers: NDArray, who: str) -> None:
    """Raise GateFailedError for rows that are not finite: they never count as agreement."""
    broken = np.flatnonzero(~np.isfinite(answers).all(axis=1))
    if len(broken):
        raise GateFailedError(
            f"{who} answers {len(broken)} of {len(answers)} images with values that are not "
            f"finite, first image {broken[0]}",
            hint="an FP16 graph that overflows does this: keep the nodes that overflow in FP32",
        )


def require_spread(source: NDArray, engine: NDArray) -> None:
    """Raise GateFailedError where either answers (nearly) the same whatever the image."""
    if _is_constant(source):
        raise GateFailedError(
            f"the source answers all {len(source)} images alike, so agreement proves nothing",
            hint="give images that differ, and check weights and preprocessing",
        )
    if _is_constant(engine):
        raise GateFailedError(
            f"the engine answers all {len(engine)} images alike, the source does not: "
            "the engine has collapsed",
            hint="calibrate with more and more varied images, or keep more nodes in float",
        )


def _is_constant(answers: NDArray) -> bool:
    largest = float(np.abs(answers).max())
    return float(np.ptp(answers, axis=0).max()) <= LEAST_SPREAD * largest


def cosines(a: NDArray[np.float64], b: NDArray[np.float64]) -> NDArray[np.float64]:
    """(n,) cosines between the rows of both; 0 where one of a pair is all zero."""
    norms = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    products = (a * b).sum(axis=1)
    return np.divide(products, norms, out=np.zeros_like(products), where=norms > 0)


def max_error(source: NDArray, engine: NDArray) -> float:
    """The largest difference over the deviation of the source's answers."""
    reference = source.astype(np.float64)
    return float(np.abs(engine - reference).max() / reference.std())
