"""Features, multi-label heads and regressions: judged, refused, and shown like classes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from vitdeploy.artifacts.files import from_json, to_json
from vitdeploy.benchmarks.accuracy import ranking
from vitdeploy.benchmarks.accuracy.comparison import Comparison
from vitdeploy.benchmarks.accuracy.features import NEIGHBOURS, compare_features, nearest
from vitdeploy.benchmarks.accuracy.judging import AnyComparison
from vitdeploy.benchmarks.accuracy.kinds import kind_of
from vitdeploy.benchmarks.accuracy.multilabel import compare_multilabel
from vitdeploy.benchmarks.accuracy.regression import compare_regression
from vitdeploy.errors import GateFailedError, InputError

Rows = NDArray[np.float32]


def rows(n: int, width: int = 24, seed: int = 0, shift: float = 0.0) -> Rows:
    return (shift + np.random.default_rng(seed).normal(size=(n, width))).astype(np.float32)


def noisy(exact: Rows, share: float, seed: int = 9) -> Rows:
    return exact + share * rows(*exact.shape, seed=seed) * exact.std(axis=0)


class TestFeatures:
    def test_equal_features_pass_and_need_enough_images(self) -> None:
        exact = rows(200)
        found = compare_features(exact, exact)
        assert (found.verdict, found.nearest_kept, found.neighbours_kept) == ("pass", 1.0, 1.0)
        assert found.cosine_mean == pytest.approx(1.0)
        few = compare_features(exact[:60], exact[:60])
        assert (few.verdict, few.images_needed) == ("inconclusive", 133)

    def test_figures_against_a_slow_reference(self) -> None:
        exact, given = rows(40, shift=3.0), noisy(rows(40, shift=3.0), 0.3)
        found = compare_features(exact, given)
        a, b = exact - exact.mean(axis=0), given - exact.mean(axis=0)
        slow = [
            float(x @ y / np.linalg.norm(x) / np.linalg.norm(y)) for x, y in zip(a, b, strict=True)
        ]
        assert found.cosine_mean == pytest.approx(np.mean(slow), abs=1e-5)
        kept, same = [], []
        for index in range(40):
            own = []
            for points in (a, b):
                likeness = [
                    float(
                        points[index]
                        @ other
                        / np.linalg.norm(points[index])
                        / np.linalg.norm(other)
                    )
                    for other in points
                ]
                order = sorted(set(range(40)) - {index}, key=lambda i, s=likeness: -s[i])
                own.append(order[:NEIGHBOURS])
            kept.append(len(set(own[0]) & set(own[1])) / NEIGHBOURS)
            same.append(own[0][0] == own[1][0])
        assert found.neighbours_kept == pytest.approx(np.mean(kept))
        assert found.nearest_kept == pytest.approx(np.mean(same))

    def test_a_constant_that_all_images_share_hides_nothing(self) -> None:
        exact = rows(200, shift=100.0)
        other = rows(200, seed=1, shift=100.0)
        raw = (exact * other).sum(1) / np.linalg.norm(exact, axis=1) / np.linalg.norm(other, axis=1)
        assert raw.mean() > 0.999
        found = compare_features(exact, other)
        assert found.cosine_mean < 0.1
        assert found.verdict == "fail"

    def test_a_shift_of_all_features_is_a_loss(self) -> None:
        exact = rows(300)
        assert compare_features(exact, exact + 1.0).verdict == "fail"

    def test_neighbours_fail_where_the_cosine_alone_would_pass(self) -> None:
        """Groups of near images: noise within a group turns nothing, and changes all neighbours."""
        centers = rows(6, 64, seed=3)
        exact = np.repeat(centers, 50, axis=0) + 0.05 * rows(300, 64, seed=4)
        found = compare_features(exact, exact + 0.05 * rows(300, 64, seed=5))
        assert found.lost_cosine.upper < found.lost_cosine.limit
        assert found.verdict == "fail"
        assert found.loss() == found.lost_neighbours

    def test_nearest_looks_past_its_blocks(self) -> None:
        many = rows(1100, 8).astype(np.float64)
        unit = many / np.linalg.norm(many, axis=1, keepdims=True)
        likeness = unit @ unit.T
        np.fill_diagonal(likeness, -2)
        np.testing.assert_array_equal(nearest(many, 1)[:, 0], likeness.argmax(axis=1))

    def test_tokens_are_one_row_an_image(self) -> None:
        tokens = rows(150 * 4, 12).reshape(150, 4, 12)
        assert compare_features(tokens, tokens).verdict == "pass"
        broken = tokens.copy()
        broken[:, 2] = np.roll(broken[:, 2], 1, axis=0)
        assert compare_features(tokens, broken).verdict == "fail"

    def test_too_few_images_for_neighbours(self) -> None:
        with pytest.raises(InputError, match="11 images"):
            compare_features(rows(11), rows(11))


def slow_average_precision(scores: NDArray, truth: NDArray) -> float:
    total = 0.0
    for threshold in sorted(set(scores.tolist()), reverse=True):
        above = scores >= threshold
        gained = truth[scores == threshold].sum() / truth.sum()
        total += gained * truth[above].mean()
    return total


def tagged(n: int, classes: int = 12, seed: int = 0) -> tuple[Rows, NDArray[np.bool_]]:
    """Scores that find most of the labels, about two an image."""
    generator = np.random.default_rng(seed)
    truth = generator.random((n, classes)) < 2 / classes
    scores = 4.0 * truth - 2.0 + generator.normal(size=truth.shape)
    return scores.astype(np.float32), truth


class TestMultilabel:
    def test_map_against_a_slow_reference_ties_and_all(self) -> None:
        scores, truth = tagged(80)
        scores = np.round(scores)  # many ties
        truth[:, 3] = False
        slow = [
            slow_average_precision(scores[:, c], truth[:, c])
            for c in range(12)
            if truth[:, c].any()
        ]
        assert ranking.mean_average_precision(scores, truth) == pytest.approx(np.mean(slow))

    def test_resampling_equals_repeating_images(self) -> None:
        scores, truth = tagged(50)
        drawn = np.random.default_rng(1).integers(0, 50, 50)
        weights = np.bincount(drawn, minlength=50)[None]
        again = ranking.mean_average_precision(scores[drawn], truth[drawn])
        assert ranking.resampled_map(scores, truth, weights)[0] == pytest.approx(again)

    def test_a_small_loss_passes_and_a_large_one_fails(self) -> None:
        scores, truth = tagged(1000)
        slight = scores + 0.02 * rows(1000, 12, seed=5)
        found = compare_multilabel(scores, slight, truth)
        assert found.verdict == "pass"
        assert found.source_map == pytest.approx(ranking.mean_average_precision(scores, truth))
        ruined = compare_multilabel(scores, scores + 2 * rows(1000, 12, seed=5), truth)
        assert ruined.verdict == "fail"
        assert ruined.judged.value > 5

    def test_no_difference_on_few_images_proves_little(self) -> None:
        scores, truth = tagged(200)
        found = compare_multilabel(scores, scores, truth)
        assert (found.verdict, found.judged.value) == ("inconclusive", 0.0)
        assert found.images_needed is not None
        assert found.images_needed > 200

    def test_the_interval_of_the_drop_covers(self) -> None:
        """Against the drop on a population that the images are drawn from."""
        scores, truth = tagged(20_000, 6)
        engine = scores + 0.8 * rows(20_000, 6, seed=6)
        drop = ranking.mean_average_precision(scores, truth) - ranking.mean_average_precision(
            engine, truth
        )
        covered = 0
        for start in range(0, 20_000, 500):
            part = slice(start, start + 500)
            drawn = ranking.resampled_drops(scores[part], engine[part], truth[part])
            covered += float(np.quantile(drawn, 0.025)) <= drop <= float(np.quantile(drawn, 0.975))
        assert covered >= 34  # of 40

    def test_without_labels_the_label_sets_are_compared(self) -> None:
        scores, _ = tagged(1000)
        engine = scores.copy()
        engine[:3] *= -1
        found = compare_multilabel(scores, engine, None)
        assert (found.verdict, found.source_map) == ("pass", None)
        assert found.flipped == (0, 1, 2)
        assert found.agreement == pytest.approx(0.997)
        engine[:60] *= -1
        assert compare_multilabel(scores, engine, None).verdict == "fail"

    def test_probabilities_have_their_own_threshold(self) -> None:
        scores, _ = tagged(300)
        shares = (1 / (1 + np.exp(-scores))).astype(np.float32)
        found = compare_multilabel(shares, shares, None, probabilities=True)
        assert found.labels_per_image == pytest.approx(float((scores > 0).sum(1).mean()))

    @pytest.mark.parametrize("shuffled", [False, True])
    def test_shifted_or_shuffled_labels_are_refused(self, shuffled: bool) -> None:
        scores, truth = tagged(400)
        wrong = np.roll(truth, 1, axis=1)
        if shuffled:
            wrong = truth[np.random.default_rng(3).permutation(400)]
        with pytest.raises(GateFailedError, match="no better than shuffled"):
            compare_multilabel(scores, scores, wrong)

    def test_a_source_that_gives_all_images_the_same_labels(self) -> None:
        scores = -5 + rows(100, 4)
        scores[:, 0] += 10
        with pytest.raises(GateFailedError, match="the same labels"):
            compare_multilabel(scores, scores, None)


class TestRegression:
    def test_figures_of_a_known_error(self) -> None:
        exact = rows(4000, 3, shift=50.0) * np.array([1, 100, 0.01], np.float32)
        found = compare_regression(exact, noisy(exact, 0.1))
        assert found.relative_error == pytest.approx(0.1, rel=0.05)
        assert found.r2 == pytest.approx(0.99, abs=0.001)
        assert found.verdict == "pass"

    def test_one_broken_output_among_many_fails(self) -> None:
        exact = rows(500, 40)
        engine = exact.copy()
        engine[:, 7] = np.roll(engine[:, 7], 1)
        found = compare_regression(exact, engine)
        assert found.r2 > 0.94
        assert (found.verdict, found.worst_output) == ("fail", 7)

    def test_an_offset_is_an_error(self) -> None:
        exact = rows(500, 1)
        assert compare_regression(exact, exact + 0.3).verdict == "fail"
        assert compare_regression(exact, exact + 0.03).verdict == "pass"

    def test_few_images_are_inconclusive_however_equal(self) -> None:
        found = compare_regression(rows(50, 1), rows(50, 1))
        assert (found.verdict, found.images_needed) == ("inconclusive", 133)

    def test_one_wild_answer_is_told_and_counts_once(self) -> None:
        exact = rows(1000, 1)
        engine = exact.copy()
        engine[17] += 1e6
        found = compare_regression(exact, engine)
        assert found.flipped == (17,)
        assert found.judged.value == pytest.approx(0.1)
        assert found.max_error > 1e5

    def test_an_output_that_never_varies_divides_by_nothing(self) -> None:
        exact = rows(300, 2)
        exact[:, 1] = 3
        found = compare_regression(exact, noisy(exact, 0.01))
        assert found.verdict == "pass"
        assert np.isfinite(found.relative_error)


def labelled(a: Rows, b: Rows) -> AnyComparison:
    return compare_multilabel(a, b, rows(*a.shape) > 0.5)


COMPARE: dict[str, Callable[[Any, Any], AnyComparison]] = {
    "features": compare_features,
    "multilabel": lambda a, b: compare_multilabel(a, b, None),
    "multilabel with labels": labelled,
    "regression": compare_regression,
}


@pytest.mark.parametrize("compare", COMPARE.values(), ids=COMPARE)
class TestEveryKind:
    def test_rows_that_are_not_finite_fail(self, compare: Callable[..., Any]) -> None:
        for value in (np.nan, np.inf):
            broken = rows(150)
            broken[[3, 40], 2] = value
            with pytest.raises(GateFailedError, match=r"the engine answers 2 of 150.*image 3"):
                compare(rows(150), broken)
            with pytest.raises(GateFailedError, match="the source answers 2 of 150"):
                compare(broken, rows(150))

    def test_a_collapsed_engine_is_refused(self, compare: Callable[..., Any]) -> None:
        exact = rows(150)
        constant = np.tile(exact.mean(axis=0), (150, 1))
        with pytest.raises(GateFailedError, match="the engine has collapsed"):
            compare(exact, constant + 1e-7 * rows(150, seed=2))
        with pytest.raises(GateFailedError, match="proves nothing"):
            compare(constant, exact)

    @pytest.mark.parametrize("shape", [(149, 24), (150, 23), (0, 24)])
    def test_what_does_not_pair_up(
        self, compare: Callable[..., Any], shape: tuple[int, int]
    ) -> None:
        with pytest.raises(InputError):
            compare(rows(150) if shape[0] else rows(0), rows(*shape))

    def test_one_face_and_a_record_that_reads_back(self, compare: Callable[..., Any]) -> None:
        found = compare(rows(900), noisy(rows(900), 0.02))
        face: Comparison = found
        loss = face.loss()
        assert loss.low <= loss.value <= loss.upper <= loss.high or loss.value < loss.upper
        assert (loss.upper <= loss.limit) == (face.verdict == "pass")
        assert face.source_entropy_bits > 1
        assert face.facts()
        assert face.in_words()
        assert from_json(to_json(found), type(found), origin="test") == found


@pytest.mark.parametrize(
    ("task", "output", "asked", "kind"),
    [
        ("classify", "logits", None, "classes"),
        ("classify", "features", None, "features"),
        ("multilabel", "tokens", None, "features"),
        ("features", "logits", None, "features"),
        ("multilabel", "probabilities", None, "multilabel"),
        ("regress", "logits", None, "regression"),
        ("classify", "logits", "features", "features"),
        ("classify", "logits", "multilabel", "multilabel"),
    ],
)
def test_the_kind_follows_output_and_task(task: Any, output: Any, asked: Any, kind: str) -> None:
    assert kind_of(task, output, asked=asked) == kind


def test_features_are_no_classes() -> None:
    with pytest.raises(InputError, match="cannot be judged as --task classify"):
        kind_of("multilabel", "features", asked="classify")
