from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from scipy.optimize import brentq, minimize_scalar

from vitdeploy.benchmarks import statistics
from vitdeploy.errors import InputError


def likeliest_gain_rate(lost: int, gained: int, n: int, difference: float) -> float:
    """Maximum of the multinomial likelihood under the constraint, found numerically."""

    def surprise(rate: float) -> float:
        total = 0.0
        for count, probability in (
            (lost, rate + difference),
            (gained, rate),
            (n - lost - gained, 1 - 2 * rate - difference),
        ):
            if count:
                total -= count * math.log(max(probability, 1e-300))
        return total

    low, high = max(0.0, -difference), (1 - difference) / 2
    found = minimize_scalar(
        surprise, bounds=(low, high), method="bounded", options={"xatol": 1e-12}
    )
    return min((low, high, float(found.x)), key=surprise)


def accepted(lost: int, gained: int, n: int, difference: float, z: float) -> bool:
    rate = likeliest_gain_rate(lost, gained, n, difference)
    variance = n * (2 * rate + difference - difference**2)
    return (lost - gained - n * difference) ** 2 <= z * z * variance + 1e-12


@pytest.mark.parametrize(
    ("lost", "gained", "n"),
    [(0, 0, 50), (1, 0, 50), (0, 1, 50), (7, 3, 100), (3, 7, 100), (20, 20, 60), (9, 1, 10)],
)
def test_tango_is_the_inverted_score_test(lost: int, gained: int, n: int) -> None:
    low, high = statistics.tango_interval(lost, gained, n, 0.95)
    z = float(stats.norm.ppf(0.975))
    grid = np.linspace(-0.9995, 0.9995, 2000)
    inside = [d for d in grid if accepted(lost, gained, n, d, z)]
    assert low == pytest.approx(inside[0], abs=1.1e-3)
    assert high == pytest.approx(inside[-1], abs=1.1e-3)


def test_the_grid_is_fine_enough_to_tell_wald_from_tango() -> None:
    wald = 1.96 * math.sqrt((7 + 3) - (7 - 3) ** 2 / 100) / 100 + 0.04
    assert abs(statistics.tango_interval(7, 3, 100, 0.95)[1] - wald) > 1.1e-3


def test_tango_without_discordant_pairs_has_the_closed_form() -> None:
    z2 = float(stats.norm.ppf(0.95)) ** 2
    assert statistics.tango_upper(0, 0, 538) == pytest.approx(z2 / (538 + z2), rel=1e-6)


@given(st.integers(1, 3000), st.data())
def test_tango_encloses_the_observed_difference(n: int, data: st.DataObject) -> None:
    lost = data.draw(st.integers(0, n))
    gained = data.draw(st.integers(0, n - lost))
    low, high = statistics.tango_interval(lost, gained, n, 0.95)
    assert -1 <= low <= (lost - gained) / n <= high <= 1
    assert statistics.tango_upper(lost, gained, n) <= high
    mirrored = statistics.tango_interval(gained, lost, n, 0.95)
    assert mirrored == pytest.approx((-high, -low))


@pytest.mark.parametrize(
    ("n", "lose", "gain"), [(100, 0.05, 0.03), (400, 0.02, 0.02), (60, 0.2, 0)]
)
def test_tango_covers_as_often_as_it_says(n: int, lose: float, gain: float) -> None:
    draws = np.random.default_rng(0).multinomial(n, (lose, gain, 1 - lose - gain), 2000)
    tables, counts = np.unique(draws, axis=0, return_counts=True)
    covered = 0
    for (lost, gained, _), count in zip(tables.tolist(), counts.tolist(), strict=True):
        low, high = statistics.tango_interval(lost, gained, n, 0.95)
        covered += count * (low <= lose - gain <= high)
    assert 0.93 <= covered / 2000 <= 0.98


def raos_statistic(lost: int, gained: int, n: int, difference: float) -> float:
    """Rao's score statistic of the difference, from the trinomial likelihood and nothing else.

    Of a pair, the source alone is right with probability q + difference, the
    engine alone with q, neither or both with 1 - 2 q - difference. q is where
    the likelihood of the counts is highest; the score is the likelihood's slope
    over the difference there, and its variance the information that is left
    once q has been estimated.
    """
    counts = np.array([lost, gained, n - lost - gained])
    by_difference, by_rate = np.array([1.0, 0.0, -1.0]), np.array([1.0, 1.0, -2.0])

    def probabilities(rate: float) -> np.ndarray:
        return np.array([rate + difference, rate, 1 - 2 * rate - difference])

    def slope(rate: float) -> float:
        return float((counts * by_rate / probabilities(rate)).sum())

    edge = 1e-15
    rate = brentq(slope, max(0.0, -difference) + edge, (1 - difference) / 2 - edge, xtol=1e-16)
    p = probabilities(float(rate))
    score = float((counts * by_difference / p).sum())
    (a, b), (_, d) = (
        [n * float((one * other / p).sum()) for other in (by_difference, by_rate)]
        for one in (by_difference, by_rate)
    )
    return score / math.sqrt(a - b * b / d)


