"""Attention without the guard against rows that are masked throughout."""

from __future__ import annotations

import onnx_ir as ir

from vitdeploy.graph.attentions import attention_at
from vitdeploy.graph.edits import take_place


def without_nan_guards(model: ir.Model) -> ir.Model:
    """Where(IsNaN(p), 0, p) becomes p behind the Softmax of scores that nothing masks.

    PyTorch guards every attention with a mask, also one of zeros. A Softmax is
    NaN only where all its scores are minus infinity, or one is NaN itself.
    """
    graph = model.graph
    for node in list(graph):
        if node.op_type != "Where" or node.inputs[0] is None or node.inputs[2] is None:
            continue
        guard, guarded = node.inputs[0].producer(), node.inputs[2]
        softmax = guarded.producer()
        if guard is None or guard.op_type != "IsNaN" or guard.inputs[0] is not guarded:
            continue
        attention = None if softmax is None else attention_at(softmax)
        if attention is not None and not attention.masked:
            take_place(graph, node.outputs[0], guarded)
    return model
