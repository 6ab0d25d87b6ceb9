"""LayerNorm as exporters write it where their opset has no operator for it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from vitdeploy.graph.operands import number, other_operand, readers, reduced_axes


@dataclass(frozen=True)
class DecomposedLayerNorm:
    """A LayerNorm over the last axis of `x`, written out; `output` is what it answers.

    `gamma` and `beta` are (width,) float32, None where the group has none.
    """

    x: ir.Value
    gamma: NDArray[np.float32] | None
    beta: NDArray[np.float32] | None
    width: int
    epsilon: float
    output: ir.Value
    anchor: ir.Node


def decomposed_layer_norms(graph: ir.Graph) -> list[DecomposedLayerNorm]:
    """Every LayerNorm that is written out, in graph order.

    d = x - mean(x), v = mean(d * d or d ** 2), then d over the root of v plus
    epsilon: by Div, by Reciprocal and Mul, or as power -0.5; gamma and beta
    where they are constants along the last axis alone. TensorFlow's order of
    the same sum, x * s + (beta - mean * s) with s = gamma / root, is one too.

    Not taken for one: means over other or several axes, a variance that does
    not keep its axis or is not of the same differences, no epsilon, a width
    that cannot be known. What reads a value between keeps reading it.
    """
    return [found for node in graph if (found := _layer_norm_at(node)) is not None]


def _layer_norm_at(node: ir.Node) -> DecomposedLayerNorm | None:
    """The LayerNorm whose Add of epsilon `node` is."""
    split = _with_number(node, "Add")
    variance = None if split is None else _last_axis_mean(split[0])
    if split is None or variance is None or not split[1] > 0:
        return None
    deviation = _squared(variance)
    producer = None if deviation is None else deviation.producer()
    if producer is None or producer.op_type != "Sub":
        return None
    x, mean = producer.inputs
    if x is None or mean is None or _last_axis_mean(mean) is not x:
        return None
    if x.dtype not in (ir.DataType.FLOAT, None):
        return None
    assert deviation is not None
    ends = [
        *_normalized(node.outputs[0], x, deviation),
        *_shifted(node.outputs[0], x, mean),
    ]
    if len(ends) != 1:
        return None
    output, gamma, beta = ends[0]
    width = _width(x, gamma)
    if width is None:
        return None
    return DecomposedLayerNorm(x, gamma, beta, width, split[1], output, node)


_End = tuple[ir.Value, "NDArray[np.float32] | None", "NDArray[np.float32] | None"]


def _normalized(shifted: ir.Value, x: ir.Value, deviation: ir.Value) -> Iterator[_End]:
    """deviation / root, with the gamma and beta that alone read on."""
    for root in _roots(shifted):
        for node in readers(root):
            if node.op_type == "Div" and tuple(node.inputs) == (deviation, root):
                yield _with_gamma_and_beta(node.outputs[0], x)
    for inverse in _inverse_roots(shifted):
        for node in readers(inverse):
            if node.op_type == "Mul" and other_operand(node, inverse) is deviation:
                yield _with_gamma_and_beta(node.outputs[0], x)


def _shifted(shifted: ir.Value, x: ir.Value, mean: ir.Value) -> Iterator[_End]:
    """x * s + (beta - mean * s) with s = gamma / root, as tf2onnx writes it."""
    for inverse in _inverse_roots(shifted):
        for node in readers(inverse):
            gamma = _vector_operand(node, "Mul", inverse, x)
            if gamma is None:
                continue
            scale = node.outputs[0]
            products = {
                other_operand(reader, scale): reader.outputs[0] for reader in readers(scale)
            }
            if products.keys() != {x, mean}:
                continue
            for last in readers(products[x]):
                rest = other_operand(last, products[x]) if last.op_type == "Add" else None
                producer = None if rest is None else rest.producer()
                if producer is None or producer.op_type != "Sub":
                    continue
                beta = _vector(producer.inputs[0], x)
                if beta is not None and producer.inputs[1] is products[mean]:
                    yield last.outputs[0], gamma, beta


def _roots(shifted: ir.Value) -> Iterator[ir.Value]:
    for node in readers(shifted):
        if node.op_type == "Sqrt" or _power(node, shifted) == 0.5:
            yield node.outputs[0]


def _inverse_roots(shifted: ir.Value) -> Iterator[ir.Value]:
    for node in readers(shifted):
        if _power(node, shifted) == -0.5:
            yield node.outputs[0]
    for root in _roots(shifted):
        for node in readers(root):
            if node.op_type == "Reciprocal" or (
                node.op_type == "Div" and node.inputs[1] is root and number(node.inputs[0]) == 1
            ):
                yield node.outputs[0]


def _with_gamma_and_beta(normalized: ir.Value, x: ir.Value) -> _End:
    gamma, output = _next_vector(normalized, "Mul", x)
    beta, output = _next_vector(output, "Add", x)
    return output, gamma, beta


def _next_vector(
    value: ir.Value, op_type: str, x: ir.Value
) -> tuple[NDArray[np.float32] | None, ir.Value]:
    """The constant vector that the only reader of `value` joins to it, and what comes of that."""
    found = readers(value)
    if len(found) != 1 or value.is_graph_output():
        return None, value
    vector = _vector_operand(found[0], op_type, value, x)
    return (None, value) if vector is None else (vector, found[0].outputs[0])


def _vector_operand(
    node: ir.Node, op_type: str, value: ir.Value, x: ir.Value
) -> NDArray[np.float32] | None:
    return _vector(other_operand(node, value), x) if node.op_type == op_type else None


def _vector(value: ir.Value | None, x: ir.Value) -> NDArray[np.float32] | None:
    """(width,) values of a constant that differs along the last axis of `x` alone."""
    tensor = None if value is None else ir.convenience.get_const_tensor(value)
    if tensor is None or tensor.dtype != ir.DataType.FLOAT or not len(tensor.shape):
        return None
    *leading, width = (int(side) for side in tensor.shape)  # type: ignore[arg-type]
    if any(side != 1 for side in leading) or (x.shape is not None and len(leading) >= len(x.shape)):
        return None
    known = None if x.shape is None or not len(x.shape) else x.shape[-1]
    fits = width == known if isinstance(known, int) else width > 1
    return tensor.numpy().reshape(-1) if fits else None


def _width(x: ir.Value, gamma: NDArray[np.float32] | None) -> int | None:
    last = None if x.shape is None or not len(x.shape) else x.shape[-1]
    if isinstance(last, int):
        return last
    return None if gamma is None else len(gamma)


def _last_axis_mean(value: ir.Value) -> ir.Value | None:
    """What `value` is the mean of along the last axis, which it keeps; None where it is not."""
    node = value.producer()
    if node is None or node.op_type != "ReduceMean" or node.inputs[0] is None:
        return None
    keeps = node.attributes.get("keepdims")
    if keeps is not None and not keeps.as_int():
        return None
    axes = reduced_axes(node)
    shape = node.inputs[0].shape
    last = (-1,) if shape is None else (-1, len(shape) - 1)
    return node.inputs[0] if len(axes) == 1 and axes[0] in last else None


def _squared(value: ir.Value) -> ir.Value | None:
    node = value.producer()
    if node is None:
        return None
    if node.op_type == "Mul" and node.inputs[0] is node.inputs[1]:
        return node.inputs[0]
    base = node.inputs[0] if node.inputs else None
    return base if base is not None and _power(node, base) == 2 else None


def _power(node: ir.Node, base: ir.Value) -> float | None:
    if node.op_type != "Pow" or node.inputs[0] is not base:
        return None
    return number(node.inputs[1])


def _with_number(node: ir.Node, op_type: str) -> tuple[ir.Value, float] | None:
    """The operand of a binary operator that is no number, and the other one, which is."""
    if node.op_type != op_type:
        return None
    for value, other in (node.inputs, reversed(node.inputs)):
        constant = number(other)
        if value is not None and constant is not None:
            return value, constant
    return None