@pytest.mark.parametrize(
    ("lost", "gained", "n"),
    [
        (1, 7, 21),  # airway responsiveness, the example of R's contingencytables
        (40, 20, 160),  # the example of R's PropCIs
        (7, 3, 100),
        (3, 2, 2000),
        (48, 41, 5000),
        (300, 10, 1000),
    ],
)
def test_tango_is_where_raos_score_test_ends(lost: int, gained: int, n: int) -> None:
    """No table of anybody's: the ends are found again, by another way, from the likelihood."""
    z = float(stats.norm.ppf(0.975))
    low, high = statistics.tango_interval(lost, gained, n, 0.95)
    middle = (lost - gained) / n

    def end(sign: float, inner: float, outer: float) -> float:
        return brentq(
            lambda d: raos_statistic(lost, gained, n, d) + sign * z, inner, outer, xtol=1e-12
        )

    assert low == pytest.approx(end(-1, middle, -1 + 1e-9), abs=1e-8)
    assert high == pytest.approx(end(1, middle, 1 - 1e-9), abs=1e-8)


@given(st.integers(0, 60), st.integers(0, 60))
def test_mcnemar_is_scipys_binomial_test(lost: int, gained: int) -> None:
    theirs = 1.0 if lost + gained == 0 else stats.binomtest(gained, lost + gained, 0.5).pvalue
    assert statistics.mcnemar_exact(lost, gained) == pytest.approx(theirs)


def test_mcnemar_is_the_binomial_tail() -> None:
    by_hand = 2 * sum(math.comb(12, k) for k in range(3)) / 2**12
    assert statistics.mcnemar_exact(2, 10) == pytest.approx(by_hand)
    assert statistics.mcnemar_exact(0, 0) == 1.0


def test_wilson_by_its_closed_form() -> None:
    z, n, p = float(stats.norm.ppf(0.975)), 40, 0.9
    centre = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n)) / (1 + z * z / n)
    assert statistics.proportion_interval(36, n, 0.95) == pytest.approx(
        (centre - half, centre + half)
    )


@given(st.integers(1, 3000), st.data())
def test_the_interval_of_a_mean_is_wilsons_for_zeros_and_ones(n: int, data: st.DataObject) -> None:
    ones = data.draw(st.integers(0, n))
    assert statistics.bounded_mean_interval(ones, n, 0.95) == pytest.approx(
        statistics.proportion_interval(ones, n, 0.95), abs=1e-9
    )


@pytest.mark.parametrize("shape", [(0.2, 5.0), (2.0, 30.0), (5.0, 5.0)])
def test_the_interval_of_a_mean_covers_at_least_as_often_as_it_says(
    shape: tuple[float, float],
) -> None:
    draws = np.random.default_rng(0).beta(*shape, size=(2000, 150))
    truth = shape[0] / sum(shape)
    bounds = [statistics.bounded_mean_interval(float(t), 150, 0.95) for t in draws.sum(axis=1)]
    assert np.mean([low <= truth <= high for low, high in bounds]) >= 0.945


@pytest.mark.parametrize(("total", "n"), [(-0.1, 5), (5.1, 5), (0, 0), (float("nan"), 5)])
def test_a_mean_of_impossible_values_is_refused(total: float, n: int) -> None:
    with pytest.raises(InputError):
        statistics.bounded_mean_interval(total, n, 0.95)
    with pytest.raises(InputError):
        statistics.images_needed_for_rate(total, n, 0.02)


def slow_calibration_error(probabilities: np.ndarray, labels: np.ndarray, bins: int) -> float:
    total = 0.0
    for index in range(bins):
        low, high = index / bins, (index + 1) / bins
        inside = [
            (max(row), int(np.argmax(row)) == label)
            for row, label in zip(probabilities, labels, strict=True)
            if low < max(row) <= high
        ]
        if inside:
            confidence = sum(c for c, _ in inside) / len(inside)
            accuracy = sum(right for _, right in inside) / len(inside)
            total += len(inside) / len(labels) * abs(confidence - accuracy)
    return total


