"""Layers back to float: the worst first, no more than needed, reported on what chose nothing."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from patterned import PLAIN, Patterned, patterned_images, ruined

from vitdeploy.artifacts.onnx_model import read_onnx_model
from vitdeploy.benchmarks.statistics import tango_upper
from vitdeploy.calibration import fallback
from vitdeploy.calibration.fallback import MINIMUM, find_fallback
from vitdeploy.calibration.plan import QuantizationPlan
from vitdeploy.calibration.quantize import Gates, quantize
from vitdeploy.calibration.tuning import Tuning
from vitdeploy.errors import GateFailedError, InconclusiveError, InputError
from vitdeploy.images import ImageSet, image_digest, scan
from vitdeploy.progress import SILENT, Task

FIRST, SECOND = "blocks.0.mlp.fc2/MatMul", "blocks.1.mlp.fc2/MatMul"
EASY = 2.0
"""Points; two hundred images without a single loss bound the drop at 1.33."""


class Noted:
    """A sink that keeps what is said."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def task(self, description: str, total: int | None = None) -> AbstractContextManager[Task]:
        return SILENT.task(description, total)

    def note(self, text: str) -> None:
        self.notes.append(text)


def test_a_good_model_keeps_everything_quantized(bench: Patterned) -> None:
    noted = Noted()
    tuning = bench.tuning(progress=noted)
    found = find_fallback(tuning, bench.evaluation, max_drop_points=EASY)
    assert found.part == tuning.plan
    chosen, reported = found.steps
    assert (chosen.kept, chosen.held_out, chosen.verdict) == (0, False, "pass")
    assert (reported.kept, reported.held_out, reported.verdict) == (0, True, "pass")
    assert chosen.images == reported.images == 200
    assert all(step.agreement > 0.99 and step.images_per_second > 0 for step in found.steps)
    assert noted.notes == [step.in_words() for step in found.steps]
    assert "choosing half of 200" in noted.notes[0]
    assert "held-out half of 200" in noted.notes[1]


@pytest.mark.parametrize(
    ("layers", "back"), [((SECOND,), [0, 1, 1]), ((FIRST, SECOND), [0, 1, 2, 2])]
)
def test_the_most_sensitive_go_first_until_it_holds(
    layers: tuple[str, ...], back: list[int], bench: Patterned
) -> None:
    tuning = bench.tuning(*layers)
    found = find_fallback(tuning, bench.evaluation, max_drop_points=EASY)
    assert [step.kept for step in found.steps] == back
    gone = {node.name for node in tuning.plan.linear} - {node.name for node in found.part.linear}
    assert gone == set(layers)
    for name in layers:
        assert "quantized alone it moves the answers by" in found.part.kept[name]
    drops = [step.drop_points or 0 for step in found.steps]
    assert drops[0] > EASY
    assert drops == sorted(drops, reverse=True)
    assert [step.verdict for step in found.steps] == ["fail"] * (len(back) - 2) + ["pass", "pass"]


def test_the_curve_stands_in_the_file(bench: Patterned, tmp_path: Path) -> None:
    bad = ruined(bench.model, tmp_path, SECOND)
    gates = Gates(max_drop_points=EASY, evaluation=bench.evaluation)
    written = quantize(bad, bench.calibration, tmp_path / "out", PLAIN, gates=gates)
    made = read_onnx_model(written.path).description.quantization
    assert made is not None
    assert [(step.kept, step.held_out) for step in made.fallback] == [
        (0, False),
        (1, False),
        (1, True),
    ]
    assert SECOND not in made.quantized
    assert "sensitive" in made.kept[SECOND]


def constant(tuning: Tuning) -> None:
    """The head reads zeros: one class, whatever is shown."""
    tuning.scales[head(tuning)[1]] = 1e4


def not_finite(tuning: Tuning) -> None:
    tuning.shifts[head(tuning)[0]] = np.full(10, np.nan, np.float32)


def head(tuning: Tuning) -> tuple[str, str]:
    return next((n.name, n.activation) for n in tuning.plan.linear if n.name.startswith("head"))


