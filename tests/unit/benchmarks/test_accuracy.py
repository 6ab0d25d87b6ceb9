from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from vitdeploy.artifacts.files import from_json, to_json
from vitdeploy.benchmarks.accuracy.classes import MAX_FLIPPED, AccuracyComparison, compare
from vitdeploy.benchmarks.statistics import tango_interval, tango_upper
from vitdeploy.errors import GateFailedError, InputError

Logits = NDArray[np.float32]


def answers(classes: NDArray[np.int64], count: int = 10) -> Logits:
    """Logits whose top-1 is `classes`."""
    noise = np.random.default_rng(0).normal(0, 0.1, (len(classes), count))
    return (noise + 4 * np.eye(count)[classes]).astype(np.float32)


def labels_of(n: int) -> NDArray[np.int64]:
    return np.random.default_rng(1).integers(0, 10, n)


def with_wrong(labels: NDArray[np.int64], indices: range) -> NDArray[np.int64]:
    changed = labels.copy()
    changed[list(indices)] = (changed[list(indices)] + 1) % 10
    return changed


def test_counts_bounds_and_verdict_of_a_known_table() -> None:
    labels = labels_of(2000)
    source = answers(with_wrong(labels, range(0, 202)))
    engine = answers(with_wrong(labels, range(2, 205)))
    found = compare(source, engine, labels)
    assert (found.lost, found.gained) == (3, 2)
    assert found.source_top1 == pytest.approx(1 - 202 / 2000)
    assert found.engine_top1 == pytest.approx(1 - 203 / 2000)
    assert found.drop_points == pytest.approx(0.05)
    assert found.drop_upper_points == pytest.approx(100 * tango_upper(3, 2, 2000))
    low, high = tango_interval(3, 2, 2000, 0.95)
    assert found.drop_interval_points == pytest.approx((100 * low, 100 * high))
    assert found.agreement == pytest.approx(1 - 5 / 2000)
    assert found.flipped == (0, 1, 202, 203, 204)
    assert found.verdict == "pass"
    assert found.images_needed is None
    assert found.source_entropy_bits == pytest.approx(np.log2(10), abs=0.02)


def test_a_real_drop_fails_and_few_images_are_inconclusive() -> None:
    labels = labels_of(2000)
    dropped = compare(answers(labels), answers(with_wrong(labels, range(60))), labels)
    assert (dropped.verdict, dropped.drop_points) == ("fail", pytest.approx(3.0))
    few = compare(answers(labels[:200]), answers(labels[:200]), labels[:200])
    assert few.verdict == "inconclusive"
    assert few.images_needed == 539


def test_a_drop_at_the_margin_cannot_be_settled_by_more_images() -> None:
    labels = labels_of(400)
    found = compare(answers(labels), answers(with_wrong(labels, range(2))), labels)
    assert (found.verdict, found.images_needed) == ("inconclusive", None)


def test_without_labels_the_disagreement_is_judged() -> None:
    labels = labels_of(1000)
    same = compare(answers(labels), answers(with_wrong(labels, range(5))), None)
    assert same.verdict == "pass"
    assert (same.source_top1, same.drop_points, same.mcnemar_p) == (None, None, None)
    other = compare(answers(labels), answers(with_wrong(labels, range(100))), None)
    assert other.verdict == "fail"
    assert len(other.flipped) == MAX_FLIPPED
    few = compare(answers(labels[:50]), answers(labels[:50]), None)
    assert (few.verdict, few.images_needed) == ("inconclusive", 133)


def test_nan_rows_never_count_as_agreement() -> None:
    # The planted defect: argmax of a NaN row is 0, and the true class is 0 there too.
    labels = labels_of(1000)
    engine = answers(labels)
    rows = np.flatnonzero(labels == 0)[:7]
    engine[rows] = np.nan
    assert (engine.argmax(axis=1) == labels).all()
    with pytest.raises(GateFailedError, match=rf"the engine answers 7 of 1000.*image {rows[0]}"):
        compare(answers(labels), engine, labels)
    with pytest.raises(GateFailedError, match="the source answers 7 of 1000"):
        compare(engine, answers(labels), labels)


def test_one_infinite_logit_is_enough_to_fail() -> None:
    engine = answers(labels_of(100))
    engine[40, 3] = np.inf
    with pytest.raises(GateFailedError, match="first image 40"):
        compare(answers(labels_of(100)), engine, None)


def test_constant_engine_fails_even_on_an_imbalanced_set() -> None:
    labels = np.zeros(1000, dtype=np.int64)
    labels[:4] = 1
    constant = answers(np.zeros(1000, dtype=np.int64))
    assert (constant.argmax(axis=1) == labels).mean() == 0.996
    for truth in (labels, None):
        with pytest.raises(GateFailedError, match="the engine has collapsed"):
            compare(answers(labels), constant, truth)


