"""Outliers that nothing before can take on: one multiplication is inserted, where it pays."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from vitdeploy.artifacts.onnx_model import OnnxModel
from vitdeploy.backends.onnxruntime_ import GraphSession
from vitdeploy.calibration.answers import inputs_of
from vitdeploy.calibration.folds import Fold, apply_fold, find_folds, find_insertions
from vitdeploy.calibration.image_set import CalibrationSet
from vitdeploy.calibration.linear import linear_nodes
from vitdeploy.calibration.quantize import QuantizationOptions, quantize
from vitdeploy.export.precision import to_half
from vitdeploy.graph import files


def insertions(
    graph: ir.Model, model: OnnxModel, calibration: CalibrationSet
) -> tuple[list[Fold], list[Fold]]:
    linears = list(linear_nodes(graph))
    image = inputs_of(calibration.images.take([0]), model.description)[0]
    folds = find_folds(graph, linears, image)
    return folds, find_insertions(graph, linears, folds)


def test_they_are_for_what_no_fold_makes_smaller(
    graph: ir.Model, model: OnnxModel, calibration: CalibrationSet
) -> None:
    folds, found = insertions(graph, model, calibration)
    producers = {value.name: node.op_type for node in graph.graph for value in node.outputs}
    assert {producers[fold.activation] for fold in found} >= {"Gelu"}
    assert not {fold.activation for fold in found} & {fold.activation for fold in folds}
    everything = {linear.activation for linear in linear_nodes(graph)}
    assert {fold.activation for fold in [*found, *folds]} == everything


def test_the_float_graph_answers_the_same(
    graph: ir.Model, model: OnnxModel, calibration: CalibrationSet
) -> None:
    inputs = inputs_of(calibration.images.take(range(4)), model.description)[0]
    before = GraphSession(files.serialize(graph)).run(inputs)
    _, found = insertions(graph, model, calibration)
    generator = np.random.default_rng(0)
    activations = [linear.activation for linear in linear_nodes(graph)]
    for fold in found:
        apply_fold(graph, fold, generator.uniform(0.05, 20, len(fold.channels)).astype(np.float32))
    assert [linear.activation for linear in linear_nodes(graph)] == activations
    after = GraphSession(files.serialize(graph)).run(inputs)
    np.testing.assert_allclose(after, before, atol=1e-5 * before.std(), rtol=0)
    # The graph would answer otherwise had the weights not taken the factors on.
    for fold in found:
        value = next(v for node in graph.graph for v in node.outputs if v.name == fold.activation)
        undivided = value.producer().inputs[0]  # type: ignore[union-attr]
        assert undivided is not None
        value.replace_all_uses_with(undivided)
    wrong = GraphSession(files.serialize(graph)).run(inputs)
    assert np.abs(wrong - before).max() > 0.1 * before.std()


def test_a_weight_that_two_layers_share_is_left_alone(
    graph: ir.Model, model: OnnxModel, calibration: CalibrationSet
) -> None:
    second = [node for node in graph.graph if str(node.name).endswith("fc2/MatMul")]
    second[1].replace_input_with(1, second[0].inputs[1])
    files.unused_initializers_removed(graph)
    _, found = insertions(graph, model, calibration)
    names = {reader.name for fold in found for reader in fold.readers}
    assert not names & {node.name for node in second}


def plant_gelu_outliers(graph: ir.Model, factor: float) -> None:
    """Hidden channels that are `factor` times the others, and rows that undo it, nearly."""
    for node in [node for node in graph.graph if node.op_type == "Gelu"]:
        reader = node.outputs[0].consumers()[0]
        adder = node.inputs[0].producer()  # type: ignore[union-attr]
        assert adder is not None
        product = next(v.producer() for v in adder.inputs if v is not None and v.producer())
        bias = next(v for v in adder.inputs if v is not None and v.const_value is not None)
        factors = np.ones(bias.const_value.size, np.float32)  # type: ignore[union-attr]
        factors[:4] = factor
        for value, scale in (
            (product.inputs[1], factors),  # type: ignore[union-attr]
            (bias, factors),
            (reader.inputs[1], 1 / factors[:, None]),
        ):
            tensor = value.const_value  # type: ignore[union-attr]
            value.const_value = ir.Tensor((tensor.numpy() * scale).astype(np.float32))  # type: ignore[union-attr]


@pytest.mark.parametrize("factor", [1.0, 200.0])
def test_one_is_made_where_it_halves_the_error(
    factor: float,
    graph: ir.Model,
    model: OnnxModel,
    calibration: CalibrationSet,
    tmp_path: Path,
) -> None:
    plant_gelu_outliers(graph, factor)
    planted = files.save(graph, model.description, tmp_path / "planted.onnx")
    int8 = quantize(planted, calibration, tmp_path)
    assert int8.description.quantization is not None
    made = [name for name in int8.description.quantization.folded if name.startswith("gelu")]
    assert bool(made) == (factor > 1)
    inserted = [node for node in files.load(int8).graph if str(node.name).endswith("/divide")]
    assert len(inserted) == len(made)
    inputs = np.concatenate(inputs_of(calibration.images, model.description))
    exact = GraphSession(planted.path).run(inputs)
    plain = quantize(planted, calibration, tmp_path, QuantizationOptions(fold=False))
    errors = [
        float(np.square(GraphSession(found.path, optimize=False).run(inputs) - exact).mean())
        for found in (int8, plain)
    ]
    assert errors[0] < (0.25 if made else 1.1) * errors[1]
    half = to_half(int8, tmp_path, images=calibration.images)
    assert half.description.precision == "int8-fp16"