@pytest.mark.parametrize(("collapse", "agreement"), [(constant, 0.1), (not_finite, 0.0)])
def test_a_graph_that_collapsed_falls_back_too(
    collapse: Callable[[Tuning], None], agreement: float, bench: Patterned
) -> None:
    tuning = bench.tuning()
    collapse(tuning)
    found = find_fallback(tuning, bench.evaluation, max_drop_points=EASY)
    first, second, _ = found.steps
    assert (first.kept, first.verdict) == (0, "fail")
    assert first.agreement == pytest.approx(agreement, abs=0.06)
    lost = round((first.drop_points or 0) * 2)
    assert lost == pytest.approx(200 * (1 - agreement), abs=12)
    assert first.drop_upper_points == pytest.approx(100 * tango_upper(lost, 0, 200))
    assert (second.kept, second.verdict) == (1, "pass")
    assert set(tuning.plan.quantized) - set(found.part.quantized) == {head(tuning)[0]}


def test_it_stops_where_the_images_cannot_tell(bench: Patterned) -> None:
    noted = Noted()
    tuning = bench.tuning(progress=noted)
    with pytest.raises(InconclusiveError, match="200 images cannot tell") as caught:
        find_fallback(tuning, bench.evaluation, max_drop_points=0.5)
    assert caught.value.exit_code == 11
    assert len(noted.notes) == 1, "nothing is tried beyond that"
    # 541 images without one loss bound the drop at 0.5 points; two halves of them are needed.
    assert f"give about {2 * images_bounding(0.5):,} evaluation" in str(caught.value.hint)


def images_bounding(points: float) -> int:
    """So many images, none lost, have their bound within it: searched one by one."""
    return next(n for n in range(1, 10_000) if 100 * tango_upper(0, 0, n) <= points)


def test_what_no_layer_mends_is_refused(bench: Patterned, monkeypatch: pytest.MonkeyPatch) -> None:
    tuning = bench.tuning(FIRST, SECOND)
    monkeypatch.setattr(fallback, "_counts", lambda units: iter([0, 1]))
    with pytest.raises(GateFailedError, match="with 1 nodes back in float the drop is still"):
        find_fallback(tuning, bench.evaluation, max_drop_points=EASY)


def test_most_layers_go_back_and_never_all() -> None:
    assert list(fallback._counts(9)) == [0, 1, 2, 4, 8]
    assert list(fallback._counts(8)) == [0, 1, 2, 4]
    assert list(fallback._counts(1)) == [0]


