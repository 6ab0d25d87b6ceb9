"""The guard: a graph that has lost its answers is refused, and agreement is never free."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from numpy.typing import NDArray
from patterned import PLAIN, Patterned, patterned_images, ruined
from planted_models import norm_outliers

from vitdeploy.artifacts.onnx_model import OnnxModel
from vitdeploy.calibration import guard
from vitdeploy.calibration.gathering import Gathering
from vitdeploy.calibration.guard import (
    HELD_OUT,
    _compared,
    agreement,
    judging_images,
    require_agreement,
)
from vitdeploy.calibration.image_set import CalibrationSet, choose
from vitdeploy.calibration.quantize import Gates, quantize, tuned
from vitdeploy.calibration.tuning import Tuning
from vitdeploy.errors import GateFailedError
from vitdeploy.graph import files
from vitdeploy.images import image_digest, scan

FIRST = "blocks.0.mlp.fc2/MatMul"


def tuning_of(model: OnnxModel, calibration: CalibrationSet) -> Tuning:
    return tuned(Gathering(model=model, calibration=calibration), PLAIN)


def test_a_good_graph_passes_on_images_that_were_not_drawn(
    bench: Patterned, tmp_path: Path
) -> None:
    tuning = bench.tuning()
    found = require_agreement(tuning, tuning.plan)
    assert (found.images, found.measure, found.held_out) == (HELD_OUT, "top-1", True)
    assert found.share > 0.98
    assert quantize(bench.model, bench.calibration, tmp_path, PLAIN, gates=Gates()).path.is_file()


def test_a_collapsed_graph_is_refused_and_nothing_is_written(
    bench: Patterned, tmp_path: Path
) -> None:
    bad = ruined(bench.model, tmp_path, FIRST)
    out = tmp_path / "out"
    with pytest.raises(GateFailedError, match="lost its float version's answers") as caught:
        quantize(bad, bench.calibration, out, PLAIN, gates=Gates())
    assert caught.value.exit_code == 10
    said = str(caught.value)
    assert f"of {HELD_OUT} held-out images" in said
    assert FIRST in said
    assert said.index(FIRST) == said.index("blocks."), "the worst is named first"
    assert f"--keep {FIRST}" in str(caught.value.hint)
    assert not out.exists() or not any(out.iterdir())


def test_outliers_behind_norms_collapse_it_unless_they_are_folded(
    bench: Patterned, tmp_path: Path
) -> None:
    bad = changed(bench.model, tmp_path, lambda graph: norm_outliers(graph, 100))
    out = tmp_path / "out"
    with pytest.raises(GateFailedError, match="lost its float version's answers"):
        quantize(bad, bench.calibration, out, PLAIN, gates=Gates())
    assert not out.exists() or not any(out.iterdir())
    folded = replace(PLAIN, fold=True)
    assert quantize(bad, bench.calibration, out, folded, gates=Gates()).path.is_file()


def test_force_writes_it_and_keeping_the_layer_mends_it(bench: Patterned, tmp_path: Path) -> None:
    bad = ruined(bench.model, tmp_path, FIRST)
    forced = quantize(bad, bench.calibration, tmp_path / "a", PLAIN, gates=Gates(force=True))
    assert forced.path.is_file()
    kept = replace(PLAIN, keep=(FIRST,))
    assert quantize(bad, bench.calibration, tmp_path / "b", kept, gates=Gates()).path.is_file()


def test_held_out_images_are_none_of_the_drawn_by_their_bytes(tmp_path: Path) -> None:
    """Copies under other names count as the image that they are."""
    images = patterned_images(tmp_path, 200)
    for item in images.items[:90]:
        (tmp_path / f"copy-{item.path.name}").write_bytes(item.path.read_bytes())
    calibration = choose(scan(tmp_path), count=100)
    fresh = judging_images(calibration)
    assert fresh is not None
    digests = {image_digest(item.path) for item in fresh.items}
    assert len(digests) == len(fresh) == HELD_OUT
    assert not digests & set(calibration.digests)


def test_what_was_not_offered_is_not_judged_on(tmp_path: Path) -> None:
    """A folder may hold more than the table of it lists."""
    offered = patterned_images(tmp_path, 200).take(range(100))
    calibration = choose(offered, count=36)
    fresh = judging_images(calibration)
    assert fresh is not None
    names = {item.path for item in offered.items}
    assert {item.path for item in fresh.items} <= names
    assert judging_images(choose(offered, count=64)) is None


def test_a_folder_without_others_is_judged_on_the_set_and_says_so(
    bench: Patterned, tmp_path: Path
) -> None:
    images = patterned_images(tmp_path, 90)
    calibration = choose(images, count=32)
    assert judging_images(calibration) is None
    tuning = tuning_of(bench.model, calibration)
    found = agreement(tuning, tuning.plan)
    assert (found.images, found.held_out) == (32, False)
    assert "32 calibration images" in found.in_words()


def one_class(graph: ir.Model) -> None:
    """Class 3 by far, whatever is shown."""
    bias = graph.graph.initializers["head.bias"]
    assert bias.const_value is not None
    raised = bias.const_value.numpy().copy()
    raised[3] += 1000
    bias.const_value = ir.Tensor(raised, name="head.bias")


def changed(model: OnnxModel, folder: Path, change: Callable[[ir.Model], None]) -> OnnxModel:
    graph = files.load(model)
    change(graph)
    return files.save(graph, model.description, folder / "changed.onnx")


def test_a_model_of_one_answer_is_judged_by_what_varies(bench: Patterned, tmp_path: Path) -> None:
    """All top-1 agree, of a good graph and of a ruined one: the cosine tells them apart."""
    good = tuning_of(changed(bench.model, tmp_path, one_class), bench.calibration)
    found = require_agreement(good, good.plan)
    assert found.measure == "cosine of logits"
    assert found.share > 0.99
    assert "top-1 hardly varies" in found.in_words()

    bad = tuning_of(changed(ruined(bench.model, tmp_path, FIRST), tmp_path, one_class),
                    bench.calibration)  # fmt: skip
    with pytest.raises(GateFailedError, match="top-1 hardly varies") as caught:
        require_agreement(bad, bad.plan)
    assert FIRST in str(caught.value)


def test_images_of_one_kind_do_not_make_agreement_free(bench: Patterned, tmp_path: Path) -> None:
    images = patterned_images(tmp_path, 120, only=2)
    tuning = tuning_of(bench.model, choose(images, count=32))
    assert agreement(tuning, tuning.plan).measure == "cosine of logits"


def test_features_are_judged_by_their_cosine(bench: Patterned) -> None:
    description = replace(bench.model.description, output="features")
    model = replace(bench.model, description=description)
    tuning = tuning_of(model, bench.calibration)
    found = require_agreement(tuning, tuning.plan)
    assert found.measure == "cosine"
    assert 0.99 < found.share < 1
    assert "mean cosine" in found.in_words()


def varied(count: int = 100, classes: int = 5) -> NDArray[np.float32]:
    return np.random.default_rng(0).normal(size=(count, classes)).astype(np.float32)


def test_answers_that_are_not_finite_do_not_agree() -> None:
    exact = np.abs(varied())
    exact[:50, 0] += 10  # half of them class 0, which is NaN's argmax too
    broken = exact.copy()
    broken[:20] = np.nan
    broken[20:30, 0] = np.inf
    assert _compared(exact, broken, classes=True) == (0.7, "top-1")
    share, measure = _compared(exact, broken, classes=False)
    assert measure == "cosine"
    assert share == pytest.approx(0.7, abs=1e-6)


@pytest.mark.parametrize(("common", "measure"), [(89, "top-1"), (90, "cosine of logits")])
def test_a_constant_would_agree(common: int, measure: str) -> None:
    """Where one class is nine tenths of the answers, a constant holds the bar."""
    exact = varied() * 0.1
    exact[:common, 1] += 10
    exact[common:, 2] += 10
    constant = np.tile(np.eye(5, dtype=np.float32)[1], (100, 1))
    share, found = _compared(exact, constant, classes=True)
    assert found == measure
    assert share < guard.LEAST_AGREEMENT


def test_a_model_that_never_varies_agrees_with_nothing() -> None:
    same = np.tile(varied(1), (100, 1))
    assert _compared(same, same, classes=True) == (0.0, "cosine of logits")


def test_single_numbers_are_correlated() -> None:
    """The cosine of one number is its sign, which noise around the mean flips."""
    exact = varied(classes=1)
    share, _ = _compared(exact, exact + 0.1 * varied(100, 2)[:, 1:], classes=False)
    assert 0.98 < share < 1
    assert _compared(exact, 2 * exact.mean() - exact, classes=False)[0] == pytest.approx(-1)
