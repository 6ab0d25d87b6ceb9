"""What a node reads, and who reads it."""

from __future__ import annotations

import onnx_ir as ir


def number(value: ir.Value | None) -> float | None:
    """The one number a constant holds."""
    tensor = None if value is None else ir.convenience.get_const_tensor(value)
    if tensor is None or tensor.size != 1 or tensor.dtype == ir.DataType.STRING:
        return None
    return float(tensor.numpy().reshape(()))


def other_operand(node: ir.Node, value: ir.Value) -> ir.Value | None:
    """The other operand of a binary operator."""
    first, second = (*node.inputs, None, None)[:2]
    return second if first is value else first if second is value else None


def readers(value: ir.Value) -> list[ir.Node]:
    """The nodes that read a value, each once."""
    return list(dict.fromkeys(use.node for use in value.uses()))


def is_constant(value: ir.Value) -> bool:
    """Whether the file holds its values."""
    return ir.convenience.get_const_tensor(value) is not None


def is_over_last_axis(node: ir.Node) -> bool:
    """Whether the `axis` of a Softmax or LayerNormalization is its last one; -1 where not given."""
    axis = node.attributes["axis"].as_int() if "axis" in node.attributes else -1
    shape = None if node.inputs[0] is None else node.inputs[0].shape
    return axis == -1 or (shape is not None and axis == len(shape) - 1)


def reduced_axes(node: ir.Node) -> list[int]:
    """What a reduction goes over, by attribute (before opset 18) or input; empty where all or
    unknown."""
    if "axes" in node.attributes:
        return list(node.attributes["axes"].as_ints())
    given = node.inputs[1] if len(node.inputs) > 1 else None
    tensor = None if given is None else ir.convenience.get_const_tensor(given)
    return [] if tensor is None else [int(axis) for axis in tensor.numpy().reshape(-1)]
