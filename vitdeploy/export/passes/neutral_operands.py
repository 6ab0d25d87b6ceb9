"""Operators that change nothing."""

from __future__ import annotations

import onnx_ir as ir

from vitdeploy.graph.edits import take_place

_NEUTRAL = {"Add": 0, "Sub": 0, "Mul": 1, "Div": 1}


def without_neutral_operands(model: ir.Model) -> ir.Model:
    """x + 0, x - 0, x * 1 and x / 1 become x, whatever the shape of the constant.

    transformers adds a mask of zeros to the scores, behind which no runtime
    looks for attention. Only where x has the shape of the result.
    """
    graph = model.graph
    for node in list(graph):
        neutral = _NEUTRAL.get(node.op_type)
        if neutral is None or node.domain:
            continue
        for index in (1, 0) if node.op_type in ("Add", "Mul") else (1,):
            constant, value = node.inputs[index], node.inputs[1 - index]
            if _is_all(constant, neutral) and _has_shape_of(node.outputs[0], value):
                assert value is not None  # it has a shape
                take_place(graph, node.outputs[0], value)
                break
    return model


def _is_all(value: ir.Value | None, number: int) -> bool:
    tensor = None if value is None else ir.convenience.get_const_tensor(value)
    return tensor is not None and tensor.size > 0 and bool((tensor.numpy() == number).all())


def _has_shape_of(result: ir.Value, value: ir.Value | None) -> bool:
    if value is None or value.shape is None or result.shape is None or result.is_graph_output():
        return False
    known = all(isinstance(side, int) or side.value is not None for side in result.shape)
    return known and list(value.shape) == list(result.shape)
