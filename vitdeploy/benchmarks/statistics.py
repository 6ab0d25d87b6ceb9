"""Intervals and tests for paired comparisons: pure functions over numbers."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy import stats
from scipy.optimize import root_scalar

from vitdeploy.errors import InputError

ONE_SIDED_CONFIDENCE = 0.95
POWER = 0.8
_RESAMPLES = 2000


def tango_interval(lost: int, gained: int, n: int, confidence: float) -> tuple[float, float]:
    """Tango's score interval for the paired difference (lost - gained) / n.

    Of `n` images, the source alone was right on `lost` and the engine alone on
    `gained`. 0 of 100 lost and gained at 0.95 give (-0.037, 0.037): unlike
    Wald's, the interval never shrinks to a point. Raises InputError for counts
    that cannot be or a confidence outside (0, 1). Source: T. Tango,
    Statistics in Medicine 17 (1998) 891-908.
    """
    z = _quantile((1 + confidence) / 2, confidence)
    _check_counts(lost, gained, n)
    return -_score_bound(gained, lost, n, z), _score_bound(lost, gained, n, z)


def tango_upper(lost: int, gained: int, n: int, confidence: float = ONE_SIDED_CONFIDENCE) -> float:
    """The one-sided upper bound of (lost - gained) / n, by the same score test.

    The lower bound is `-tango_upper(gained, lost, n, confidence)`. Raises
    InputError as `tango_interval` does.
    """
    z = _quantile(confidence, confidence)
    _check_counts(lost, gained, n)
    return _score_bound(lost, gained, n, z)


def mcnemar_exact(lost: int, gained: int) -> float:
    """Two-sided p-value that losing and gaining are equally likely; 1.0 when neither happened."""
    if lost == gained == 0:
        return 1.0
    return float(stats.binomtest(lost, lost + gained).pvalue)


def proportion_interval(successes: int, n: int, confidence: float) -> tuple[float, float]:
    """Wilson's two-sided interval of a proportion. Raises InputError for impossible counts."""
    _check_counts(successes, 0, n)
    interval = stats.binomtest(successes, n).proportion_ci(confidence, method="wilson")
    return float(interval.low), float(interval.high)


def bounded_mean_interval(total: float, n: int, confidence: float) -> tuple[float, float]:
    """Two-sided interval of the mean of `n` values in [0, 1] that add up to `total`.

    Wilson's interval at total / n: values in [0, 1] with mean m vary by at
    most m (1 - m), as zeros and ones do (Bhatia and Davis, 2000), so it is on the safe side
    for all others. Like Wilson's it never shrinks to a point: no loss on 133
    images leaves up to 2 % with 95 % confidence on one side. Raises InputError
    for a total that cannot be.
    """
    if n <= 0 or not 0 <= total <= n:
        raise InputError(f"{n} values add up to {total}", hint="give values from 0 to 1")
    z = _quantile((1 + confidence) / 2, confidence)
    mean = total / n
    scale = 1 + z * z / n
    centre = (mean + z * z / (2 * n)) / scale
    half = z / scale * math.sqrt(mean * (1 - mean) / n + z * z / (4 * n * n))
    return max(0.0, centre - half), min(1.0, centre + half)


def images_needed(
    lost: int, gained: int, n: int, margin: float, *, power: float = POWER
) -> int | None:
    """How many images would show that the drop is within `margin` (a proportion).

    Assumes that the discordant rate and the drop stay as observed; None where
    the observed drop reaches the margin, so that no number would do. The
    count is the equivalence form (Chow, Shao and Wang, Sample Size
    Calculations in Clinical Research, 2008), which splits 1 - power over both
    sides: (z[0.95] + z[(1 + power) / 2])^2 (d - drop^2) / (margin - drop)^2. At
    d = 2 %, no drop and a margin of 0.5 points that is 6,852. The gate has one
    side only and there reaches 90 % power; its plain form would say 4,946. The
    cautious one stands because d and drop are estimates themselves. With few
    discordant pairs the score bound of none at all, z^2 / (n + z^2), is the floor.
    """
    _check_counts(lost, gained, n)
    drop, discordant = (lost - gained) / n, (lost + gained) / n
    if drop >= margin:
        return None
    z = stats.norm.ppf(ONE_SIDED_CONFIDENCE)
    z_power = stats.norm.ppf((1 + power) / 2)
    paired = (z + z_power) ** 2 * (discordant - drop**2) / (margin - drop) ** 2
    floor = z**2 * (1 - margin) / margin if margin > 0 else 0
    return math.ceil(max(paired, floor))


def images_needed_for_rate(
    count: float, n: int, margin: float, *, power: float = POWER
) -> int | None:
    """How many images would show that a rate, observed as count / n, is within `margin`.

    The rate may be a mean of values in [0, 1]. Wilson's one-sided 95 % bound;
    none of n observed and a margin of 2 % need 133. None where the observed
    rate reaches the margin.
    """
    if n <= 0 or not 0 <= count <= n:
        raise InputError(f"{count} of {n} cannot be", hint="count each image once")
    rate = count / n
    if rate >= margin:
        return None
    z, z_power = stats.norm.ppf(ONE_SIDED_CONFIDENCE), stats.norm.ppf(power)
    spread = z * math.sqrt(margin * (1 - margin)) + z_power * math.sqrt(rate * (1 - rate))
    return math.ceil((spread / (margin - rate)) ** 2)