def test_an_engine_that_prefers_the_largest_class_has_collapsed_too() -> None:
    """It answers another class once, so it is no constant, and drops 0.3 points only."""
    labels = np.zeros(1000, dtype=np.int64)
    labels[:4] = 1
    nearly = np.zeros(1000, dtype=np.int64)
    nearly[0] = 1
    with pytest.raises(GateFailedError, match=r"carry 0\.01 bits .* has collapsed"):
        compare(answers(labels), answers(nearly), labels)


def test_what_labels_tell_beside_the_drop() -> None:
    labels = labels_of(1000)
    engine = answers(labels)
    shown = np.flatnonzero(labels == 3)[:5]
    engine[shown, 3] = -1  # last of all: not among the five best either
    second = np.flatnonzero(labels == 4)[:2]
    engine[second, 5] = 9  # label is second best
    found = compare(answers(labels), engine, labels)
    assert (found.source_top5, found.engine_top5) == (1.0, pytest.approx(0.995))
    assert found.engine_top1 == pytest.approx(0.993)
    counts = np.bincount(labels)
    by_class = {c.index: c for c in found.classes}
    assert {i: c.images for i, c in by_class.items()} == dict(enumerate(counts.tolist()))
    assert [c.index for c in found.most_changed()] == [3, 4]
    assert by_class[3].engine_right == by_class[3].source_right - 5
    assert found.source_ece is not None
    shares = np.exp(answers(labels)) / np.exp(answers(labels)).sum(axis=1, keepdims=True)
    assert found.source_ece == pytest.approx(1 - shares.max(axis=1).mean(), rel=1e-4)
    as_shares = compare(shares, shares, labels, probabilities=True)
    assert as_shares.source_ece == pytest.approx(found.source_ece, rel=1e-4)


def test_top_5_of_equal_logits_is_not_free() -> None:
    labels = np.arange(100) % 10
    source = answers(labels)
    flat = source.copy()
    flat[50:] = 0
    flat[50:, 0] = 1e-3
    found = compare(source, flat, labels)
    assert found.engine_top5 == pytest.approx(0.5 + 0.5 * 5 / 10)


def test_without_labels_nothing_is_said_of_them() -> None:
    found = compare(answers(labels_of(300)), answers(labels_of(300)), None)
    assert (found.source_top5, found.source_ece, found.classes) == (None, None, ())
    assert found.loss().limit == 2.0


def test_half_a_point_at_two_percent_discordant_says_6900_images() -> None:
    """End to end: the verdict is inconclusive and names what a run must have."""
    labels = labels_of(2000)
    source = answers(with_wrong(labels, range(200, 220)))
    engine = answers(with_wrong(labels, range(300, 320)))
    found = compare(source, engine, labels)
    assert (found.lost, found.gained, found.verdict) == (20, 20, "inconclusive")
    assert found.images_needed == pytest.approx(6900, rel=0.02)


def test_constant_source_makes_agreement_free() -> None:
    constant = answers(np.full(50, 3))
    with pytest.raises(GateFailedError, match="proves nothing"):
        compare(constant, constant, None)


@pytest.mark.parametrize("shuffled", [False, True])
def test_shifted_or_shuffled_labels_are_refused(shuffled: bool) -> None:
    labels = labels_of(600)
    wrong = np.random.default_rng(4).permutation(labels) if shuffled else (labels + 1) % 10
    with pytest.raises(GateFailedError, match="of chance"):
        compare(answers(labels), answers(labels), wrong)
    assert compare(answers(labels), answers(labels), labels).verdict == "pass"


def test_labels_of_one_class_are_not_called_shuffled() -> None:
    labels = np.zeros(600, dtype=np.int64)
    source = answers(with_wrong(labels, range(50)))
    assert compare(source, source, labels).verdict == "pass"


def test_scale_of_errors_and_cosine() -> None:
    source = answers(labels_of(100))
    scaled = compare(source, 2 * source, None)
    assert scaled.cosine_min == pytest.approx(1.0)
    shifted = source.copy()
    shifted[5, 5] += 0.5
    assert compare(source, shifted, None).max_error == pytest.approx(0.5 / source.std(), rel=1e-4)


@pytest.mark.parametrize(
    ("engine_shape", "labels"),
    [((99, 10), None), ((100, 9), None), ((100, 10), np.zeros(99)), ((100, 10), np.full(100, 10))],
)
def test_what_does_not_pair_up_is_refused(
    engine_shape: tuple[int, int], labels: NDArray[np.int64] | None
) -> None:
    with pytest.raises(InputError):
        compare(answers(labels_of(100)), np.zeros(engine_shape, np.float32), labels)


def test_nothing_to_compare_is_refused() -> None:
    empty = np.zeros((0, 10), np.float32)
    with pytest.raises(InputError):
        compare(empty, empty, None)


@pytest.mark.parametrize("labelled", [True, False])
def test_json_round_trip(labelled: bool) -> None:
    labels = labels_of(300)
    found = compare(
        answers(labels), answers(with_wrong(labels, range(2))), labels if labelled else None
    )
    assert from_json(to_json(found), AccuracyComparison, origin="test") == found
