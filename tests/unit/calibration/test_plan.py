"""What is quantized, what stays, and the reasons given."""

from __future__ import annotations

import onnx
import onnx_ir as ir
import pytest

from vitdeploy.calibration.plan import Policy, plan
from vitdeploy.calibration.qdq import insert_qdq
from vitdeploy.errors import CalibrationError

LINEAR = {
    f"blocks.{block}.{layer}/MatMul"
    for block in (0, 1)
    for layer in ("attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2")
} | {"head/Gemm"}


def test_exactly_the_linear_layers(graph: ir.Model) -> None:
    found = plan(graph)
    assert {node.name for node in found.linear} == LINEAR
    axes = {node.name: node.weight_axis for node in found.linear}
    assert axes["head/Gemm"] == 0
    assert {axis for name, axis in axes.items() if name != "head/Gemm"} == {1}
    for node in found.linear:
        tensor = graph.graph.initializers[node.weight].const_value
        assert tensor is not None
        channels = {"qkv": 288, "proj": 96, "fc1": 384, "fc2": 96, "head": 10}
        kind = node.name.split("/")[0].rsplit(".", 1)[-1]
        assert tensor.shape[node.weight_axis] == channels[kind]


def test_every_other_computation_has_a_reason(graph: ir.Model) -> None:
    kept = plan(graph).kept
    assert "patch embedding" in kept["patch_embed.proj/Conv"]
    for block in (0, 1):
        for name in ("MatMul", "MatMul_1"):
            assert kept[f"blocks.{block}.attn/{name}"].startswith("attention product: ")
        assert "residual" in kept[f"blocks.{block}/Add"]
        assert "float32" in kept[f"blocks.{block}.norm1/LayerNormalization"]
    weighty = {"MatMul", "Gemm", "Conv", "Softmax", "LayerNormalization", "Add", "Gelu"}
    computing = {str(node.name) for node in graph.graph if node.op_type in weighty}
    assert set(kept) == computing - LINEAR
    assert all(kept.values())


def test_a_convolution_is_a_patch_embedding_only_where_the_image_comes_in() -> None:
    text = f"""<ir_version: 10, opset_import: ["" : 20]> g (float[n,3,8,8] x) => (float[n,2] y)
        <float[4,3,2,2] w1 = {{{", ".join(["1.0"] * 48)}}},
         float[4,4,1,1] w2 = {{{", ".join(["1.0"] * 16)}}},
         float[4,2] w3 = {{{", ".join(["1.0"] * 8)}}}>
    {{
        [stem] a = Conv<strides = [2, 2]>(x, w1)
        [pointwise] b = Conv(a, w2)
        axes = Constant<value = int64[2] {{2, 3}}>()
        c = ReduceMean<keepdims = 0>(b, axes)
        [head] y = MatMul(c, w3)
    }}"""
    kept = plan(ir.from_proto(onnx.parser.parse_model(text))).kept
    assert kept["stem"].startswith("patch embedding: ")
    assert kept["pointwise"] == "convolution: only Linear layers and attention are quantized"


def test_a_node_can_be_kept(graph: ir.Model) -> None:
    found = plan(graph, Policy(keep=("blocks.0.mlp.fc2/MatMul", "head/Gemm")))
    assert {node.name for node in found.linear} == LINEAR - {
        "blocks.0.mlp.fc2/MatMul",
        "head/Gemm",
    }
    assert found.kept["head/Gemm"] == "kept in float on request"


@pytest.mark.parametrize("name", ["blocks.0.mlp.fc9/MatMul", "blocks.0/Add"])
def test_keeping_what_is_no_linear_layer_is_refused(graph: ir.Model, name: str) -> None:
    with pytest.raises(CalibrationError, match=name) as caught:
        plan(graph, Policy(keep=(name,)))
    assert caught.value.hint


def test_activations_come_once_and_in_order(graph: ir.Model) -> None:
    found = plan(graph)
    assert len(set(found.activations)) == len(found.activations)
    assert list(found.activations) == [node.activation for node in found.linear]


def test_a_quantized_graph_is_refused(graph: ir.Model) -> None:
    chosen = plan(graph)
    insert_qdq(graph, chosen, dict.fromkeys(chosen.activations, 0.05))
    with pytest.raises(CalibrationError, match="quantized already") as caught:
        plan(graph)
    assert caught.value.hint


PRODUCTS = """
<ir_version: 9, opset_import: ["" : 20]>
products (float[n, 4] pixels) => (float[n, 2] logits)
<float[4, 4] table = {1.0, 2.0, 3.0, 4.0, 1.0, 2.0, 3.0, 4.0,
                      1.0, 2.0, 3.0, 4.0, 1.0, 2.0, 3.0, 4.0},
 float[4, 2] weight = {1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0}>
{
    [given] from_input = MatMul (pixels, table)
    [folded] of_constants = MatMul (table, table)
    [shuffled] turned = Transpose <perm = [1, 0]> (of_constants)
    [both] mixed = MatMul (from_input, turned)
    [gemm] across = Gemm <transA = 1> (mixed, table)
    [linear] logits = MatMul (mixed, weight)
}
"""


def test_what_is_fed_by_no_activation_is_kept() -> None:
    """A graph input or a constant has no range to gather."""
    found = plan(ir.from_proto(onnx.parser.parse_model(PRODUCTS)))
    assert [node.name for node in found.linear] == ["linear"]
    assert "not a Linear layer" in found.kept["given"]
    assert "not a Linear layer" in found.kept["folded"]
    assert "product of two activations" in found.kept["both"]
    assert "not a Linear layer" in found.kept["gemm"]


def test_what_is_computed_from_the_size_alone_is_no_activation() -> None:
    """The resampling of positions in a graph of a range of sizes."""
    text = """
    <ir_version: 9, opset_import: ["" : 20]>
    resampled (float[n, 4] x) => (float[n, 4] y)
    <float[4, 4] weight = {1,0,0,0, 0,1,0,0, 0,0,1,0, 0,0,0,1}, float[1, 4] zero = {0,0,0,0}> {
        shape = Shape <start = 1> (x)
        size = Cast <to = 1> (shape)
        row = Add (size, zero)
        [positions] placed = MatMul (row, weight)
        fed = Relu (x)
        [linear] product = MatMul (fed, weight)
        y = Add (product, placed)
    }
    """
    found = plan(ir.from_proto(onnx.parser.parse_model(text)))
    assert [node.name for node in found.linear] == ["linear"]
    assert "not a Linear layer" in found.kept["positions"]


def test_a_graph_without_linear_layers_is_refused() -> None:
    text = """
    <ir_version: 9, opset_import: ["" : 20]>
    none (float[n, 4] pixels) => (float[n, 4] logits) { logits = Relu (pixels) }
    """
    with pytest.raises(CalibrationError, match="no Linear layer") as caught:
        plan(ir.from_proto(onnx.parser.parse_model(text)))
    assert caught.value.hint