def test_what_held_where_it_was_chosen_may_fail_elsewhere(
    bench: Patterned, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reporting half is judged anew, and its verdict is the one that counts."""
    judged = fallback._Judge.judged

    def on_hard_images(self: fallback._Judge, part: QuantizationPlan):
        if self is not first[0]:
            part = whole
        return judged(self, part)

    tuning = bench.tuning(SECOND)
    whole, first = tuning.plan, []
    made = fallback._Judge.__init__
    monkeypatch.setattr(
        fallback._Judge,
        "__init__",
        lambda self, *rest: (first.append(self), made(self, *rest))[1],
    )
    monkeypatch.setattr(fallback._Judge, "judged", on_hard_images)
    with pytest.raises((GateFailedError, InconclusiveError)):
        find_fallback(tuning, bench.evaluation, max_drop_points=EASY)


def content(images: ImageSet) -> set[str]:
    return {image_digest(item.path) for item in images.items}


def with_copies(folder: Path) -> ImageSet:
    """Every image twice, under two names."""
    images = patterned_images(folder, 150)
    for item in images.items:
        (folder / f"copy-{item.path.name}").write_bytes(item.path.read_bytes())
    return scan(folder)


def test_the_halves_share_no_image_nor_a_copy_of_one(tmp_path: Path) -> None:
    images = with_copies(tmp_path)
    one, two = fallback._halves(images, 0)
    assert len(one) == len(two) == 75
    assert not content(one) & content(two)
    assert content(one) | content(two) == content(images)
    assert fallback._halves(images, 0) == (one, two)
    assert fallback._halves(images, 1) != (one, two)


def test_copies_would_leak_from_one_half_into_the_other(tmp_path: Path) -> None:
    """Mutation: halves by name alone, as if no two files were the same image."""
    images = with_copies(tmp_path)
    one, two = images.take(range(0, 300, 2)), images.take(range(1, 300, 2))
    assert not {item.path for item in one.items} & {item.path for item in two.items}
    shuffled = np.random.default_rng(0).permutation(300)
    one, two = images.take(shuffled[:150].tolist()), images.take(shuffled[150:].tolist())
    assert content(one) & content(two)


def test_too_few_images_to_halve(bench: Patterned) -> None:
    tuning = bench.tuning()
    few = bench.evaluation.take(range(2 * MINIMUM - 1))
    with pytest.raises(InputError, match="127 different evaluation images are too few") as caught:
        find_fallback(tuning, few, max_drop_points=EASY)
    assert "128" in str(caught.value.hint)
    enough = bench.evaluation.take(range(2 * MINIMUM))
    assert find_fallback(tuning, enough, max_drop_points=10).part == tuning.plan


def test_images_that_were_calibrated_with_are_refused(bench: Patterned, tmp_path: Path) -> None:
    folder = tmp_path / "evaluation"
    patterned_images(folder, 150, seed=7)
    seen = bench.calibration.images.items[5].path
    (folder / "another-name.png").write_bytes(seen.read_bytes())
    tuning = bench.tuning()
    with pytest.raises(InputError, match=r"1 of 151 .* calibration .*another-name") as caught:
        find_fallback(tuning, scan(folder), max_drop_points=EASY)
    assert caught.value.hint


def test_labels_count_where_there_are_any(bench: Patterned) -> None:
    """Half of the labels are wrong: there neither float nor INT8 can lose anything."""
    images = bench.evaluation
    right = [int(item.path.stem) % 10 for item in images.items]
    wrong = [(label + 1 + index) % 10 if index % 4 == 0 else label
             for index, label in enumerate(right)]  # fmt: skip
    labels = tuple(str(label) for label in range(10))

    def labelled(by: list[int]) -> ImageSet:
        items = tuple(
            replace(item, label=label) for item, label in zip(images.items, by, strict=True)
        )
        return replace(images, items=items, labels=labels)

    tuning = bench.tuning(FIRST, SECOND)
    all_right, unlabelled, some_wrong = (
        fallback._Judge(tuning, given, EASY, SILENT).judged(tuning.plan)[0]
        for given in (labelled(right), images, labelled(wrong))
    )
    # The float model names every pattern, so its answers are the labels.
    assert replace(all_right, images_per_second=1) == replace(unlabelled, images_per_second=1)
    assert some_wrong.agreement == all_right.agreement
    assert (some_wrong.drop_points or 0) < 0.9 * (all_right.drop_points or 0)


def test_a_float_model_of_one_class_is_told_before_anything_is_searched(
    bench: Patterned, tmp_path: Path
) -> None:
    images = patterned_images(tmp_path / "one", 130, seed=8, only=4)
    noted = Noted()
    tuning = bench.tuning(progress=noted)
    with pytest.raises(GateFailedError, match=r"the source answers class \d on all 65 images"):
        find_fallback(tuning, images, max_drop_points=EASY)
    assert noted.notes == []


def test_a_model_without_classes_is_refused(bench: Patterned) -> None:
    tuning = bench.tuning()
    model = tuning.gathering.model
    features = replace(model, description=replace(model.description, output="features"))
    tuning.gathering = replace(tuning.gathering, model=features)
    with pytest.raises(InputError, match="features"):
        find_fallback(tuning, bench.evaluation, max_drop_points=EASY)


def test_a_drop_without_images_is_refused_before_any_pass(
    bench: Patterned, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vitdeploy.calibration.quantize.tuned", None)
    with pytest.raises(InputError, match="no images to see it on") as caught:
        quantize(bench.model, bench.calibration, tmp_path, gates=Gates(max_drop_points=1.0))
    assert "--eval" in str(caught.value.hint)
