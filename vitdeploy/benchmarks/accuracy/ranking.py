"""Mean average precision of multi-label scores, and how it changes when images are drawn anew."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

RESAMPLES = 1000
PERMUTATIONS = 39
"""So many shuffles of the labels; to beat them all happens by chance once in forty times."""
_CHUNK = 50
"""Resamples held in memory at once."""


def mean_average_precision(scores: NDArray[np.floating], truth: NDArray[np.bool_]) -> float:
    """Mean over the classes that have a positive image; (images, classes) both.

    Average precision is the sum over thresholds of the recall gained times the precision
    there, without interpolation; images with equal scores count as one step.
    """
    return float(resampled_map(scores, truth, np.ones((1, len(scores)), np.int64))[0])


def resampled_map(
    scores: NDArray[np.floating], truth: NDArray[np.bool_], weights: NDArray[np.integer]
) -> NDArray[np.float64]:
    """(draws,) mean average precisions; `weights` (draws, images) says how often each counts.

    A class without a positive in a draw is left out of that draw's mean.
    """
    total = np.zeros(len(weights))
    present = np.zeros(len(weights))
    for column in np.flatnonzero(truth.any(axis=0)):
        order = np.argsort(-scores[:, column], kind="stable")
        ordered = scores[order, column]
        ends = np.append(np.flatnonzero(np.diff(ordered)), len(ordered) - 1)
        counted = weights[:, order].astype(np.float64)
        hits = np.cumsum(counted * truth[order, column], axis=1)[:, ends]
        seen = np.cumsum(counted, axis=1)[:, ends]
        precision = np.divide(hits, seen, out=np.zeros_like(hits), where=seen > 0)
        gained = np.diff(hits, axis=1, prepend=0)
        positives = hits[:, -1]
        average = np.divide(
            (gained * precision).sum(axis=1),
            positives,
            out=np.zeros(len(weights)),
            where=positives > 0,
        )
        total += average
        present += positives > 0
    return np.divide(total, present, out=np.zeros(len(weights)), where=present > 0)


def resampled_drops(
    source: NDArray[np.floating],
    engine: NDArray[np.floating],
    truth: NDArray[np.bool_],
    seed: int = 0,
) -> NDArray[np.float64]:
    """(`RESAMPLES`,) drops of the mean average precision, the same images drawn for both."""
    generator = np.random.default_rng(seed)
    n, drops = len(source), []
    for _ in range(0, RESAMPLES, _CHUNK):
        weights = generator.multinomial(n, np.full(n, 1 / n), size=_CHUNK)
        drops.append(resampled_map(source, truth, weights) - resampled_map(engine, truth, weights))
    return np.concatenate(drops)


def beats_shuffled(scores: NDArray[np.floating], truth: NDArray[np.bool_], seed: int = 0) -> bool:
    """Whether scores rank these labels better than the same labels given to other images."""
    generator = np.random.default_rng(seed)
    own = mean_average_precision(scores, truth)
    return all(
        own > mean_average_precision(scores, truth[generator.permutation(len(truth))])
        for _ in range(PERMUTATIONS)
    )
