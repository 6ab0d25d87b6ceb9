"""A graph traced with a fixed batch, for any batch."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from vitdeploy.export.adopting.batch_axis import (
    Axes,
    batch_axis_behind,
    integers,
    mixed,
    sides_of,
)
from vitdeploy.export.passes.static_shapes import batch_and_sides
from vitdeploy.graph.edits import store
from vitdeploy.graph.rounding import POINTWISE

BATCH = "batch"


def open_batch(model: ir.Model) -> ir.Model:
    """Replace the traced batch wherever it stands in a graph of known shapes. In place.

    The axis of images is followed from the input to the output; then

    * a Reshape gets -1 there, an Expand 1 (which keeps what is);
    * a constant joined to images (a class token repeated for the batch) is
      repeated for the batch there is;
    * a constant added to images that repeats itself along them is kept once.

    What that yields has to be compared with the original at several batches:
    a side of 1 can be taken for the batch.

    Raises ExportError, naming the node, where images are mixed or an operator
    is not known.
    """
    graph = model.graph
    axes: Axes = {graph.inputs[0]: 0}
    traced = sides_of(graph.inputs[0])[0]
    for node in list(graph):
        axis = batch_axis_behind(node, axes)
        if axis is None:
            continue
        _open(graph, node, axis, traced, axes)
        for value in node.outputs:
            axes[value] = axis
    for value in graph.outputs:
        if axes.get(value) != 0:
            producer = value.producer()
            assert producer is not None  # inputs are no outputs of a model
            raise mixed(producer, "the output does not hold the images first")
    _forget_shapes(graph)
    return model


def _open(graph: ir.Graph, node: ir.Node, axis: int, traced: int, axes: Axes) -> None:
    if node.op_type == "Reshape":
        sides = sides_of(node.outputs[0])
        sides[axis] = -1
        node.replace_input_with(1, store(graph, f"{node.name}.shape", np.array(sides, np.int64)))
        node.attributes.pop("allowzero", None)
    elif node.op_type == "Expand":
        sides = integers(node, 1)
        if sides is None:
            raise mixed(node, "the shape it asks for is computed")
        sides[axis - len(sides_of(node.outputs[0])) + len(sides)] = 1
        node.replace_input_with(1, store(graph, f"{node.name}.shape", np.array(sides, np.int64)))
    elif node.op_type == "Concat":
        for index, value in enumerate(node.inputs):
            if value is not None and value not in axes:
                array = _once(node, value, axis, traced)
                node.replace_input_with(index, _repeated(graph, node, index, array, axis))
    elif node.op_type in POINTWISE or node.op_type == "Where":
        rank = len(sides_of(node.outputs[0]))
        for index, value in enumerate(node.inputs):
            if value is None or value in axes:
                continue
            own = axis - rank + len(sides_of(value))
            if own >= 0 and sides_of(value)[own] > 1:
                array = _once(node, value, own, traced)
                node.replace_input_with(index, store(graph, f"{node.name}.constant", array))


def _once(node: ir.Node, value: ir.Value, axis: int, traced: int) -> NDArray:
    """The constant of one image, where it is the same for all the traced ones."""
    tensor = ir.convenience.get_const_tensor(value)
    if tensor is None:
        raise mixed(node, "it joins images to what is computed without them")
    array = tensor.numpy()
    first = array.take([0], axis)
    if array.shape[axis] != traced or not np.array_equal(
        np.broadcast_to(first, array.shape), array
    ):
        raise mixed(node, "it joins images to a constant that differs among them")
    return first


def _repeated(graph: ir.Graph, node: ir.Node, index: int, array: NDArray, axis: int) -> ir.Value:
    sides: list[int | ir.SymbolicDim] = list(array.shape)
    sides[axis] = ir.SymbolicDim(BATCH)
    constant = store(graph, f"{node.name}.constant_{index}", array)
    shape = batch_and_sides(graph, node, sides)
    expanded = ir.node("Expand", [constant, shape], name=f"{node.name}.repeated_{index}")
    expanded.outputs[0].name = f"{expanded.name}_out"
    expanded.outputs[0].type = constant.type
    graph.insert_before(node, expanded)
    return expanded.outputs[0]


def _forget_shapes(graph: ir.Graph) -> None:
    """Those of the traced batch; outputs keep their other sides."""
    for node in graph:
        for value in node.outputs:
            value.shape = None
    rest = sides_of(graph.inputs[0])[1:]
    graph.inputs[0].shape = ir.Shape([ir.SymbolicDim(BATCH), *rest])
