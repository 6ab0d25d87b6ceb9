"""What is known of a graph still holds after its outliers were folded away."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from numpy.typing import NDArray

from vitdeploy.artifacts.onnx_model import OnnxModel
from vitdeploy.calibration import tuning
from vitdeploy.calibration.answers import inputs_of
from vitdeploy.calibration.channels import ChannelTracer
from vitdeploy.calibration.gathering import Gathering
from vitdeploy.calibration.grids import INT8
from vitdeploy.calibration.image_set import CalibrationSet
from vitdeploy.calibration.linear import bias_vector, linear_nodes
from vitdeploy.calibration.plan import Policy, plan
from vitdeploy.calibration.search import FoldChoice
from vitdeploy.calibration.statistics import _step
from vitdeploy.calibration.tuning import Tuning
from vitdeploy.target import parse_targets


def tuning_of(graph: ir.Model, model: OnnxModel, calibration: CalibrationSet) -> Tuning:
    """With attention quantized, so that the factors of its products need ranges too."""
    chosen = plan(graph, Policy(), parse_targets("sm89"), runtime="tensorrt")
    assert chosen.products
    return Tuning(graph, chosen, INT8, Gathering(model=model, calibration=calibration))


def always_fold(rows: NDArray, maxima: NDArray, *_: object) -> FoldChoice:
    """Scales far from 1, so that anything left as it was shows."""
    scales = np.linspace(0.2, 5, len(maxima)).astype(np.float32)
    return FoldChoice(1.0, scales, 1.0, 0.5)


def test_factors_of_attention_are_known_as_they_are_after_a_fold(
    graph: ir.Model,
    model: OnnxModel,
    calibration: CalibrationSet,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tuning, "best_fold", always_fold)
    work = tuning_of(graph, model, calibration)
    work.look()
    work.fold()
    work.choose_ranges("absmax")
    values = [product.factors[1] for product in work.plan.products[1::2]]
    named = {value.name: value for node in work.graph.graph for value in node.outputs}
    largest = dict.fromkeys(values, 0.0)
    for batch in inputs_of(calibration.images, model.description):
        for image in batch:
            tracer = ChannelTracer(work.graph, [named[name] for name in values], image[None])
            for name in values:
                found = float(np.abs(tracer._known[named[name]]).max())
                largest[name] = max(largest[name], found)
    for name in values:
        assert 127 * work.scales[name] == pytest.approx(largest[name], rel=1e-5)


def test_a_bias_that_layers_share_takes_the_shift_after_a_fold(
    graph: ir.Model,
    model: OnnxModel,
    calibration: CalibrationSet,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A value fold gives the layer its own copy, under another name."""
    share_biases(graph)
    monkeypatch.setattr(tuning, "best_fold", always_fold)
    work = tuning_of(graph, model, calibration)
    work.look()
    work.fold()
    work.choose_ranges("absmax")
    layers = [layer for layer in work.plan.linear if layer.bias]
    before = {layer.name: biases(work.graph, layer.name) for layer in layers}
    work.shifts = {name: np.ones_like(bias) for name, bias in before.items()}
    after = work.quantized()
    for name, bias in before.items():
        np.testing.assert_allclose(added_behind(after, name), bias + 1, rtol=1e-6)


def share_biases(graph: ir.Model) -> None:
    """One constant for all layers of the same width."""
    first: dict[tuple[int, ...], ir.Value] = {}
    for node in graph.graph:
        for index, value in enumerate(node.inputs):
            is_bias = value is not None and str(value.name).endswith("qkv.bias")
            if is_bias and value is not None and value.const_value is not None:
                kept = first.setdefault(value.const_value.numpy().shape, value)
                node.replace_input_with(index, kept)
    assert any(len(value.uses()) > 1 for value in first.values())


def biases(graph: ir.Model, name: str) -> NDArray[np.float32]:
    layer = next(layer for layer in linear_nodes(graph) if layer.name == name)
    return bias_vector(graph, layer)


def added_behind(graph: ir.Model, name: str) -> NDArray[np.float32]:
    """The constant added to a product, or a Gemm's third input."""
    node = next(node for node in graph.graph if node.name == name)
    adder = node if node.op_type == "Gemm" else node.outputs[0].consumers()[0]
    constants = [v.const_value for v in adder.inputs if v is not None and v.const_value is not None]
    return constants[-1].numpy().reshape(-1)


@pytest.mark.parametrize("side", range(9, 40))
@pytest.mark.parametrize("prefix", [0, 1])
def test_thinned_rows_meet_every_column_of_the_patch_grid(side: int, prefix: int) -> None:
    rows = side * side + prefix
    step = _step(rows)
    counted = np.arange(0, rows, step)
    assert len(counted) <= 64
    columns = {(row - prefix) % side for row in counted if row >= prefix}
    assert len(columns) >= min(side, len(counted) - 1) - 1
