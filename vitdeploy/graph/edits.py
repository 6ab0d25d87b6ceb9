"""Small changes to a graph that passes are made of."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray


def store(graph: ir.Graph, name: str, array: NDArray) -> ir.Value:
    """A new constant in the graph; its name grows where another one has it."""
    while name in graph.initializers:
        name += "_"
    tensor = ir.Tensor(np.array(array, order="C"), name=name)
    value = ir.Value(
        name=name, type=ir.TensorType(tensor.dtype), shape=tensor.shape, const_value=tensor
    )
    graph.register_initializer(value)
    return value


def unused_name(graph: ir.Graph, name: str) -> str:
    """`name`, grown where a node has it; exporters leave nodes without names, or share them."""
    taken = {node.name for node in graph}
    while name in taken:
        name += "_"
    return name


def take_place(graph: ir.Graph, old: ir.Value, new: ir.Value) -> None:
    """Whoever reads `old` reads `new`, which gets its type and shape, and as an output its name."""
    new.type, new.shape = old.type, old.shape
    for index, output in enumerate(graph.outputs):
        if output is old:
            graph.outputs[index] = new
            old.name, new.name = f"{old.name}_before", old.name
    ir.convenience.replace_all_uses_with(old, new)
