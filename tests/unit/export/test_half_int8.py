"""INT8 graphs that compute the rest in half precision: what stays in float32, and why."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from tiny_vits import smooth_inputs

from vitdeploy.artifacts.onnx_model import OnnxModel, with_description
from vitdeploy.backends.onnxruntime_ import GraphSession
from vitdeploy.calibration.plan import plan
from vitdeploy.calibration.qdq import insert_qdq
from vitdeploy.export.passes.activation_quantizers import without_activation_quantizers
from vitdeploy.export.precision import to_half
from vitdeploy.graph import files
from vitdeploy.graph.observation import with_magnitudes


def quantized(graph: ir.Model, inputs: np.ndarray) -> ir.Model:
    chosen = plan(graph)
    observed = with_magnitudes(graph, chosen.activations)
    largest = GraphSession(files.serialize(observed)).run_all(inputs)[1::2]
    scales = {n: float(v) / 127 for n, v in zip(chosen.activations, largest, strict=True)}
    return files.unused_initializers_removed(insert_qdq(graph, chosen, scales))


@pytest.fixture(scope="module")
def int8(exported: OnnxModel, tmp_path_factory: pytest.TempPathFactory) -> OnnxModel:
    graph = quantized(files.load(exported), smooth_inputs(8, exported.description.resolution))
    description = with_description(exported, precision="int8-fp32")
    return files.save(graph, description, tmp_path_factory.mktemp("int8") / "int8.onnx")


def test_quantizers_of_activations_go_and_weights_stay(
    int8: OnnxModel, exported: OnnxModel
) -> None:
    inputs = smooth_inputs(4, exported.description.resolution, seed=3)
    graph = files.load(int8)
    pairs = sum(node.op_type == "QuantizeLinear" for node in graph.graph)
    weights = sum(node.op_type == "DequantizeLinear" for node in graph.graph) - pairs
    smooth = without_activation_quantizers(graph)
    kinds = [node.op_type for node in smooth.graph]
    assert pairs > 0
    assert kinds.count("QuantizeLinear") == 0
    assert kinds.count("DequantizeLinear") == weights
    exact = GraphSession(exported.path).run(inputs)
    answered = GraphSession(files.serialize(smooth), optimize=False).run(inputs)
    with_pairs = GraphSession(int8.path, optimize=False).run(inputs)
    assert 0 < (answered - exact).std() < 0.8 * (with_pairs - exact).std()


def test_int8_is_not_blamed_on_half_precision(int8: OnnxModel, tmp_path: Path) -> None:
    """A value half a step from the next integer jumps: no node in float32 would mend that."""
    model = to_half(int8, tmp_path)
    assert model.description.precision == "int8-fp16"
    assert model.description.kept_float32 == {}
    forecast = model.description.forecast
    assert forecast is not None
    assert 0.95 < forecast.fused.cosine < 0.9995
    kinds = [node.op_type for node in files.load(model).graph]
    assert kinds.count("QuantizeLinear") > 0


def test_an_int8_graph_that_overflows_keeps_the_same_nodes(
    written_out: OnnxModel, tmp_path: Path
) -> None:
    inputs = smooth_inputs(8, written_out.description.resolution)
    graph = quantized(files.load(written_out), inputs)
    description = with_description(written_out, precision="int8-fp32")
    int8 = files.save(graph, description, tmp_path / "int8.onnx")
    kept = to_half(int8, tmp_path).description.kept_float32
    assert kept.keys() == to_half(written_out, tmp_path).description.kept_float32.keys()
