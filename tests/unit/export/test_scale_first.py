"""Scores that are scaled after the product: the scale moves to the queries, and only there."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

from vitdeploy.export.passes.scale_first import scale_queries_first


def graph_of(scaling: str, *, scale: object = 0.125, second: str = "keys") -> ir.Model:
    """softmax((Q K^T) op scale) on (2, 3, 5, 8) queries; `second` may be a constant."""
    initializers = [
        helper.make_tensor("scale", TensorProto.FLOAT, np.shape(scale), np.ravel(scale)),
        helper.make_tensor("weight", TensorProto.FLOAT, [8, 5], np.linspace(-1, 1, 40)),
    ]
    nodes = [
        helper.make_node("MatMul", ["queries", second], ["scores"], name="scores"),
        helper.make_node(scaling, ["scores", "scale"], ["scaled"], name="scaled"),
        helper.make_node("Softmax", ["scaled"], ["answer"], name="softmax"),
    ]
    inputs = [
        helper.make_tensor_value_info("queries", TensorProto.FLOAT, [2, 3, 5, 8]),
        helper.make_tensor_value_info("keys", TensorProto.FLOAT, [2, 3, 8, 5]),
    ]
    answer = helper.make_tensor_value_info("answer", TensorProto.FLOAT, [2, 3, 5, 5])
    graph = helper.make_graph(nodes, "attention", inputs, [answer], initializers)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    return ir.from_proto(model)


def answers(model: ir.Model) -> np.ndarray:
    proto = ir.to_proto(model)
    onnx.checker.check_model(proto, full_check=True)
    generator = np.random.default_rng(0)
    queries = generator.normal(size=(2, 3, 5, 8)).astype(np.float32)
    keys = generator.normal(size=(2, 3, 8, 5)).astype(np.float32)
    evaluator = onnx.reference.ReferenceEvaluator(proto)
    return evaluator.run(None, {"queries": queries, "keys": keys})[0]


@pytest.mark.parametrize(("scaling", "scale"), [("Mul", 0.125), ("Div", 8.0), ("Mul", [0.125])])
def test_the_scale_moves_before_the_product(scaling: str, scale: object) -> None:
    before = answers(graph_of(scaling, scale=scale))
    model = scale_queries_first(graph_of(scaling, scale=scale))
    assert [node.op_type for node in model.graph] == ["Mul", "MatMul", "Softmax"]
    assert model.graph[0].inputs[0] is model.graph.inputs[0]
    np.testing.assert_allclose(answers(model), before, rtol=1e-5)


@pytest.mark.parametrize(
    "model",
    [
        graph_of("Mul", second="weight"),
        graph_of("Mul", scale=[0.1, 0.2, 0.3, 0.4, 0.5]),
        graph_of("Div", scale=0.0),
    ],
    ids=["a Linear layer", "a scale per key", "a division by zero"],
)
def test_other_products_stay(model: ir.Model) -> None:
    scale_queries_first(model)
    assert model.graph[0].op_type == "MatMul"


def test_scores_that_are_read_elsewhere_stay() -> None:
    model = graph_of("Mul")
    model.graph.outputs.append(model.graph[0].outputs[0])
    scale_queries_first(model)
    assert model.graph[0].op_type == "MatMul"
