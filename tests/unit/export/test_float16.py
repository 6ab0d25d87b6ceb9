"""The float16 pass: strongly typed graphs that keep their accuracy."""

from __future__ import annotations

import copy
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from onnx.reference import ReferenceEvaluator
from tiny_vits import constant_of, lively, replaced, smooth_inputs

from vitdeploy.artifacts.onnx_model import OnnxModel, read_onnx_model
from vitdeploy.backends.onnxruntime_ import GraphSession
from vitdeploy.calibration.plan import plan
from vitdeploy.calibration.qdq import insert_qdq
from vitdeploy.errors import ExportError, InputError
from vitdeploy.export.passes.float16 import to_float16
from vitdeploy.export.passes.module_names import name_nodes_by_module
from vitdeploy.export.precision import to_half
from vitdeploy.export.trace import trace
from vitdeploy.models.source import SourceModel

FLOAT, FLOAT16, INT8 = (
    onnx.TensorProto.FLOAT,
    onnx.TensorProto.FLOAT16,
    onnx.TensorProto.INT8,
)


def fresh(model: ir.Model) -> ir.Model:
    return ir.from_proto(copy.deepcopy(ir.to_proto(model)))


def quantized(model: ir.Model) -> ir.Model:
    copied = fresh(model)
    chosen = plan(copied)
    return insert_qdq(copied, chosen, dict.fromkeys(chosen.activations, 0.05))


def element_types(proto: onnx.ModelProto) -> dict[str, int]:
    """The type of every tensor, as ONNX infers it from the nodes alone (strictly)."""
    bare = onnx.ModelProto()
    bare.CopyFrom(proto)
    del bare.graph.value_info[:]
    inferred = onnx.shape_inference.infer_shapes(bare, check_type=True, strict_mode=True)
    graph = inferred.graph
    values = (*graph.value_info, *graph.input, *graph.output)
    types = {value.name: value.type.tensor_type.elem_type for value in values}
    types.update({tensor.name: tensor.data_type for tensor in graph.initializer})
    return types


def require_strongly_typed(model: ir.Model) -> dict[str, int]:
    proto = ir.to_proto(model)
    onnx.checker.check_model(proto, full_check=True)
    types = element_types(proto)
    ends = {value.name for value in (*proto.graph.input, *proto.graph.output)}
    floats = {name for name, kind in types.items() if kind == FLOAT}
    assert floats == ends
    for value in proto.graph.value_info:
        declared = value.type.tensor_type.elem_type
        assert declared in (0, types[value.name]), value.name
    return types


def test_every_value_is_float16_but_the_ends(grown_graph: ir.Model) -> None:
    before = Counter(node.op_type for node in grown_graph.graph)
    half = to_float16(fresh(grown_graph))
    require_strongly_typed(half)
    after = Counter(node.op_type for node in half.graph)
    assert after - before == Counter({"Cast": 2})
    assert [value.name for value in half.graph.inputs] == ["input"]
    assert [value.name for value in half.graph.outputs] == ["logits"]
    for node in half.graph:
        if node.op_type == "LayerNormalization":
            assert node.attributes["stash_type"].as_int() == 1


def test_scales_become_float16_and_integers_stay(grown_graph: ir.Model) -> None:
    wide = quantized(grown_graph)
    integers = {
        name: constant_of(wide, name)
        for name, value in wide.graph.initializers.items()
        if value.dtype == ir.DataType.INT8
    }
    half = to_float16(wide)
    types = require_strongly_typed(half)
    pairs = 0
    for node in half.graph:
        if node.op_type not in ("QuantizeLinear", "DequantizeLinear"):
            continue
        names = [str(value.name) for value in node.inputs if value is not None]
        assert types[names[1]] == FLOAT16
        assert types[names[2]] == INT8
        pairs += node.op_type == "QuantizeLinear"
    assert pairs == len(plan(grown_graph).activations)
    assert len(integers) > pairs
    for name, array in integers.items():
        np.testing.assert_array_equal(constant_of(half, name), array)


