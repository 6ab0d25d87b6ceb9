"""From statistics to scales: how much of the range INT8 spends its 255 steps on."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from vitdeploy.calibration.statistics import BINS, ActivationStatistics
from vitdeploy.errors import InputError

RangeMethod = Literal["absmax", "percentile", "mse"]

_QUANTILE = 0.9999
_SMALLEST_CLIP = 0.05
"""Share of absmax; there a step of INT8 is still three bins of the histogram wide."""

_SMALLEST_SCALE = 2.0**-24
"""Scales stay above zero: TensorRT refuses zero, and a constant activation has no range."""


def activation_scale(statistics: ActivationStatistics, method: RangeMethod) -> float:
    """Scale of symmetric INT8 (zero point 0): value = scale x integer in [-127, 127].

    absmax keeps every value; percentile clips the largest 0.01 %; mse takes
    the clip whose rounding and clipping error together are smallest.
    """
    if method == "absmax":
        clip = statistics.absmax
    elif method == "percentile":
        clip = _percentile_clip(statistics)
    elif method == "mse":
        clip = _mse_clip(statistics)
    else:
        raise InputError(f"unknown range method {method!r}", hint="use absmax, percentile or mse")
    return max(float(np.float32(clip / 127)), _SMALLEST_SCALE)


def weight_scales(weight: NDArray[np.float32], axis: int) -> NDArray[np.float32]:
    """One scale per output channel: the channel's largest magnitude over 127."""
    other = tuple(i for i in range(weight.ndim) if i != axis)
    scales = np.abs(weight).max(axis=other) / np.float32(127)
    return np.maximum(scales, np.float32(_SMALLEST_SCALE)).astype(np.float32)


def quantize_weight(
    weight: NDArray[np.float32], scales: NDArray[np.float32], axis: int
) -> NDArray[np.int8]:
    """Round to nearest even, as QuantizeLinear does; -128 is not used (zero point 0)."""
    shape = [1] * weight.ndim
    shape[axis] = -1
    return np.clip(np.rint(weight / scales.reshape(shape)), -127, 127).astype(np.int8)


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
    scale = max(clip / 127, _SMALLEST_SCALE)
    rounded = np.minimum(np.rint(centers / scale), 127) * scale
    return float(np.sum(counts * (centers - rounded) ** 2))
