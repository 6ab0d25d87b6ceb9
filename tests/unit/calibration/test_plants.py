"""The plants do what they say: a proof on a plant that is none would be void."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from numpy.typing import NDArray
from planted_models import (
    OUTLIERS,
    agreement,
    entropy_bits,
    gelu_outliers,
    large_logits,
    norm_outliers,
)
from tiny_families import tiny

from vitdeploy.backends.onnxruntime_ import GraphSession
from vitdeploy.calibration.grids import INT8
from vitdeploy.calibration.linear import linear_nodes, weight_of
from vitdeploy.calibration.search import best_fold
from vitdeploy.graph import files


def observed(graph: ir.Model, kind: str) -> dict[str, NDArray[np.float32]]:
    """What every operator of a kind answers, by its output."""
    wanted = [node.outputs[0] for node in graph.graph if node.op_type == kind]
    changed = graph.clone()
    names = {value.name for value in wanted}
    changed.graph.outputs[:] = [
        value for node in changed.graph for value in node.outputs if value.name in names
    ]
    found = GraphSession(files.serialize(changed)).run_all(tiny("vit").pixels)
    return {str(v.name): array for v, array in zip(changed.graph.outputs, found, strict=True)}


def ratios(plain: NDArray[np.float32], planted: NDArray[np.float32]) -> NDArray[np.float64]:
    """For each channel, how much larger its largest magnitude has become."""
    axes = tuple(range(plain.ndim - 1))
    return np.abs(planted).max(axis=axes) / np.abs(plain).max(axis=axes).astype(np.float64)


def logits(graph: ir.Model) -> NDArray[np.float32]:
    return GraphSession(files.serialize(graph)).run(tiny("vit").pixels)


@pytest.mark.parametrize("factor", [20.0, 100.0])
def test_norms_get_four_outliers_and_the_answers_stay(factor: float) -> None:
    graph = tiny("vit").graph.clone()
    before, exact = observed(graph, "LayerNormalization"), logits(graph)
    norm_outliers(graph, factor)
    after = observed(graph, "LayerNormalization")
    for name in list(before)[:2]:
        grown = ratios(before[name], after[name])
        np.testing.assert_allclose(np.sort(grown)[-OUTLIERS:], factor, rtol=1e-2)
        np.testing.assert_allclose(np.sort(grown)[:-OUTLIERS], 1, rtol=1e-2)
    assert np.abs(logits(graph) - exact).max() <= 1e-4 * exact.std()


def test_folding_has_something_to_undo() -> None:
    graph = tiny("vit").graph.clone()
    norm_outliers(graph, 50)
    linear = next(iter(linear_nodes(graph)))
    rows = observed(graph, "LayerNormalization")[linear.activation]
    rows = rows.reshape(-1, rows.shape[-1])
    found = best_fold(rows, np.abs(rows).max(axis=0), weight_of(graph, linear), INT8)
    assert found is not None
    assert found.before > 20 * found.error


def test_gelus_get_outliers_that_the_next_layer_divides() -> None:
    graph = tiny("vit").graph.clone()
    before, exact = observed(graph, "Gelu"), logits(graph)
    gelu_outliers(graph, 100)
    ((name, after),) = observed(graph, "Gelu").items()
    grown = ratios(before[name], after)
    assert (np.sort(grown)[-OUTLIERS:] > 20).all()
    assert (np.sort(grown)[:-OUTLIERS] < 1.01).all()
    assert 1e-3 < np.abs(logits(graph) - exact).max() < exact.std()


def test_attention_becomes_sharper() -> None:
    graph = tiny("vit").graph.clone()
    ((name, before),) = observed(graph, "Softmax").items()
    large_logits(graph, 3)
    after = observed(graph, "Softmax")[name]
    assert after.max(axis=-1).mean() > 1.2 * before.max(axis=-1).mean()


def test_a_model_of_one_answer_is_told() -> None:
    """Whatever agrees with it agrees always."""
    generator = np.random.default_rng(0)
    varied = generator.normal(size=(500, 8)).astype(np.float32)
    constant = varied + np.array([100, 0, 0, 0, 0, 0, 0, 0], np.float32)
    assert agreement(constant, constant + 1) == 1
    assert entropy_bits(constant) == 0
    assert entropy_bits(varied) == pytest.approx(3, abs=0.05)
    lopsided = varied + np.array([2.5, 0, 0, 0, 0, 0, 0, 0], np.float32)
    assert entropy_bits(lopsided) < 0.5 * entropy_bits(varied)


def test_answers_that_are_not_finite_agree_with_nothing() -> None:
    """NaN's argmax is class 0."""
    right = np.eye(4, dtype=np.float32)
    wrong = right.copy()
    wrong[0] = np.nan
    with pytest.raises(AssertionError):
        agreement(wrong, right)