def test_answers_stay_within_half_precision(
    grown: SourceModel, exported: OnnxModel, tmp_path: Path
) -> None:
    """ONNX Runtime computes in float32 between; only rounded weights and casts remain."""
    half = to_half(exported, tmp_path)
    inputs = smooth_inputs(6, grown.resolution)
    answered = GraphSession(half.path).run(inputs)
    assert answered.dtype == np.float32
    rounded = copy.deepcopy(grown.module)
    with torch.no_grad():
        for parameter in rounded.parameters():
            parameter.copy_(parameter.half().float())
        expected = rounded(torch.from_numpy(inputs).half().float()).numpy()
    spread = float((expected - expected.mean(0)).std())
    assert np.abs(answered - expected).max() < 0.02 * spread
    exact = GraphSession(exported.path).run(inputs)
    assert np.abs(answered - exact).max() > 1e-5 * spread, "nothing was rounded at all"


def test_the_file_is_half_the_size_and_names_its_parent(
    exported: OnnxModel, tmp_path: Path
) -> None:
    half = to_half(exported, tmp_path)
    assert half.size_bytes < 0.62 * exported.size_bytes
    again = read_onnx_model(half.path)
    assert again == half
    assert again.description.precision == "fp16"
    assert again.description.parent_digest == exported.digest
    with pytest.raises(InputError, match="float16 already"):
        to_half(again, tmp_path)


@pytest.mark.parametrize("value", [7e4, -7e4, np.inf, np.nan])
def test_a_weight_beyond_float16_is_refused(grown_graph: ir.Model, value: float) -> None:
    bias = constant_of(grown_graph, "blocks.0.attn.qkv.bias")
    bias[3] = value
    with pytest.raises(ExportError, match=r"blocks\.0\.attn\.qkv\.bias") as caught:
        to_float16(replaced(grown_graph, "blocks.0.attn.qkv.bias", bias))
    assert caught.value.hint


def test_the_largest_float16_is_kept(grown_graph: ir.Model) -> None:
    bias = constant_of(grown_graph, "blocks.0.attn.qkv.bias")
    bias[3] = 65504.0
    half = to_float16(replaced(grown_graph, "blocks.0.attn.qkv.bias", bias))
    assert float(constant_of(half, "blocks.0.attn.qkv.bias")[3]) == 65504.0


@pytest.mark.parametrize("opset", [17, 18])
def test_below_opset_19_int8_has_no_float16_scales(source: SourceModel, opset: int) -> None:
    graph = name_nodes_by_module(trace(source, opset=opset))
    require_strongly_typed(to_float16(fresh(graph)))
    with pytest.raises(ExportError, match=f"opset {opset}") as caught:
        to_float16(quantized(graph))
    assert "--opset 19" in str(caught.value.hint)


@pytest.mark.parametrize("opset", [19, 21])
def test_other_opsets_are_strongly_typed(source: SourceModel, opset: int) -> None:
    graph = name_nodes_by_module(trace(source, opset=opset))
    require_strongly_typed(to_float16(quantized(graph)))


def test_casts_and_constants_in_nodes_are_retyped() -> None:
    """Not in a plain ViT's graph, but nothing forbids them."""
    text = """
    <ir_version: 9, opset_import: ["" : 20]>
    odd (float[n, 4] pixels) => (float[n, 4] logits)
    {
        added = Constant <value = float[4] {0.5, 1.0, 1.5, 2.0}> ()
        shape = Shape (pixels)
        twos = ConstantOfShape <value = float[1] {2.0}> (shape)
        sum = Add (pixels, added)
        whole = Cast <to = 6> (sum)
        back = Cast <to = 1> (whole)
        logits = Mul (back, twos)
    }
    """
    half = to_float16(ir.from_proto(onnx.parser.parse_model(text)))
    require_strongly_typed(half)
    pixels = np.array([[1.0, 2.0, 3.0, 4.0]], np.float32)
    reference = ReferenceEvaluator(ir.to_proto(half))
    (answered,) = reference.run(None, {"pixels": pixels})
    np.testing.assert_array_equal(answered, [[2.0, 6.0, 8.0, 12.0]])


@pytest.mark.parametrize(
    ("name", "kwargs"),
    [
        ("vit_relpos_small_patch16_224", {"img_size": 64}),
        ("beit_base_patch16_224", {"img_size": 64}),
        ("eva02_tiny_patch14_224", {"img_size": 56}),
    ],
)
def test_other_families_are_strongly_typed(name: str, kwargs: dict[str, int]) -> None:
    graph = name_nodes_by_module(trace(lively(name, **kwargs)))
    require_strongly_typed(to_float16(graph))