def prediction_entropy(classes: NDArray[np.integer]) -> float:
    """Entropy in bits of the predicted classes, (n,): 0.0 for one class, 1.0 for two halves.

    Raises InputError where there are no predictions.
    """
    if classes.size == 0:
        raise InputError("there are no predictions", hint="give at least one image")
    _, counts = np.unique(classes, return_counts=True)
    return float(stats.entropy(counts, base=2))


def calibration_error(
    probabilities: NDArray[np.floating], labels: NDArray[np.integer], bins: int = 15
) -> float:
    """Expected calibration error (ECE): by how much confidence and accuracy differ, in [0, 1].

    (n, classes) and (n,). Images are put into `bins` equal steps of the largest
    probability, (low, high]; the gaps are averaged, weighted by images. An
    answer of 0.9 that is right nine times of ten is 0.0. Source: Guo et al.,
    On Calibration of Modern Neural Networks, ICML 2017.
    """
    confidence = probabilities.max(axis=1)
    right = probabilities.argmax(axis=1) == labels
    place = np.clip(np.ceil(confidence * bins).astype(int) - 1, 0, bins - 1)
    gaps = np.bincount(place, weights=confidence - right, minlength=bins)
    return float(np.abs(gaps).sum() / len(labels))


def ratio_interval(
    baseline_ms: NDArray[np.floating],
    engine_ms: NDArray[np.floating],
    confidence: float = 0.95,
    seed: int = 0,
) -> tuple[float, float, float]:
    """How many times as fast the engine is: (median ratio, low, high).

    Both are (rounds,) in milliseconds, and sample i of both is of the same
    round, so what slows the whole machine cancels. The interval is the
    percentile bootstrap of the median of the per-round ratios; BCa's jackknife
    is not consistent for medians. Raises InputError unless there are at least
    two rounds, equally many of both, and every time is above zero.
    """
    baseline, engine = (np.asarray(v, dtype=np.float64) for v in (baseline_ms, engine_ms))
    if baseline.shape != engine.shape or baseline.ndim != 1 or len(baseline) < 2:
        raise InputError(
            f"cannot pair {baseline.shape} with {engine.shape} timings",
            hint="measure both in the same rounds, at least two",
        )
    if not (np.all(baseline > 0) and np.all(engine > 0)):
        raise InputError("a timing is not above zero", hint="time longer rounds")
    ratios = baseline / engine
    middle = float(np.median(ratios))
    if np.ptp(ratios) == 0:
        return middle, middle, middle
    generator = np.random.default_rng(seed)
    # Not scipy.stats.bootstrap: its seed goes by one name before 1.15 and by another after.
    resampled = generator.choice(ratios, size=(_RESAMPLES, len(ratios)))
    tail = (1 - confidence) / 2
    low, high = np.quantile(np.median(resampled, axis=1), (tail, 1 - tail))
    return middle, float(low), float(high)


def _score_bound(lost: int, gained: int, n: int, z: float) -> float:
    """The largest difference the score test at `z` does not reject."""
    if lost == n:
        return 1.0

    def excess(difference: float) -> float:
        numerator = lost - gained - n * difference
        return numerator + z * math.sqrt(_score_variance(lost, gained, n, difference))

    start = (lost - gained) / n
    if lost == gained == 0:
        # At zero the statistic is 0/0, which is a root but not the bound.
        start = min(1e-12, 1e-3 / n)
    elif gained == n:
        start = -1 + 1e-12
    return float(root_scalar(excess, bracket=(start, 1.0), method="brentq", xtol=1e-13).root)


def _score_variance(lost: int, gained: int, n: int, difference: float) -> float:
    """n times the variance of one pair, at the likeliest rates that have this difference."""
    a = 2 * n
    b = (2 * n - lost + gained) * difference - lost - gained
    c = -gained * difference * (1 - difference)
    root = math.sqrt(max(0.0, b * b - 4 * a * c))
    # Of the two equal forms of the positive root, the one that does not cancel.
    gain_rate = (root - b) / (2 * a) if b <= 0 else -2 * c / (root + b)
    return max(0.0, n * (2 * gain_rate + difference * (1 - difference)))


def _quantile(probability: float, confidence: float) -> float:
    if not 0 < confidence < 1:
        raise InputError(f"the confidence is {confidence}", hint="give a share, such as 0.95")
    return float(stats.norm.ppf(probability))


def _check_counts(lost: int, gained: int, n: int) -> None:
    if n <= 0 or lost < 0 or gained < 0 or lost + gained > n:
        raise InputError(
            f"counts {lost} and {gained} of {n} cannot be", hint="count each image once"
        )
