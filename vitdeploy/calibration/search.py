"""Choices made by looking at what a Linear layer answers on a few rows of its input.

Everything here compares X W with q(X) q(W) for rows X of the calibration
images: how strongly to fold, how far to clip, what to add to the bias.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vitdeploy.calibration.grids import Grid, quantize_weight, weight_scales
from vitdeploy.calibration.ranges import RangeMethod, activation_scale
from vitdeploy.calibration.statistics import ActivationStatistics, histogram_of

Array = NDArray[np.float32]

ALPHAS = (0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
"""How much of a channel's range moves into the weight: SmoothQuant's exponent."""

LEAST_GAIN = 0.02
"""A fold has to remove 2 % of the squared error: less is noise of the rows drawn."""

LEAST_GAIN_INSERTED = 0.5
"""One that costs an operator has to halve it."""

_LARGEST_FOLD = 4096.0


@dataclass(frozen=True, eq=False)
class FoldChoice:
    """`scales` (K,) divide the activation's channels. `error` is relative, and so is `before`."""

    alpha: float
    scales: Array
    before: float
    error: float


def best_fold(
    rows: Array, maxima: Array, weight: Array, grid: Grid, least_gain: float = LEAST_GAIN
) -> FoldChoice | None:
    """The alpha under which (rows, K) times (K, out) is answered best; None where none takes
    away the share `least_gain` of the error.

    `maxima` (K,) are the largest magnitudes of the channels over all images.
    """
    exact = rows @ weight
    before = _fold_error(rows, maxima, weight, np.ones_like(maxima), exact, grid)
    found = None
    for alpha in ALPHAS:
        scales = fold_scales(maxima, np.abs(weight).max(axis=1), alpha)
        error = _fold_error(rows, maxima, weight, scales, exact, grid)
        if error < ((1 - least_gain) * before if found is None else found.error):
            found = FoldChoice(alpha, scales, before, error)
    return found


def fold_scales(maxima: Array, weight_maxima: Array, alpha: float) -> Array:
    """(K,) max|x|^alpha / max|w|^(1 - alpha), over the median; 1 where a channel is always zero."""
    held = (maxima > 0) & (weight_maxima > 0)
    if not held.any():
        return np.ones_like(maxima)
    logarithms = alpha * np.log(maxima[held]) - (1 - alpha) * np.log(weight_maxima[held])
    limit = np.log(_LARGEST_FOLD)
    scales = np.ones_like(maxima)
    scales[held] = np.exp(np.clip(logarithms - np.median(logarithms), -limit, limit))
    return scales


def best_range(
    candidates: Mapping[RangeMethod, float], rows: Array, weight: Array, grid: Grid
) -> tuple[RangeMethod, float]:
    """The method, and its scale, with which (rows, K) times (K, out) is answered best."""
    exact = rows @ weight
    rounded = rounded_weight(weight, grid)
    errors = {
        method: _relative(grid.rounded(rows, scale) @ rounded, exact)
        for method, scale in candidates.items()
    }
    best = min(candidates, key=lambda method: errors[method])
    return best, candidates[best]


def bias_correction(rows: Array, weight: Array, scale: float, grid: Grid) -> Array | None:
    """(out,) to add to the bias: the mean of what quantization takes away.

    `rows` is (images, rows, K). None where the mean error of one half of the images does not
    lessen the squared error of the other: on a layer that is answered badly it would do harm.
    """
    rounded = rounded_weight(weight, grid)
    flat = rows.reshape(-1, rows.shape[-1])  # one product: of many small ones each packs W anew
    lost = flat @ weight - grid.rounded(flat, scale) @ rounded
    lost = lost.reshape(*rows.shape[:-1], -1)
    halves = lost[0::2], lost[1::2]
    if min(len(half) for half in halves) == 0:
        return None
    for learnt, judged in (halves, halves[::-1]):
        shift = learnt.mean(axis=(0, 1))
        if np.square(judged - shift).sum() >= np.square(judged).sum():
            return None
    return lost.mean(axis=(0, 1))


def rounded_weight(weight: Array, grid: Grid) -> Array:
    """(K, out) as the file will hold it."""
    scales = weight_scales(weight, 1, grid)
    return quantize_weight(weight, scales, 1, grid).astype(np.float32) * scales


def _fold_error(
    rows: Array, maxima: Array, weight: Array, scales: Array, exact: Array, grid: Grid
) -> float:
    folded = rows / scales
    absmax = float((maxima / scales).max())
    found = ActivationStatistics(absmax, histogram_of(folded, absmax))
    clip = activation_scale(found, "mse" if grid.name == "int8" else "absmax", grid)
    rounded = rounded_weight(weight * scales[:, None], grid)
    return _relative(grid.rounded(folded, clip) @ rounded, exact)


def _relative(answered: Array, exact: Array) -> float:
    norm = float(np.square(exact, dtype=np.float64).sum())
    return float(np.square(answered - exact, dtype=np.float64).sum()) / max(norm, 1e-30)
