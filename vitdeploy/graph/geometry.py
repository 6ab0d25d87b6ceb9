"""What a graph computes from sizes and not from pixels: coordinates, rotary tables, resampling."""

from __future__ import annotations

import onnx_ir as ir

from vitdeploy.graph.rounding import MOVEMENT

_COUNTING = frozenset({"NonZero", "Range", "Shape", "Size"})


def geometry(graph: ir.Graph) -> set[ir.Node]:
    """The nodes whose numbers come of sizes and counts alone."""
    return _depending_on_sizes(graph) - _depending_on_pixels(graph)


def _depending_on_pixels(graph: ir.Graph) -> set[ir.Node]:
    """Nodes that the values of the input reach; through Shape only its size passes."""
    reached: set[ir.Value] = set(graph.inputs)
    nodes: set[ir.Node] = set()
    for node in graph:
        if node.op_type not in ("Shape", "Size") and not reached.isdisjoint(
            value for value in node.inputs if value is not None
        ):
            nodes.add(node)
            reached.update(node.outputs)
    return nodes


def _depending_on_sizes(graph: ir.Graph) -> set[ir.Node]:
    """Nodes whose numbers come of sizes and counts. A parameter that is only repeated for the
    batch, as a learned query is, stays what it is."""
    reached: set[ir.Value] = set()
    nodes: set[ir.Node] = set()
    for node in graph:
        read = node.inputs[: _numbers_read(node)]
        if node.op_type in _COUNTING or not reached.isdisjoint(v for v in read if v is not None):
            nodes.add(node)
            reached.update(node.outputs)
    return nodes


def _numbers_read(node: ir.Node) -> int:
    """How many inputs an operator's numbers come from; those behind say how many, or where."""
    if node.op_type not in MOVEMENT or node.op_type in ("Concat", "Where"):
        return len(node.inputs)
    return 0 if node.op_type == "ConstantOfShape" else 1