def test_calibration_error_is_the_mean_gap_of_the_bins() -> None:
    generator = np.random.default_rng(2)
    probabilities = generator.dirichlet(np.full(6, 0.4), 500)
    labels = generator.integers(0, 6, 500)
    assert statistics.calibration_error(probabilities, labels) == pytest.approx(
        slow_calibration_error(probabilities, labels, 15)
    )
    honest = np.array([generator.choice(6, p=row) for row in generator.dirichlet(np.ones(6), 1)])
    assert statistics.calibration_error(np.eye(6)[honest], honest) == 0.0
    # On the edge of a step a confidence belongs to the step below: (0, 0.5] and (0.5, 1].
    edges = np.array([[0.5, 0.5], [0.75, 0.25]])
    assert statistics.calibration_error(edges, np.array([1, 0]), 2) == pytest.approx(0.375)
    ninety = np.tile([0.9, 0.1], (10, 1))
    assert statistics.calibration_error(ninety, np.array([0] * 9 + [1])) == pytest.approx(0)


def test_half_a_point_at_two_percent_discordant_needs_6900_images() -> None:
    needed = statistics.images_needed(20, 20, 2000, 0.005)
    assert needed == pytest.approx(6900, rel=0.05)


def test_that_many_images_do_reach_the_bound() -> None:
    needed = statistics.images_needed(20, 20, 2000, 0.005)
    assert needed is not None
    draws = np.random.default_rng(1).multinomial(needed, (0.01, 0.01, 0.98), 400)
    reached = [statistics.tango_upper(lost, gained, needed) <= 0.005 for lost, gained, _ in draws]
    assert np.mean(reached) == pytest.approx(0.9, abs=0.05)
    fewer = np.random.default_rng(1).multinomial(2000, (0.01, 0.01, 0.98), 400)
    assert np.mean([statistics.tango_upper(a, b, 2000) <= 0.005 for a, b, _ in fewer]) < 0.6


def test_no_number_of_images_helps_a_real_drop() -> None:
    assert statistics.images_needed(15, 5, 1000, 0.005) is None
    assert statistics.images_needed_for_rate(2, 100, 0.02) is None


@given(st.integers(1, 5000))
@settings(max_examples=30)
def test_without_discordant_pairs_the_floor_is_exactly_enough(per_mille_tenths: int) -> None:
    margin = per_mille_tenths / 10_000
    needed = statistics.images_needed(0, 0, 10, margin)
    assert needed is not None
    assert statistics.tango_upper(0, 0, needed) <= margin * (1 + 1e-6)
    if needed > 1:
        assert statistics.tango_upper(0, 0, needed - 1) > margin * (1 - 1e-6)


def test_rate_floor_is_exactly_enough() -> None:
    needed = statistics.images_needed_for_rate(0, 10, 0.02)
    assert needed is not None
    assert statistics.proportion_interval(0, needed, 0.90)[1] <= 0.02
    assert statistics.proportion_interval(0, needed - 1, 0.90)[1] > 0.02


def test_entropy_in_bits() -> None:
    assert statistics.prediction_entropy(np.array([3, 3, 3])) == 0.0
    assert statistics.prediction_entropy(np.arange(8)) == pytest.approx(3.0)


def test_ratio_interval_encloses_the_truth_and_ignores_common_drift() -> None:
    rng = np.random.default_rng(3)
    machine = np.exp(np.linspace(0, 1, 60))
    baseline = 20 * machine * rng.lognormal(0, 0.02, 60)
    engine = 10 * machine * rng.lognormal(0, 0.02, 60)
    ratio, low, high = statistics.ratio_interval(baseline, engine)
    assert low < 2 < high
    assert high - low < 0.05
    assert low <= ratio <= high
    assert statistics.ratio_interval(baseline, engine) == (ratio, low, high)


def test_ratio_interval_agrees_with_scipys_bootstrap() -> None:
    ratios = np.random.default_rng(5).lognormal(0.7, 0.1, 80)
    _, low, high = statistics.ratio_interval(ratios, np.ones(80))
    theirs = stats.bootstrap((ratios,), np.median, method="percentile").confidence_interval
    assert (low, high) == pytest.approx((theirs.low, theirs.high), abs=0.02)


def test_equal_samples_have_an_interval_without_width() -> None:
    assert statistics.ratio_interval(np.full(5, 4.0), np.full(5, 2.0)) == (2.0, 2.0, 2.0)


@pytest.mark.parametrize(
    ("baseline", "engine"), [([1.0], [1.0]), ([1.0, 2.0], [1.0]), ([1.0, 0.0], [1.0, 1.0])]
)
def test_timings_that_do_not_pair_up_are_refused(
    baseline: list[float], engine: list[float]
) -> None:
    with pytest.raises(InputError):
        statistics.ratio_interval(np.array(baseline), np.array(engine))


@pytest.mark.parametrize(("lost", "gained", "n"), [(0, 0, 0), (-1, 0, 5), (3, 3, 5)])
def test_impossible_counts_are_refused(lost: int, gained: int, n: int) -> None:
    with pytest.raises(InputError):
        statistics.tango_interval(lost, gained, n, 0.95)
    with pytest.raises(InputError):
        statistics.tango_upper(0, 0, 5, confidence=1.0)
