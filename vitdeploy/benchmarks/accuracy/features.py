"""`FeatureComparison`: feature towers, judged by direction and by whom each image resembles.

Features have no classes. What they are used for is similarity (retrieval,
clustering) and linear probes, so an engine is good where each image's features
point where the source's do, and its nearest neighbours stay.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from vitdeploy.benchmarks import statistics
from vitdeploy.benchmarks.accuracy.comparison import (
    MAX_DISAGREEMENT,
    MAX_FLIPPED,
    Comparison,
    Loss,
    cosines,
    judged_mean,
    max_error,
    mean_loss,
    require_finite,
    require_pairs,
    require_spread,
    worst_of,
)
from vitdeploy.errors import InputError

MAX_LOST_COSINE = MAX_DISAGREEMENT
"""Mean 1 - cosine that may be lost: 0.02 is what FP16 and INT8 graphs are held to where they
are made, and turns features by 11 degrees."""
MAX_LOST_NEIGHBOURS = 0.10
"""Share of the ten nearest neighbours that may change: the tenth and the eleventh are often
as near as rounding, and swapping them costs nobody anything (see docs/evaluating.md)."""
NEIGHBOURS = 10
_ROWS = 512
"""Images whose similarities are held at once."""


@dataclass(frozen=True, kw_only=True)
class FeatureComparison(Comparison):
    """Paired features of source and engine on the same images.

    Cosines are of features less the source's mean over the images, a number
    an image, so that what all images share hides nothing. `nearest_kept` is
    the share of images whose nearest other image is the same, `neighbours_kept`
    the mean share of the ten nearest that are. `source_entropy_bits` is the
    entropy of the nearest images: 0 where one image is everyone's nearest.
    `lost_cosine` and `lost_neighbours` are in points, and the verdict is the
    worse of both. `flipped` holds images whose nearest differs.
    """

    cosine_mean: float
    cosine_min: float
    nearest_kept: float
    nearest_interval: tuple[float, float]
    neighbours_kept: float
    lost_cosine: Loss
    lost_neighbours: Loss
    kind: Literal["features"] = "features"

    score_name: ClassVar[str] = "Cosine"

    @property
    def engine_score(self) -> float | None:
        return self.cosine_mean

    @property
    def agreement(self) -> float | None:
        return self.nearest_kept

    def loss(self) -> Loss:
        """Of the two judged losses the one that takes more of its limit."""
        both = (self.lost_cosine, self.lost_neighbours)
        return max(both, key=lambda loss: loss.upper / loss.limit)

    def in_words(self) -> str:
        return (
            f"keeps a mean cosine of {self.cosine_mean:.4f} and "
            f"{100 * self.neighbours_kept:.1f} % of the {NEIGHBOURS} nearest neighbours "
            f"({100 - self.lost_neighbours.upper:.1f} % at least with 95 % confidence)"
        )

    def facts(self) -> tuple[tuple[str, str], ...]:
        low, high = self.nearest_interval
        return (
            (
                "centred cosine",
                f"{self.cosine_mean:.5f} in the mean, {self.cosine_min:.5f} at least; "
                f"{_bound(self.lost_cosine)}",
            ),
            (
                f"{NEIGHBOURS} nearest neighbours kept",
                f"{self.neighbours_kept:.2%}; {_bound(self.lost_neighbours)}",
            ),
            (
                "nearest neighbour kept",
                f"{self.nearest_kept:.2%} (95 % interval {low:.2%} to {high:.2%}); the source's "
                f"nearest images carry {self.source_entropy_bits:.2f} bits",
            ),
            ("largest error", f"{self.max_error:.3f} deviations"),
        )


def _bound(loss: Loss) -> str:
    return f"lost at most {loss.upper:.2f} points with 95 % confidence, limit {loss.limit:.2f}"


def compare_features(source: NDArray[np.float32], engine: NDArray[np.float32]) -> FeatureComparison:
    """Compare features, (images, ...) each, row i of both of the same image.

    Tokens, (images, tokens, width), are compared as one long row an image. Of
    1,000 images, features whose error is a tenth of their deviation keep a
    cosine of 0.995.

    Raises InputError for shapes that do not pair up and for fewer images than
    `NEIGHBOURS` + 2; GateFailedError for rows that are not finite and where
    source or engine answer all images alike.
    """
    source, engine = (
        rows.reshape(len(rows), math.prod(rows.shape[1:])) for rows in (source, engine)
    )
    require_pairs(source, engine)
    if len(source) < NEIGHBOURS + 2:
        raise InputError(
            f"{len(source)} images have no {NEIGHBOURS} neighbours each to compare",
            hint=f"give at least {NEIGHBOURS + 2} images; a few hundred decide",
        )
    require_finite(source, "the source")
    require_finite(engine, "the engine")
    require_spread(source, engine)
    center = source.mean(axis=0, dtype=np.float64)
    a, b = source - center, engine - center
    cosine = cosines(a, b)
    near_source, near_engine = (nearest(rows, NEIGHBOURS) for rows in (a, b))
    kept = np.array(
        [
            len(np.intersect1d(x, y)) / NEIGHBOURS
            for x, y in zip(near_source, near_engine, strict=True)
        ]
    )
    same_nearest = near_source[:, 0] == near_engine[:, 0]
    lost_cosine, lost_neighbours = np.clip(1 - cosine, 0, 1), 1 - kept
    by_cosine, by_neighbours = (
        judged_mean(lost_cosine, MAX_LOST_COSINE),
        judged_mean(lost_neighbours, MAX_LOST_NEIGHBOURS),
    )
    verdict = worst_of(by_cosine[0], by_neighbours[0])
    needed = [images for judged, images in (by_cosine, by_neighbours) if judged == verdict]
    return FeatureComparison(
        images=len(source),
        cosine_mean=float(cosine.mean()),
        cosine_min=float(cosine.min()),
        nearest_kept=float(same_nearest.mean()),
        nearest_interval=statistics.proportion_interval(int(same_nearest.sum()), len(source), 0.95),
        neighbours_kept=float(kept.mean()),
        lost_cosine=mean_loss("1 - cosine", lost_cosine, MAX_LOST_COSINE),
        lost_neighbours=mean_loss("neighbours lost", lost_neighbours, MAX_LOST_NEIGHBOURS),
        source_entropy_bits=statistics.prediction_entropy(near_source[:, 0]),
        max_error=max_error(source, engine),
        verdict=verdict,
        images_needed=None if None in needed else max(n for n in needed if n is not None),
        flipped=tuple(int(i) for i in np.flatnonzero(~same_nearest)[:MAX_FLIPPED]),
    )


def nearest(rows: NDArray[np.float64], count: int) -> NDArray[np.intp]:
    """(n, count) indices of the other rows with the largest cosine, the nearest first.

    Every pair is looked at, `_ROWS` rows at a time; of equally near ones the first come first.
    """
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    unit = (rows / np.where(norms > 0, norms, 1)).astype(np.float32)
    found = np.empty((len(unit), count), np.intp)
    for start in range(0, len(unit), _ROWS):
        part = slice(start, min(start + _ROWS, len(unit)))
        likeness = unit[part] @ unit.T
        likeness[np.arange(len(likeness)), np.arange(part.start, part.stop)] = -np.inf
        found[part] = np.argsort(-likeness, axis=1, kind="stable")[:, :count]
    return found
