"""The retyping pass: strongly typed graphs, with nodes in float32 where asked for."""

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
from vitdeploy.export.passes.half import supports, to_half_types
from vitdeploy.export.passes.module_names import name_nodes_by_module
from vitdeploy.export.precision import to_half
from vitdeploy.export.trace import trace
from vitdeploy.graph import files
from vitdeploy.graph.emulation import emulated
from vitdeploy.graph.half import BF16, FP16, HalfType
from vitdeploy.models.source import SourceModel

FLOAT, FLOAT16, INT8 = (
    onnx.TensorProto.FLOAT,
    onnx.TensorProto.FLOAT16,
    onnx.TensorProto.INT8,
)
BFLOAT16 = onnx.TensorProto.BFLOAT16


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


def require_strongly_typed(model: ir.Model, *, wide: set[str] | None = None) -> dict[str, int]:
    """Check the types of all values; `wide` names those in float32 besides inputs and outputs."""
    proto = ir.to_proto(model)
    onnx.checker.check_model(proto, full_check=True)
    types = element_types(proto)
    ends = {value.name for value in (*proto.graph.input, *proto.graph.output)}
    ends = {name for name in ends if types[name] == FLOAT}
    floats = {name for name, kind in types.items() if kind == FLOAT}
    assert floats == ends | (wide or set())
    for value in proto.graph.value_info:
        declared = value.type.tensor_type.elem_type
        assert declared in (0, types[value.name]), value.name
    return types


def test_every_value_is_float16_but_the_ends(grown_graph: ir.Model) -> None:
    before = Counter(node.op_type for node in grown_graph.graph)
    half = to_half_types(fresh(grown_graph))
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
    half = to_half_types(wide)
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


@pytest.mark.parametrize("value", [7e4, -7e4])
def test_a_weight_beyond_float16_is_refused(grown_graph: ir.Model, value: float) -> None:
    bias = constant_of(grown_graph, "blocks.0.attn.qkv.bias")
    bias[3] = value
    with pytest.raises(ExportError, match=r"blocks\.0\.attn\.qkv\.bias") as caught:
        to_half_types(replaced(grown_graph, "blocks.0.attn.qkv.bias", bias))
    assert caught.value.hint


def test_the_largest_float16_is_kept(grown_graph: ir.Model) -> None:
    bias = constant_of(grown_graph, "blocks.0.attn.qkv.bias")
    bias[3] = 65504.0
    half = to_half_types(replaced(grown_graph, "blocks.0.attn.qkv.bias", bias))
    assert float(constant_of(half, "blocks.0.attn.qkv.bias")[3]) == 65504.0


@pytest.mark.parametrize("half", [FP16, BF16])
def test_an_epsilon_stays_above_zero(half: HalfType) -> None:
    """As zero it would answer 0 / 0 for a key that is all zeros (Swin V2's padded windows)."""
    text = """
    <ir_version: 10, opset_import: ["" : 20]>
    normalized (float[n, 1, 1, 4] keys) => (float[n, 1, 1, 4] logits)
    <int64[1] last = {-1}, float epsilon = {1e-45}, float[4] shift = {1e-45, 1.0, 1.0, 1.0}> {
        norm = ReduceL2 (keys, last)
        safe = Clip (norm, epsilon)
        unit = Div (keys, safe)
        logits = Add (unit, shift)
    }
    """
    typed = to_half_types(ir.from_proto(onnx.parser.parse_model(text)), half)
    assert float(constant_of(typed, "epsilon")) == half.smallest
    assert float(constant_of(typed, "shift")[0]) == 0
    keys = np.array([[[[0, 0, 0, 0]]], [[[0, 0, 3, 4]]]], np.float32)
    session = GraphSession(files.serialize(emulated(typed, "fused")), optimize=False)
    expected = [[0, 1, 1, 1], [0, 1, 1.6, 1.8]]
    np.testing.assert_allclose(session.run(keys)[:, 0, 0], expected, rtol=2e-2)


@pytest.mark.parametrize("opset", [17, 18])
def test_below_opset_19_int8_has_no_float16_scales(source: SourceModel, opset: int) -> None:
    graph = name_nodes_by_module(trace(source, opset=opset))
    require_strongly_typed(to_half_types(fresh(graph)))
    with pytest.raises(ExportError, match=f"opset {opset}") as caught:
        to_half_types(quantized(graph))
    assert "--opset 19" in str(caught.value.hint)


@pytest.mark.parametrize("opset", [19, 21])
def test_other_opsets_are_strongly_typed(source: SourceModel, opset: int) -> None:
    graph = name_nodes_by_module(trace(source, opset=opset))
    require_strongly_typed(to_half_types(quantized(graph)))


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
    half = to_half_types(ir.from_proto(onnx.parser.parse_model(text)))
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
    require_strongly_typed(to_half_types(graph))


def casts(model: ir.Model) -> list[str]:
    return sorted(str(node.name) for node in model.graph if node.op_type == "Cast")


def node_called(model: ir.Model, name: str) -> ir.Node:
    return next(node for node in model.graph if node.name == name)


def test_neighbours_in_float32_have_no_cast_between_them(grown_graph: ir.Model) -> None:
    """Add, LayerNormalization and the next Add: in through two casts, out through two."""
    keep = {"blocks.0/Add", "blocks.0.norm2/LayerNormalization", "blocks.0/Add_1"}
    half = to_half_types(fresh(grown_graph), keep=keep)
    first = node_called(half, "blocks.0/Add")
    normal = node_called(half, "blocks.0.norm2/LayerNormalization")
    second = node_called(half, "blocks.0/Add_1")
    names = {str(node.outputs[0].name) for node in (first, normal, second)}
    weights = {"blocks.0.norm2.weight", "blocks.0.norm2.bias"}
    into = {str(value.name) for node in (first, second) for value in node.inputs if value}
    require_strongly_typed(half, wide=names | weights | into)
    assert normal.inputs[0] is first.outputs[0]
    assert second.inputs[0] is first.outputs[0]
    # Three values come in; two go out: the normalized one, and the stream behind both Adds.
    assert len(casts(half)) == 2 + 3 + 2


