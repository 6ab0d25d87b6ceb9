"""ONNX's own reference implementation: slow, in NumPy, and accurate."""

from __future__ import annotations

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator

from vitdeploy.graph.files import RunnableGraph

_GAPS = (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)
"""Raised where an operator is missing or is not whole, as ConvTranspose in groups (VOLO)."""


def answers(graph: bytes | RunnableGraph, inputs: NDArray) -> NDArray[np.float32] | None:
    """(n, ...) first output for (n, ...) inputs, one image at a time; seconds each for a ViT-B.

    Its sums are pairwise: beside it one sees what a runtime's kernel loses over long ones.
    None where it cannot run the graph.
    """
    whole = _whole(graph)
    try:
        evaluator = ReferenceEvaluator(whole)
        name = str(evaluator.input_names[0])
        rows = (inputs[at : at + 1] for at in range(len(inputs)))
        firsts = [next(iter(evaluator.run(None, {name: row}))) for row in rows]
    except _GAPS:
        return None
    return np.concatenate(firsts)


def _whole(graph: bytes | RunnableGraph) -> onnx.ModelProto:
    """The graph with its large weights in it."""
    if isinstance(graph, bytes):
        return onnx.load_from_string(graph)
    proto = onnx.load_from_string(graph.proto)
    for tensor in proto.graph.initializer:
        if tensor.name in graph.weights:
            tensor.CopyFrom(numpy_helper.from_array(graph.weights[tensor.name], tensor.name))
    return proto
