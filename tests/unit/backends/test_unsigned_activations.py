"""Unsigned activations are the signed ones moved by 128: no answer changes by a bit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from numpy.typing import NDArray

from vitdeploy import environment
from vitdeploy.artifacts.onnx_model import OnnxModel
from vitdeploy.backends import registry
from vitdeploy.backends.base import BuildOptions
from vitdeploy.backends.onnxruntime_ import GraphSession
from vitdeploy.calibration.plan import plan
from vitdeploy.calibration.qdq import insert_qdq
from vitdeploy.graph import files
from vitdeploy.graph.unsigned import activations_made_unsigned
from vitdeploy.target import parse_targets

PIXELS = np.random.default_rng(3).normal(size=(5, 3, 32, 48)).astype(np.float32)


def exact(graph: ir.Model) -> NDArray[np.float32]:
    return GraphSession(files.serialize(graph), optimize=False).run(PIXELS)


def types(graph: ir.Model) -> dict[str, ir.DataType | None]:
    """Of each quantized activation."""
    return {
        str(node.inputs[0].name): node.outputs[0].dtype
        for node in graph.graph
        if node.op_type == "QuantizeLinear" and node.inputs[0] is not None
    }


def test_the_same_numbers(int8_model: OnnxModel) -> None:
    graph = files.load(int8_model)
    before = exact(graph)
    assert activations_made_unsigned(graph) == len(types(graph)) > 8
    assert set(types(graph).values()) == {ir.DataType.UINT8}
    onnx.checker.check_model(files.serialize(graph), full_check=True)
    np.testing.assert_array_equal(exact(graph), before)
    assert activations_made_unsigned(graph) == 0


def test_another_zero_point_would_be_seen(int8_model: OnnxModel) -> None:
    graph = files.load(int8_model)
    before = exact(graph)
    activations_made_unsigned(graph)
    for name, value in graph.graph.initializers.items():
        if name.endswith("_unsigned_zero_point"):
            value.const_value = ir.tensor(np.array(127, np.uint8), name=name)
    # Quantized and dequantized with the same zero, numbers agree but where they saturate.
    saturated = np.abs(exact(graph) - before).max()
    assert saturated > 0


def test_weights_and_attention_stay_signed(fp32_model: OnnxModel) -> None:
    graph = files.load(fp32_model)
    chosen = plan(graph, targets=parse_targets("sm89"), runtime="tensorrt")
    assert chosen.products
    insert_qdq(graph, chosen, dict.fromkeys(chosen.activations, 0.05))
    weights = {n: v.dtype for n, v in graph.graph.initializers.items() if n.endswith("_int8")}
    before = exact(graph)
    activations_made_unsigned(graph)
    factors = {name for product in chosen.products for name in product.factors}
    found = types(graph)
    assert {found[name] for name in factors} == {ir.DataType.INT8}
    assert {found[name] for name in found if name not in factors} == {ir.DataType.UINT8}
    assert {graph.graph.initializers[name].dtype for name in weights} == {ir.DataType.INT8}
    np.testing.assert_array_equal(exact(graph), before)


OTHER_FORMS = """
<ir_version: 9, opset_import: ["" : 20]>
forms (float[n, 2] pixels) => (float[n, 2] logits, float[n, 2] seen)
<float scale = {0.1}, int8 zero = {0}, int8 moved = {3}, int8[2, 2] numbers = {1, 2, 3, 4}>
{
   weight = DequantizeLinear (numbers, scale, zero)
   read_twice = Identity (pixels)
   q1 = QuantizeLinear (read_twice, scale, zero)
   seen = DequantizeLinear (q1, scale, zero)
   first = MatMul (seen, weight)
   q2 = QuantizeLinear (first, scale, moved)
   d2 = DequantizeLinear (q2, scale, moved)
   second = MatMul (d2, weight)
   q3 = QuantizeLinear (second, scale, zero)
   d3 = DequantizeLinear (q3, scale, zero)
   third = Add (d3, pixels)
   q4 = QuantizeLinear (third, scale)
   d4 = DequantizeLinear (q4, scale)
   logits = MatMul (d4, weight)
}
"""


def test_what_others_read_or_is_written_otherwise_is_left_alone() -> None:
    """An output, another zero point, a reader that is no Linear layer, no zero point at all."""
    graph = ir.from_proto(onnx.parser.parse_model(OTHER_FORMS))
    before = ir.to_proto(graph).SerializeToString(deterministic=True)
    assert activations_made_unsigned(graph) == 0
    assert ir.to_proto(graph).SerializeToString(deterministic=True) == before


@pytest.mark.parametrize("features", [("avx2", "avx512f", "avx512_vnni"), ("avx2",), ("asimddp",)])
def test_where_a_cpu_multiplies_unsigned_bytes(
    features: tuple[str, ...],
    int8_model: OnnxModel,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    here = replace(environment.describe(), cpu_features=features)
    monkeypatch.setattr(environment, "describe", lambda: here)
    backend = registry.get("openvino")
    engine = backend.build(int8_model, BuildOptions(threads=1), tmp_path / "tiny.engine")
    moved = engine.manifest.settings["unsigned_activations"]
    assert (moved > 0) is ("avx512_vnni" in features)
    answered = backend.load(engine, threads=1).run(PIXELS)
    reference = exact(files.load(int8_model))
    assert np.abs(answered - reference).max() <= 0.05 * reference.std()
