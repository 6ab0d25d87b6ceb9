"""Shapes known, and shape arithmetic gone, in graphs of which the batch alone is open."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir

from vitdeploy.graph import files
from vitdeploy.graph.edits import store
from vitdeploy.graph.operands import is_constant
from vitdeploy.graph.shapes import Shapes, concrete_shapes
from vitdeploy.graph.skeleton import skeleton_of

_BATCHES = (3, 7)
"""Sides that differ between the two depend on the batch; primes that no ViT's sides share."""


def settle_shapes(model: ir.Model) -> ir.Model:
    """Write every shape into the graph, and constants for what is computed from known sides.

    Shapes are inferred for two batches (for the one the graph was traced with,
    where that is fixed): what agrees is a number, what grows with the batch
    stays open. Exporters ask a value for its shape even where the batch is the
    only thing they could learn; so a Reshape gets its shape as a constant with
    -1 for the batch, an Expand one joined from the batch and constants.
    """
    graph = model.graph
    image = graph.inputs[0]
    sides = [] if image.shape is None else list(image.shape)
    if not sides or not all(isinstance(side, int) for side in sides[1:]):
        return model
    batches = (sides[0],) if isinstance(sides[0], int) else _BATCHES
    known = _inferred(model, [(batch, *sides[1:]) for batch in batches])
    for node in list(graph):
        for value in node.outputs:
            _settle(graph, value, known, batches)
    for node in list(graph):
        if node.op_type == "Reshape":
            _reshape_by_constant(graph, node)
        elif node.op_type == "Expand" and len(batches) > 1:
            _expand_by_batch(graph, node)
    return model


def _inferred(model: ir.Model, shapes: Sequence[tuple]) -> list[Shapes]:
    name = str(model.graph.inputs[0].name)
    proto = onnx.ModelProto.FromString(files.runnable(model).proto)
    # Weights are not looked at: the folder that they would be read from is empty.
    with tempfile.TemporaryDirectory() as empty:
        skeleton = skeleton_of(proto, Path(empty))
        return [concrete_shapes(skeleton, {name: shape}, all_constants=True) for shape in shapes]


def _settle(graph: ir.Graph, value: ir.Value, known: list[Shapes], batches: Sequence[int]) -> None:
    found = [shapes.shapes.get(str(value.name)) for shapes in known]
    shapes = [shape for shape in found if shape is not None]
    if len(shapes) == len(known) and len({len(shape) for shape in shapes}) == 1:
        value.shape = ir.Shape([_side(sides, batches) for sides in zip(*shapes, strict=True)])
    data_type = known[0].types.get(str(value.name), 0)
    if value.dtype is None and data_type:
        value.type = ir.TensorType(ir.DataType(data_type))
    arrays = [shapes.constants.get(str(value.name)) for shapes in known]
    first = arrays[0]
    if first is None or value.is_graph_output() or not value.uses():
        return
    if all(array is not None and np.array_equal(array, first) for array in arrays):
        constant = store(graph, f"{value.name}_known", np.asarray(first))
        ir.convenience.replace_all_uses_with(value, constant)


def _side(sides: tuple[int, ...], batches: Sequence[int]) -> int | ir.SymbolicDim:
    """A number where all batches agree, else 'batch' or a multiple of it, else unnamed."""
    if len(set(sides)) == 1:
        return sides[0]
    factors = {side / batch for side, batch in zip(sides, batches, strict=True)}
    factor = factors.pop()
    if factors or factor != int(factor):
        return ir.SymbolicDim(None)
    return ir.SymbolicDim("batch" if factor == 1 else f"{int(factor)}*batch")


def _reshape_by_constant(graph: ir.Graph, node: ir.Node) -> None:
    shape, given = node.outputs[0].shape, node.inputs[1]
    if shape is None or given is None or is_constant(given) or 0 in list(shape):
        return
    if sum(not isinstance(side, int) for side in shape) <= 1:
        sides = np.array([side if isinstance(side, int) else -1 for side in shape], np.int64)
        node.replace_input_with(1, store(graph, f"{node.name}.shape", sides))
        node.attributes.pop("allowzero", None)


def _expand_by_batch(graph: ir.Graph, node: ir.Node) -> None:
    """What comes out of an Expand is a shape to ask it for: of numbers and the batch alone."""
    shape, given = node.outputs[0].shape, node.inputs[1]
    if shape is None or given is None or is_constant(given):
        return
    opened = [side.value for side in shape if not isinstance(side, int)]
    if opened == ["batch"] and not _is_settled(given):
        node.replace_input_with(1, batch_and_sides(graph, node, list(shape)))


def _is_settled(shape: ir.Value) -> bool:
    """Whether `shape` is what `batch_and_sides` answers."""
    node = shape.producer()
    parts = [] if node is None or node.op_type != "Concat" else node.inputs
    asks = [v.producer() for v in parts if v is not None and not is_constant(v)]
    return len(asks) == 1 and asks[0] is not None and asks[0].op_type == "Shape"


def batch_and_sides(
    graph: ir.Graph, node: ir.Node, sides: Sequence[int | ir.SymbolicDim]
) -> ir.Value:
    """A shape for `node`: its numbers as constants, its open sides the input's batch."""
    batch = ir.node("Shape", [graph.inputs[0]], {"start": 0, "end": 1}, name=f"{node.name}.batch")
    parts = [
        store(graph, f"{node.name}.side", np.array([side], np.int64))
        if isinstance(side, int)
        else batch.outputs[0]
        for side in sides
    ]
    joined = ir.node("Concat", parts, {"axis": 0}, name=f"{node.name}.sides")
    for each, rank in ((batch, 1), (joined, len(sides))):
        each.outputs[0].name = f"{each.name}_out"
        each.outputs[0].type = ir.TensorType(ir.DataType.INT64)
        each.outputs[0].shape = ir.Shape([rank])
    graph.insert_before(node, [batch, joined])
    return joined.outputs[0]
