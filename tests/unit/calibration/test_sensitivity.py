"""Which layer is blamed: the one that was ruined, and by as much as it moves the answers."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from patterned import Patterned

from vitdeploy.backends.onnxruntime_ import GraphSession
from vitdeploy.calibration.answers import answers, error_between, inputs_of
from vitdeploy.calibration.gathering import Gathering
from vitdeploy.calibration.plan import QuantizationPlan
from vitdeploy.calibration.qdq import insert_qdq
from vitdeploy.calibration.quantize import QuantizationOptions, tuned
from vitdeploy.calibration.sensitivity import sensitivities
from vitdeploy.calibration.statistics import search_images
from vitdeploy.graph import files
from vitdeploy.target import parse_targets

FIRST, SECOND = "blocks.0.mlp.fc2/MatMul", "blocks.1.mlp.fc2/MatMul"


@pytest.mark.parametrize(("bad", "other"), [(FIRST, SECOND), (SECOND, FIRST)])
def test_the_ruined_layer_comes_first(bad: str, other: str, bench: Patterned) -> None:
    found = sensitivities(bench.tuning(bad))
    assert found[0].names == (bad,)
    assert found[0].error > 10 * found[1].error
    assert found[0].in_words().startswith(f"{bad} (")
    errors = [entry.error for entry in found]
    assert errors == sorted(errors, reverse=True)
    assert other in {name for entry in found for name in entry.names}


def test_nothing_is_blamed_where_nothing_is_ruined(bench: Patterned) -> None:
    found = sensitivities(bench.tuning())
    assert len(found) == 9
    assert 0 < found[-1].error <= found[0].error < 0.05


def test_the_error_is_that_of_one_layer_alone(bench: Patterned) -> None:
    """The other bad layer does not hide in it: measured anew, with one pair written by hand."""
    tuning = bench.tuning(FIRST, SECOND)
    images = search_images(bench.calibration).images
    inputs = np.concatenate(inputs_of(images, bench.model.description))
    exact = GraphSession(files.serialize(tuning.graph), optimize=False).run(inputs)
    for entry in sensitivities(tuning)[:2]:
        graph = tuning.graph.clone()
        (layer,) = entry.unit.linear
        one = QuantizationPlan((layer,), {})
        scale = {layer.activation: tuning.scales[layer.activation]}
        insert_qdq(graph, one, scale)
        answered = GraphSession(files.serialize(graph), optimize=False).run(inputs)
        spread = (exact - exact.mean(axis=0)).std()
        error = np.sqrt(((answered - exact) ** 2).mean()) / spread
        assert entry.error == pytest.approx(error, rel=1e-4)
        assert entry.error > 0.3


def test_the_products_of_one_attention_are_one_unit(bench: Patterned) -> None:
    gathering = Gathering(model=bench.model, calibration=bench.calibration)
    gpu = QuantizationOptions(
        method="absmax",
        correct_bias=False,
        targets=parse_targets("sm89"),
        runtime="tensorrt",
    )
    found = sensitivities(tuned(gathering, gpu))
    pairs = {entry.names for entry in found if len(entry.names) == 2}
    assert pairs == {(f"blocks.{i}.attn/MatMul", f"blocks.{i}.attn/MatMul_1") for i in (0, 1)}
    assert len(found) == 11


def test_errors_are_in_deviations_between_images() -> None:
    generator = np.random.default_rng(0)
    exact = generator.normal(0, 3, (2000, 4)).astype(np.float32)
    exact += np.array([1000, 0, -1000, 7], np.float32)  # means of classes are no deviation
    answered = exact + np.float32(1.5)
    assert error_between(exact, answered) == pytest.approx(0.5, rel=0.02)
    assert error_between(exact, exact) == 0
    constant = np.ones((3, 2), np.float32)
    assert np.isfinite(error_between(constant, constant))


def test_batches_do_not_change_the_answers(bench: Patterned) -> None:
    graph = files.load(bench.model)
    few = bench.images.take(range(11))
    parts: list[NDArray] = inputs_of(few, bench.model.description)
    assert [len(part) for part in parts] == [8, 3]
    whole = answers(graph, [np.concatenate(parts)])
    np.testing.assert_allclose(answers(graph, parts), whole, rtol=1e-5, atol=1e-5)
