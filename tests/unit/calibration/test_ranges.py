"""Ranges against brute force on the raw samples, and properties that hold for any input."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from vitdeploy.calibration.grids import INT8, quantize_weight, weight_scales
from vitdeploy.calibration.ranges import RangeMethod, activation_scale, candidate_scales
from vitdeploy.calibration.statistics import BINS, ActivationStatistics, histogram_of
from vitdeploy.errors import InputError

METHODS = ("absmax", "percentile", "entropy", "mse")


def statistics_of(values: NDArray[Any]) -> ActivationStatistics:
    values = values.astype(np.float32)
    absmax = float(np.abs(values).max())
    return ActivationStatistics(absmax, histogram_of(values, absmax))


def mean_squared_error(values: NDArray[Any], scale: float) -> float:
    """Of symmetric INT8 with this scale, on the samples themselves."""
    rounded = np.clip(np.rint(values / scale), -127, 127) * scale
    return float(np.mean((values - rounded) ** 2))


def samples(kind: str) -> NDArray[np.float64]:
    generator = np.random.default_rng(7)
    count = 200_000
    if kind == "normal":
        return generator.normal(size=count)
    if kind == "laplace":
        return generator.laplace(size=count)
    if kind == "gelu":
        normal = generator.normal(size=count) * 1.5
        return normal / (1 + np.exp(-1.702 * normal))
    if kind == "heavy":
        return generator.standard_t(3, size=count)
    if kind == "uniform":
        return generator.uniform(-1, 1, size=count)
    values = generator.normal(size=count)
    values[0] = {"one of 30": 30.0, "one of 60": 60.0}[kind]
    return values


@pytest.mark.parametrize(
    "kind", ["normal", "laplace", "gelu", "heavy", "uniform", "one of 30", "one of 60"]
)
def test_mse_is_near_the_best_scale_there_is(kind: str) -> None:
    values = samples(kind)
    ours = mean_squared_error(values, activation_scale(statistics_of(values), "mse"))
    absmax = float(np.abs(values).max())
    clips = absmax * np.geomspace(0.02, 1.0, 400)
    best = min(mean_squared_error(values, clip / 127) for clip in clips)
    assert ours <= 1.05 * best
    assert ours <= 1.0001 * mean_squared_error(values, absmax / 127)


def test_mse_clips_far_below_a_single_outlier() -> None:
    """Four million values of deviation 1 and one of 40: the best clip is a ninth of it."""
    values, repeats, outlier = samples("normal"), 20, 40.0
    counts = repeats * histogram_of(values.astype(np.float32), outlier)
    counts += histogram_of(np.array([outlier], np.float32), outlier)

    def error(scale: float) -> float:
        rare = mean_squared_error(np.array([outlier]), scale)
        return mean_squared_error(values, scale) + rare / (repeats * len(values))

    best = min(error(clip / 127) for clip in outlier * np.geomspace(0.02, 1.0, 200))
    ours = error(activation_scale(ActivationStatistics(outlier, counts), "mse"))
    assert ours <= 1.05 * best


@pytest.mark.parametrize("kind", ["normal", "laplace", "gelu", "heavy"])
def test_percentile_is_numpys(kind: str) -> None:
    values = samples(kind)
    statistics = statistics_of(values)
    expected = np.percentile(np.abs(values), 99.99)
    clip = 127 * activation_scale(statistics, "percentile")
    assert clip == pytest.approx(expected, abs=2 * statistics.absmax / BINS)
    assert clip < statistics.absmax


def test_absmax_keeps_every_value() -> None:
    values = samples("heavy")
    scale = activation_scale(statistics_of(values), "absmax")
    assert 127 * scale == pytest.approx(np.abs(values).max(), rel=1e-6)


@given(
    values=hnp.arrays(
        np.float32, st.integers(1, 100), elements=st.floats(-(2.0**99), 2.0**99, width=32)
    ),
    method=st.sampled_from(METHODS),
)
def test_scales_are_positive_and_clip_no_further_than_the_largest(
    values: NDArray[np.float32], method: str
) -> None:
    statistics = statistics_of(values)
    scale = activation_scale(statistics, cast(RangeMethod, method))
    assert np.isfinite(scale)
    assert scale >= 2.0**-24
    assert scale <= max(statistics.absmax / 127 * 1.000001, 2.0**-24)


@pytest.mark.parametrize("method", METHODS)
def test_constant_activations_have_a_scale(method: str) -> None:
    zero = statistics_of(np.zeros(100))
    assert activation_scale(zero, cast(RangeMethod, method)) == 2.0**-24
    constant = statistics_of(np.full(100, -3.0))
    scale = activation_scale(constant, cast(RangeMethod, method))
    assert abs(np.clip(np.rint(-3 / scale), -127, 127) * scale + 3) < 0.02


def slow_entropy_clip(counts: list[int], absmax: float) -> float:
    """By the published recipe, one bin at a time (Migacz, 8-bit inference with TensorRT, 2017).

    The candidates are those of `activation_scale`: 96 numbers of bins, geometric from 5 %.
    """
    candidates = sorted({round(v) for v in np.geomspace(0.05 * BINS, BINS, 96)})
    best, least = 0, np.inf
    for kept in candidates:
        clipped = [float(count) for count in counts[:kept]]
        outside = sum(counts[kept:])
        groups: dict[int, list[int]] = {}
        for index in range(kept):
            groups.setdefault(index * 128 // kept, []).append(index)
        coded = [0.0] * kept
        for members in groups.values():
            held = [index for index in members if clipped[index] > 0]
            for index in held:
                coded[index] = sum(clipped[i] for i in members) / len(held)
        clipped[-1] += outside
        total, coarse = sum(clipped), sum(coded)
        if coarse == 0:
            continue
        divergence = 0.0
        for true, code in zip(clipped, coded, strict=True):
            if true > 0:
                share = true / total
                divergence += share * np.log(share / max(code / coarse, 1e-12))
        if divergence < least:
            best, least = kept, divergence
    return absmax * best / BINS


@pytest.mark.parametrize("kind", ["laplace", "gelu", "one of 60"])
def test_entropy_is_the_published_recipe(kind: str) -> None:
    statistics = statistics_of(samples(kind))
    expected = slow_entropy_clip(statistics.histogram.tolist(), statistics.absmax)
    found = 127 * activation_scale(statistics, "entropy")
    assert found == pytest.approx(expected, rel=1e-6)
    assert expected < 0.96 * statistics.absmax, "nothing is clipped: absmax would pass as well"


def test_entropy_keeps_what_128_steps_hold_exactly() -> None:
    """A uniform distribution loses nothing in 128 magnitudes, and all that is clipped."""
    counts = np.full(BINS, 10, np.int64)
    scale = activation_scale(ActivationStatistics(1.0, counts), "entropy")
    assert scale * 127 == pytest.approx(1.0, rel=1e-6)


def test_each_method_has_a_scale_of_its_own() -> None:
    """Four names for one clip would make a choice among them void."""
    found = candidate_scales(statistics_of(samples("heavy")), INT8)
    assert set(found) == set(METHODS)
    assert len({round(scale, 9) for scale in found.values()}) == 4
    for method, scale in found.items():
        assert scale == activation_scale(statistics_of(samples("heavy")), method)


def test_an_unknown_method_is_refused() -> None:
    with pytest.raises(InputError, match="kurtosis") as caught:
        activation_scale(statistics_of(np.ones(4)), cast(RangeMethod, "kurtosis"))
    assert caught.value.hint


weights = hnp.arrays(
    np.float32,
    st.tuples(st.integers(1, 8), st.integers(1, 8)),
    elements=st.floats(-1e4, 1e4, width=32),
)


@given(weight=weights, axis=st.sampled_from((0, 1)))
def test_weights_are_within_half_a_step(weight: NDArray[np.float32], axis: int) -> None:
    scales = weight_scales(weight, axis)
    assert scales.shape == (weight.shape[axis],)
    assert (scales > 0).all()
    integers = quantize_weight(weight, scales, axis)
    assert integers.dtype == np.int8
    assert integers.min() >= -127
    wide = scales.astype(np.float64)[:, None] if axis == 0 else scales.astype(np.float64)[None]
    error = np.abs(weight.astype(np.float64) - integers * wide)
    assert (error <= wide * 0.5001).all()
    full = np.abs(integers).max(axis=1 - axis)
    assert (full[scales > 2.0**-24] == 127).all()


def test_channels_are_the_axis_named() -> None:
    weight = np.array([[1.0, 100.0], [-2.0, 50.0]], np.float32)
    np.testing.assert_allclose(weight_scales(weight, 1) * 127, [2, 100], rtol=1e-6)
    np.testing.assert_allclose(weight_scales(weight, 0) * 127, [100, 50], rtol=1e-6)


def test_rounding_is_to_the_even_number() -> None:
    weight = np.array([[0.5, 1.5, 2.5, -0.5, 127.0]], np.float32)
    integers = quantize_weight(weight, np.ones(1, np.float32), 0)
    np.testing.assert_array_equal(integers, [[0, 2, 2, 0, 127]])
