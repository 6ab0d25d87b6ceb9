"""The Linear layers of a graph, however they are written."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from vitdeploy.graph.geometry import geometry
from vitdeploy.graph.linears import is_linear


@dataclass(frozen=True)
class LinearNode:
    """A matrix product with constant weights.

    `weight_axis` is the axis of the weight that runs over output channels: 1
    for MatMul's (in, out), 0 for Gemm's transposed (out, in). `bias` is what
    is added per output channel, empty where nothing is; `output` the value
    behind the bias.
    """

    name: str
    activation: str
    weight: str
    weight_axis: int
    bias: str = ""
    output: str = ""


def linear_nodes(model: ir.Model) -> Iterator[LinearNode]:
    """MatMul and Gemm nodes that multiply an activation with a constant matrix.

    What is computed from the size alone, as the resampling of positions in a
    graph of a range of sizes, is no activation.
    """
    placing = geometry(model.graph)
    for node in model.graph:
        if node in placing or not is_linear(node) or not _is_plain(node):
            continue
        activation, weight = node.inputs[:2]
        assert activation is not None  # is_linear has looked
        assert weight is not None
        if activation.producer() is None or not _is_stored_float(weight):
            continue
        transposed = node.op_type == "Gemm" and _attribute(node, "transB")
        bias, output = _bias_of(node)
        yield LinearNode(
            str(node.name),
            str(activation.name),
            str(weight.name),
            0 if transposed else 1,
            "" if bias is None else str(bias.name),
            str(output.name),
        )


def weight_of(model: ir.Model, linear: LinearNode) -> NDArray[np.float32]:
    """(in, out), a view where possible."""
    tensor = model.graph.initializers[linear.weight].const_value
    assert tensor is not None  # linear_nodes yields constant weights only
    weight = tensor.numpy()
    return weight if linear.weight_axis == 1 else weight.T


def bias_vector(model: ir.Model, linear: LinearNode) -> NDArray[np.float32]:
    """(out,); zeros where the layer has none."""
    if not linear.bias:
        return np.zeros(weight_of(model, linear).shape[1], dtype=np.float32)
    tensor = model.graph.initializers[linear.bias].const_value
    assert tensor is not None
    return tensor.numpy().reshape(-1)


def _bias_of(node: ir.Node) -> tuple[ir.Value | None, ir.Value]:
    """The constant added to a product, one number for each output channel, and what comes out."""
    product = node.outputs[0]
    columns = _columns(node)
    if node.op_type == "Gemm" and len(node.inputs) > 2 and node.inputs[2] is not None:
        return (node.inputs[2] if _is_vector(node.inputs[2], columns) else None), product
    adders = [use for use in product.uses() if use.node.op_type == "Add"]
    if len(adders) != 1 or len(product.uses()) != 1 or product.is_graph_output():
        return None, product
    adder = adders[0].node
    other = adder.inputs[1 - adders[0].idx]
    if other is None or not _is_vector(other, columns):
        return None, product
    return other, adder.outputs[0]


def _columns(node: ir.Node) -> int:
    weight = node.inputs[1]
    assert weight is not None
    assert weight.const_value is not None
    axis = 0 if node.op_type == "Gemm" and _attribute(node, "transB") else 1
    return weight.const_value.numpy().shape[axis]


def _is_vector(value: ir.Value, length: int) -> bool:
    tensor = value.const_value
    return (
        value.is_initializer()
        and tensor is not None
        and tensor.dtype == ir.DataType.FLOAT
        and tensor.size == length
        and tensor.numpy().shape[-1] == length
    )


def _is_stored_float(value: ir.Value) -> bool:
    tensor = value.const_value
    return value.is_initializer() and tensor is not None and tensor.dtype == ir.DataType.FLOAT


def _is_plain(node: ir.Node) -> bool:
    """alpha and beta would have to be carried along; no ViT uses them."""
    if node.op_type != "Gemm":
        return True
    factors = (node.attributes.get(name) for name in ("alpha", "beta"))
    return all(factor is None or factor.as_float() == 1.0 for factor in factors)


def _attribute(node: ir.Node, name: str) -> int:
    attribute = node.attributes.get(name)
    return 0 if attribute is None else attribute.as_int()
