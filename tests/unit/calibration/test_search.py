"""Searches on rows of one layer: what they choose is the best by brute force, and never harms."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from vitdeploy.calibration.grids import FP8, INT8, Grid
from vitdeploy.calibration.ranges import RangeMethod, activation_scale, candidate_scales
from vitdeploy.calibration.search import (
    ALPHAS,
    best_fold,
    best_range,
    bias_correction,
    fold_scales,
    rounded_weight,
)
from vitdeploy.calibration.statistics import ActivationStatistics, histogram_of

Array = NDArray[np.float32]
IMAGES, ROWS, INPUTS, OUTPUTS = 16, 32, 64, 48


def rows_of(seed: int, images: int = IMAGES) -> Array:
    """(images, rows, K) as a LayerNorm leaves them."""
    generator = np.random.default_rng(seed)
    return generator.normal(size=(images, ROWS, INPUTS)).astype(np.float32)


def weight_of(seed: int) -> Array:
    generator = np.random.default_rng(seed)
    return (generator.normal(size=(INPUTS, OUTPUTS)) / INPUTS**0.5).astype(np.float32)


def planted(rows: Array, weight: Array, factor: float, channels: tuple[int, ...] = (3, 17, 40)):  # type: ignore[no-untyped-def]
    """Channels of the rows made larger, their weights smaller: the product is the same."""
    factors = np.ones(INPUTS, np.float32)
    factors[list(channels)] = factor
    return rows * factors, weight / factors[:, None]


def slow_error(rows: Array, weight: Array, scale: float, steps: int = 127) -> float:
    """Relative squared error of INT8, computed in float64 and by the definition."""
    rows, weight = rows.astype(np.float64), weight.astype(np.float64)
    exact = rows @ weight
    left = np.clip(np.rint(rows / scale), -steps, steps) * scale
    widths = np.abs(weight).max(axis=0) / steps
    right = np.clip(np.rint(weight / widths), -steps, steps) * widths
    return float(np.square(left @ right - exact).sum() / np.square(exact).sum())


def flat(rows: Array) -> Array:
    return rows.reshape(-1, rows.shape[-1])


def maxima_of(rows: Array) -> Array:
    return np.abs(flat(rows)).max(axis=0)


def mse_error(rows: Array, weight: Array) -> float:
    """What a layer loses with the range that is best for its tensor."""
    absmax = float(np.abs(rows).max())
    found = ActivationStatistics(absmax, histogram_of(rows, absmax))
    return slow_error(flat(rows), weight, activation_scale(found, "mse"))


class TestFold:
    @pytest.mark.parametrize("factor", [20.0, 50.0, 100.0, 1000.0])
    def test_planted_outliers_are_gone(self, factor: float) -> None:
        """As in use: maxima over all images, a search on a few, and answers on others again."""
        everything, weight = rows_of(0, images=256), weight_of(1)
        large, small = planted(everything, weight, factor)
        few = flat(large[:IMAGES])
        assert mse_error(large, small) > 10 * mse_error(everything, weight), "it does no harm"
        found = best_fold(few, maxima_of(large), small, INT8)
        assert found is not None
        other, _ = planted(rows_of(2), weight, factor)
        folded = mse_error(other / found.scales, small * found.scales[:, None])
        assert folded <= 1.2 * mse_error(rows_of(2), weight)
        assert found.error <= 1.2 * mse_error(everything[:IMAGES], weight)

    def test_it_says_what_it_gains(self) -> None:
        rows, weight = planted(rows_of(0), weight_of(1), 50.0)
        found = best_fold(flat(rows), maxima_of(rows), weight, INT8)
        assert found is not None
        assert found.before == pytest.approx(mse_error(rows, weight), rel=1e-2)
        after = mse_error(rows / found.scales, weight * found.scales[:, None])
        assert found.error == pytest.approx(after, rel=1e-2)

    def test_no_other_alpha_is_better(self) -> None:
        rows, weight = planted(rows_of(0), weight_of(1), 30.0, (1, 5))
        found = best_fold(flat(rows), maxima_of(rows), weight, INT8)
        assert found is not None
        errors = {}
        for alpha in ALPHAS:
            scales = fold_scales(maxima_of(rows), np.abs(weight).max(axis=1), alpha)
            errors[alpha] = mse_error(rows / scales, weight * scales[:, None])
        assert errors[found.alpha] <= 1.01 * min(errors.values())
        np.testing.assert_allclose(
            found.scales, fold_scales(maxima_of(rows), np.abs(weight).max(axis=1), found.alpha)
        )

    def test_nothing_is_folded_where_nothing_is_gained(self) -> None:
        """Channels alike, on both sides: every alpha leaves them about as they are."""
        generator = np.random.default_rng(4)
        signs = generator.choice([-1.0, 1.0], size=(IMAGES * ROWS, INPUTS))
        rows = (signs * generator.uniform(0.9, 1.0, signs.shape)).astype(np.float32)
        rows[0] = 1.0
        weight = generator.choice([-0.5, 0.5], size=(INPUTS, OUTPUTS)).astype(np.float32)
        assert best_fold(rows, maxima_of(rows), weight, INT8) is None

    def test_outliers_of_the_weight_alone_are_no_reason_to_make_the_activation_worse(self) -> None:
        rows, weight = rows_of(0), weight_of(1)
        weight[7] *= 40
        found = best_fold(flat(rows), maxima_of(rows), weight, INT8)
        before = mse_error(rows, weight)
        if found is not None:
            assert mse_error(rows / found.scales, weight * found.scales[:, None]) < before

    def test_fp8_needs_less_folding(self) -> None:
        """Its steps follow the magnitudes: the same outliers cost INT8 far more."""
        rows, weight = planted(rows_of(0), weight_of(1), 100.0)
        int8 = best_fold(flat(rows), maxima_of(rows), weight, INT8)
        fp8 = best_fold(flat(rows), maxima_of(rows), weight, FP8)
        assert int8 is not None
        gained = 1.0 if fp8 is None else fp8.before / fp8.error
        assert int8.before / int8.error > 10 * gained

    @settings(deadline=None, max_examples=50)
    @given(
        maxima=hnp.arrays(np.float32, 6, elements=st.floats(0, 1e6, width=32)),
        weights=hnp.arrays(np.float32, 6, elements=st.floats(0, 1e6, width=32)),
        alpha=st.sampled_from(ALPHAS),
    )
    def test_scales_are_finite_and_above_zero(
        self, maxima: Array, weights: Array, alpha: float
    ) -> None:
        scales = fold_scales(maxima, weights, alpha)
        assert scales.dtype == np.float32
        assert np.isfinite(scales).all()
        assert (scales >= 1 / 4200).all()
        assert (scales <= 4200).all()
        assert (scales[(maxima == 0) | (weights == 0)] == 1).all()

    def test_scales_are_smoothquants_over_their_median(self) -> None:
        maxima = np.array([1.0, 4.0, 100.0, 0.0], np.float32)
        weights = np.array([0.5, 2.0, 0.1, 3.0], np.float32)
        raw = maxima[:3] ** 0.7 / weights[:3] ** 0.3
        expected = [*(raw / np.median(raw)), 1.0]
        np.testing.assert_allclose(fold_scales(maxima, weights, 0.7), expected, rtol=1e-5)


def activation(kind: str) -> Array:
    generator = np.random.default_rng(3)
    shape = (IMAGES * ROWS, INPUTS)
    if kind == "normal":
        values = generator.normal(size=shape)
    elif kind == "uniform":
        values = generator.uniform(-1, 1, size=shape)
    elif kind == "gelu":
        normal = 2 * generator.normal(size=shape)
        values = normal / (1 + np.exp(-1.702 * normal))
    elif kind == "heavy":
        values = generator.standard_t(3, size=shape)
    else:
        values = generator.normal(size=shape)
        values[0, 0] = 80.0
    return values.astype(np.float32)


class TestRange:
    @pytest.mark.parametrize("kind", ["normal", "uniform", "gelu", "heavy", "one of 80"])
    def test_it_takes_the_best_of_all_methods(self, kind: str) -> None:
        rows, weight = activation(kind), weight_of(1)
        absmax = float(np.abs(rows).max())
        candidates = candidate_scales(
            ActivationStatistics(absmax, histogram_of(rows, absmax)), INT8
        )
        assert set(candidates) == {"absmax", "percentile", "entropy", "mse"}
        method, scale = best_range(candidates, rows, weight, INT8)
        errors = {name: slow_error(rows, weight, one) for name, one in candidates.items()}
        assert scale == candidates[method]
        assert errors[method] <= 1.001 * min(errors.values())

    def test_which_is_best_depends_on_the_tensor(self) -> None:
        """A search that always answered one method would be found out."""
        weight = weight_of(1)
        few: dict[RangeMethod, float] = {"absmax": 4.0 / 127, "percentile": 1.0 / 127}
        wide = np.linspace(-4, 4, 2 * INPUTS, dtype=np.float32).reshape(2, INPUTS)
        assert best_range(few, wide, weight, INT8)[0] == "absmax"
        assert best_range(few, wide / 4, weight, INT8)[0] == "percentile"


def offset_rows(seed: int, images: int = 24) -> Array:
    """Rows that are rounded coarsely, and all to the same side: their mean error is not zero."""
    generator = np.random.default_rng(seed)
    return generator.beta(1.0, 2.0, size=(images, ROWS, INPUTS)).astype(np.float32)


COARSE = 1.2


def lost_on(rows: Array, weight: Array, scale: float, shift: Array | float = 0.0) -> float:
    """Mean squared error of the layer on these rows, with `shift` added to its bias."""
    answered = INT8.rounded(rows, scale) @ rounded_weight(weight, INT8) + shift
    return float(np.square(answered - rows @ weight).mean())


class TestBias:
    def test_the_error_on_other_rows_is_lower(self) -> None:
        weight = weight_of(1)
        shift = bias_correction(offset_rows(0), weight, COARSE, INT8)
        assert shift is not None
        assert shift.shape == (OUTPUTS,)
        other = offset_rows(9)
        assert lost_on(other, weight, COARSE, shift) < 0.9 * lost_on(other, weight, COARSE)
        # Mutation: taken away instead of added.
        assert lost_on(other, weight, COARSE, -shift) > lost_on(other, weight, COARSE)

    def test_it_is_the_mean_of_what_is_lost(self) -> None:
        rows, weight = offset_rows(0), weight_of(1)
        shift = bias_correction(rows, weight, COARSE, INT8)
        steps = np.clip(np.rint(rows.astype(np.float64) / COARSE), -127, 127) * COARSE
        widths = np.abs(weight).max(axis=0).astype(np.float64) / 127
        right = np.rint(weight / widths) * widths
        lost = (rows.astype(np.float64) @ weight - steps @ right).reshape(-1, OUTPUTS)
        np.testing.assert_allclose(shift, lost.mean(axis=0), atol=1e-4)

    def test_a_collapsed_layer_is_left_alone(self) -> None:
        """Each image is lost in a direction of its own: their mean says nothing of the next."""
        generator = np.random.default_rng(5)
        directions = generator.normal(size=(IMAGES, 1, INPUTS))
        rows = (directions * np.ones((1, ROWS, 1)) * 3).astype(np.float32)
        weight = weight_of(1)
        assert lost_on(rows, weight, 0.001) > 0.5 * float(np.square(rows @ weight).mean())
        assert bias_correction(rows, weight, 0.001, INT8) is None
        blind = (rows @ weight - INT8.rounded(rows, 0.001) @ rounded_weight(weight, INT8)).mean(
            axis=(0, 1)
        )
        other = (generator.normal(size=(IMAGES, 1, INPUTS)) * 3).astype(np.float32)
        assert lost_on(other, weight, 0.001, blind) > lost_on(other, weight, 0.001)

    def test_one_image_alone_says_nothing_of_others(self) -> None:
        assert bias_correction(offset_rows(0, images=1), weight_of(1), COARSE, INT8) is None

    def test_a_layer_that_loses_nothing_is_left_alone(self) -> None:
        rows = np.zeros((IMAGES, ROWS, INPUTS), np.float32)
        assert bias_correction(rows, weight_of(1), 0.1, INT8) is None


@pytest.mark.parametrize("grid", [INT8, FP8], ids=lambda grid: grid.name)
def test_rounded_weights_are_on_the_grid_of_each_channel(grid: Grid) -> None:
    weight = weight_of(1) * np.geomspace(1e-3, 1e3, OUTPUTS, dtype=np.float32)
    rounded = rounded_weight(weight, grid)
    relative: Any = np.abs(rounded - weight).max(axis=0) / np.abs(weight).max(axis=0)
    coarsest = 0.5 / 127 if grid is INT8 else 1 / 28
    assert (relative <= 1.001 * coarsest).all()
    assert (relative > 0.1 * coarsest).all()