def test_what_only_carries_between_float32_nodes_is_float32(grown_graph: ir.Model) -> None:
    keep = {"blocks.0.attn/MatMul", "blocks.0.attn/MatMul_1", "blocks.0.attn.proj/MatMul"}
    half = to_half_types(fresh(grown_graph), keep=keep)
    for name in ("blocks.0.attn/Transpose_2", "blocks.0.attn/Reshape_1"):
        assert node_called(half, name).outputs[0].dtype == ir.DataType.FLOAT
    # The keys' Transpose stands between a float16 node and a float32 one: it stays float16.
    assert node_called(half, "blocks.0.attn/Transpose_1").outputs[0].dtype == ir.DataType.FLOAT16
    require_wide = {
        str(value.name)
        for node in half.graph
        for value in node.outputs
        if value.dtype == ir.DataType.FLOAT and not value.is_graph_output()
    }
    require_strongly_typed(
        half,
        wide=require_wide | {str(node_called(half, "blocks.0.attn.proj/MatMul").inputs[1].name)},
    )


def test_a_weight_read_in_both_types_is_stored_in_both(grown_graph: ir.Model) -> None:
    graph = fresh(grown_graph)
    first = node_called(graph, "blocks.0.attn.qkv/MatMul")
    second = node_called(graph, "blocks.1.attn.qkv/MatMul")
    second.replace_input_with(1, first.inputs[1])
    name = str(first.inputs[1].name)
    exact = constant_of(graph, name)
    half = to_half_types(graph, keep={"blocks.1.attn.qkv/MatMul"})
    wide = node_called(half, "blocks.1.attn.qkv/MatMul").inputs[1]
    assert wide is not None
    np.testing.assert_array_equal(constant_of(half, str(wide.name)), exact)
    np.testing.assert_array_equal(constant_of(half, name), exact.astype(np.float16))


def test_a_kept_product_takes_its_dequantized_factors_along(grown_graph: ir.Model) -> None:
    """A Cast between DequantizeLinear and product would hide the pair from a runtime."""
    name = "blocks.0.mlp.fc1/MatMul"
    half = to_half_types(quantized(grown_graph), keep={name})
    proto = ir.to_proto(half)
    onnx.checker.check_model(proto, full_check=True)
    factors = [value.producer() for value in node_called(half, name).inputs if value is not None]
    assert [factor.op_type for factor in factors if factor] == ["DequantizeLinear"] * 2
    for factor in factors:
        assert factor is not None
        assert factor.outputs[0].dtype == ir.DataType.FLOAT


@pytest.mark.parametrize("opset", [20, 22])
def test_bfloat16_is_strongly_typed(source: SourceModel, opset: int) -> None:
    """Below opset 22 ONNX has no bfloat16 Conv: it says so, and stays in float32."""
    graph = name_nodes_by_module(trace(source, opset=opset))
    conv = next(node for node in graph.graph if node.op_type == "Conv")
    assert supports(conv, BF16, opset) == (opset >= 22)
    assert supports(conv, FP16, opset)
    keep = set() if opset >= 22 else {str(conv.name)}
    half = to_half_types(graph, BF16, keep=keep)
    wide = {"conv2d", "patch_embed.proj.weight", "patch_embed.proj.bias"} if keep else set()
    types = require_strongly_typed(half, wide=wide)
    assert types["blocks.0.attn.qkv.bias"] == BFLOAT16
    assert types["pos_embed"] == BFLOAT16
    assert FLOAT16 not in types.values()


def test_bytes_are_cast_straight_to_the_half_type() -> None:
    text = """
    <ir_version: 9, opset_import: ["" : 20]>
    odd (uint8[n, 4] pixels) => (float[n, 4] logits)
    <float[1] mean = {127.5}> {
        wide = Cast <to = 1> (pixels)
        logits = Sub (wide, mean)
    }
    """
    half = to_half_types(ir.from_proto(onnx.parser.parse_model(text)))
    require_strongly_typed(half)
    assert casts(half) == ["", "logits/fp32"]


def test_scales_of_a_resize_stay_float32() -> None:
    text = """
    <ir_version: 9, opset_import: ["" : 20]>
    odd (float[n, 1, 4, 4] pixels) => (float[n, 1, 8, 8] logits)
    <float[4] scales = {1.0, 1.0, 2.0, 2.0}> {
        wide = Neg (pixels)
        logits = Resize <mode = "linear"> (wide, , scales)
    }
    """
    half = to_half_types(ir.from_proto(onnx.parser.parse_model(text)))
    require_strongly_typed(half, wide={"scales"})


def test_graphs_inside_of_nodes_are_refused() -> None:
    text = """
    <ir_version: 9, opset_import: ["" : 20]>
    odd (float[n, 4] pixels, bool flag) => (float[n, 4] logits) {
        logits = If (flag) <
            then_branch = a () => (float[n, 4] u) { u = Neg (pixels) },
            else_branch = b () => (float[n, 4] v) { v = Abs (pixels) }
        >
    }
    """
    with pytest.raises(ExportError, match="graph of its own") as caught:
        to_half_types(ir.from_proto(onnx.parser.parse_model(text)))
    assert caught.value.hint
