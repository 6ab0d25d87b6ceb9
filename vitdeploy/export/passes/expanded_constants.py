"""Constants that were repeated for the batch, and need not be."""

from __future__ import annotations

import onnx_ir as ir

from vitdeploy.graph.operands import is_constant, readers
from vitdeploy.graph.rounding import POINTWISE

_BROADCASTING = POINTWISE | {"And", "Not", "Or", "Where"}


def without_expanded_constants(model: ir.Model) -> ir.Model:
    """An Expand of a constant goes where broadcasting does the same.

    Masks are built for the whole batch, of ones; as a constant of one image
    they fold, and often nothing of them is left. Only where everything the
    constant reaches is elementwise and meets a tensor of the full shape.
    """
    for node in list(model.graph):
        data = node.inputs[0] if node.op_type == "Expand" else None
        if data is None or not is_constant(data) or data.shape is None:
            continue
        full = node.outputs[0].shape
        if full is not None and len(data.shape) == len(full) and _is_broadcast(node.outputs[0]):
            ir.convenience.replace_all_uses_with(node.outputs[0], data)
    return model


def _is_broadcast(value: ir.Value) -> bool:
    """Whether all readers, and theirs, would answer the same if `value` were smaller."""
    if value.is_graph_output():
        return False
    for reader in readers(value):
        if reader.op_type not in _BROADCASTING:
            return False
        result = reader.outputs[0]
        others = [v for v in reader.inputs if v is not None and v is not value]
        if not any(_covers(other, result) for other in others) and not _stays_small(others, result):
            return False
    return True


def _covers(value: ir.Value, result: ir.Value) -> bool:
    """Whether a computed operand has the whole shape of the result already."""
    if is_constant(value) or value.shape is None or result.shape is None:
        return False
    producer = value.producer()
    if producer is not None and producer.op_type == "Expand":
        return False  # which may be the next to go
    named = all(isinstance(side, int) or side.value is not None for side in result.shape)
    return named and list(value.shape) == list(result.shape)


def _stays_small(others: list[ir.Value], result: ir.Value) -> bool:
    return all(is_constant(other) for other in others) and _is_broadcast(result)
