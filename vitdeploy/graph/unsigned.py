"""Signed activations as unsigned ones: the same numbers in the form that CPUs multiply fastest."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from vitdeploy.graph.edits import store
from vitdeploy.graph.operands import is_constant, readers

_SHIFT = np.array(128, np.uint8)


def activations_made_unsigned(model: ir.Model) -> int:
    """Store what quantized Linear layers read as uint8 with zero point 128 instead of int8 with 0,
    in place; how many tensors were.

    Exact: each number moves by 128 and its zero with it. The dot-product
    instructions of CPUs multiply unsigned bytes by signed ones; of two signed
    ones each product has to be made good for afterwards. Weights, factors of
    attention products and tensors that anything else reads stay as they are.
    """
    changed = 0
    for node in model.graph:
        if _is_signed(node) and _feeds_linears_alone(node.outputs[0]):
            numbers = node.outputs[0]
            zero = store(model.graph, f"{numbers.name}_unsigned_zero_point", _SHIFT)
            for reader in (node, *readers(numbers)):
                reader.replace_input_with(2, zero)
            numbers.dtype = ir.DataType.UINT8
            changed += 1
    return changed


def _is_signed(node: ir.Node) -> bool:
    """Whether a node quantizes to int8 with zero point 0."""
    zero = node.inputs[2] if node.op_type == "QuantizeLinear" and len(node.inputs) == 3 else None
    tensor = None if zero is None else ir.convenience.get_const_tensor(zero)
    return (
        tensor is not None
        and tensor.dtype == ir.DataType.INT8
        and tensor.size == 1
        and not tensor.numpy().any()
    )


def _feeds_linears_alone(numbers: ir.Value) -> bool:
    dequantizers = readers(numbers)
    products = [reader for node in dequantizers for reader in readers(node.outputs[0])]
    return (
        bool(products)
        and all(node.op_type == "DequantizeLinear" and _is_zeroed(node) for node in dequantizers)
        and all(_is_quantized_linear(node) for node in products)
        and not numbers.is_graph_output()
        and not any(node.outputs[0].is_graph_output() for node in dequantizers)
    )


def _is_zeroed(node: ir.Node) -> bool:
    return len(node.inputs) == 3


def _is_quantized_linear(node: ir.Node) -> bool:
    """Whether a product reads a dequantized constant on its right."""
    if node.op_type not in ("MatMul", "Gemm"):
        return False
    weight = node.inputs[1]
    dequantizer = None if weight is None else weight.producer()
    return (
        dequantizer is not None
        and dequantizer.op_type == "DequantizeLinear"
        and dequantizer.inputs[0] is not None
        and is_constant(dequantizer.inputs[0])
    )
