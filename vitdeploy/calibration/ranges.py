"""From statistics to scales: how much of the range INT8 spends its 255 steps on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from vitdeploy.calibration.grids import INT8, SMALLEST_SCALE, Grid
from vitdeploy.calibration.statistics import BINS, ActivationStatistics
from vitdeploy.errors import InputError

RangeMethod = Literal["auto", "absmax", "percentile", "entropy", "mse"]
"""How a clip is chosen; `auto` takes, for each tensor, the one its layers answer best with."""

_QUANTILE = 0.9999
_SMALLEST_CLIP = 0.05
"""Share of absmax; there a step of INT8 is still three bins of the histogram wide."""

_LEVELS = 128
"""Magnitudes of symmetric INT8, zero among them."""


def activation_scale(
    statistics: ActivationStatistics, method: RangeMethod, grid: Grid = INT8
) -> float:
    """Scale of a symmetric tensor (zero point 0): value = scale x number.

    absmax keeps every value; percentile clips the largest 0.01 %; entropy
    takes the clip that keeps most of the distribution's information (least
    Kullback-Leibler divergence, as TensorRT's calibrator did); mse the one
    whose rounding and clipping error together are smallest. Raises InputError
    for another method.
    """
    clips: dict[str, Callable[[ActivationStatistics], float]] = {
        "absmax": lambda found: found.absmax,
        "percentile": _percentile_clip,
        "entropy": _entropy_clip,
        "mse": _mse_clip,
    }
    if method not in clips:
        raise InputError(
            f"{method!r} is no range method of a single tensor", hint=f"use {', '.join(clips)}"
        )
    return grid.scale_of(clips[method](statistics))


def candidate_scales(statistics: ActivationStatistics, grid: Grid) -> dict[RangeMethod, float]:
    """The scale each method takes."""
    methods: tuple[RangeMethod, ...] = ("mse", "entropy", "percentile", "absmax")
    return {method: activation_scale(statistics, method, grid) for method in methods}


def _percentile_clip(statistics: ActivationStatistics) -> float:
    cumulative = np.cumsum(statistics.histogram)
    last = int(np.searchsorted(cumulative, _QUANTILE * cumulative[-1]))
    return statistics.absmax * (last + 1) / BINS


def _mse_clip(statistics: ActivationStatistics) -> float:
    centers = (np.arange(BINS) + 0.5) * statistics.absmax / BINS
    candidates = statistics.absmax * np.geomspace(_SMALLEST_CLIP, 1.0, 161)
    errors = [_squared_error(centers, statistics.histogram, clip) for clip in candidates]
    return float(candidates[int(np.argmin(errors))])


def _squared_error(centers: NDArray[np.float64], counts: NDArray[np.int64], clip: float) -> float:
    scale = max(clip / 127, SMALLEST_SCALE)
    rounded = np.minimum(np.rint(centers / scale), 127) * scale
    return float(np.sum(counts * (centers - rounded) ** 2))


def _entropy_clip(statistics: ActivationStatistics) -> float:
    """Least divergence between the clipped distribution and its form in 128 magnitudes."""
    kept = np.unique(np.geomspace(_SMALLEST_CLIP * BINS, BINS, 96).round().astype(int))
    counts = statistics.histogram.astype(np.float64)
    divergences = [_divergence(counts, int(bins)) for bins in kept]
    return statistics.absmax * float(kept[int(np.argmin(divergences))]) / BINS


def _divergence(counts: NDArray[np.float64], bins: int) -> float:
    """Of the first `bins`, what is beyond counted into the last, from its quantized form."""
    clipped = counts[:bins].copy()
    quantized = _spread_evenly(clipped)
    clipped[-1] += counts[bins:].sum()
    total, coarse = clipped.sum(), quantized.sum()
    if total == 0 or coarse == 0:
        return np.inf
    true, coded = clipped / total, quantized / coarse
    held = true > 0
    # A bin that is counted and that the coarse form lost has no finite divergence.
    return float(np.sum(true[held] * np.log(true[held] / np.maximum(coded[held], 1e-12))))


def _spread_evenly(counts: NDArray[np.float64]) -> NDArray[np.float64]:
    """Each of 128 groups of neighbouring bins shares its count among those that are not empty."""
    group = np.minimum(np.arange(len(counts)) * _LEVELS // len(counts), _LEVELS - 1)
    held = counts > 0
    sums = np.bincount(group, weights=counts, minlength=_LEVELS)
    members = np.bincount(group, weights=held, minlength=_LEVELS)
    return np.where(held, (sums / np.maximum(members, 1))[group], 0.0)
