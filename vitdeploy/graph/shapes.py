"""The shape of every value of a graph at one size of its inputs."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator

from vitdeploy.errors import first_line
from vitdeploy.graph.skeleton import Skeleton

Shape = tuple[int, ...]

_FOLDED_ELEMENTS = 1 << 16
# fmt: off
_SHAPE_ARITHMETIC = frozenset((
    "Abs", "Add", "And", "Cast", "Ceil", "Clip", "Concat", "Constant", "ConstantOfShape", "Div",
    "Equal", "Expand", "Flatten", "Floor", "Gather", "Greater", "GreaterOrEqual", "Identity",
    "Less", "LessOrEqual", "Max", "Min", "Mod", "Mul", "Neg", "Not", "Or", "Pow", "Range",
    "ReduceMax", "ReduceMin", "ReduceProd", "ReduceSum", "Reshape", "Round", "Slice", "Sqrt",
    "Squeeze", "Sub", "Sum", "Tile", "Transpose", "Unsqueeze", "Where",
))
# fmt: on
UNEVALUABLE = (
    ArithmeticError,
    AttributeError,
    LookupError,
    NotImplementedError,
    RuntimeError,
    TypeError,
    ValueError,
)
"""What ONNX's reference evaluator raises on a node that it lacks or that breaks its operator's
rules; it defines no root of its own."""


@dataclass(frozen=True)
class Shapes:
    """What is known of the values at one size; a value left out has no known shape.

    `types` are onnx.TensorProto data types. `problem` says why inference
    stopped, where the graph contradicts itself.
    """

    shapes: dict[str, Shape]
    types: dict[str, int]
    problem: str = ""
    constants: dict[str, NDArray] = field(default_factory=dict)


def concrete_shapes(
    skeleton: Skeleton, sizes: Mapping[str, Shape], *, all_constants: bool = False
) -> Shapes:
    """Infer all shapes with the inputs at `sizes`, as {'input': (1, 3, 384, 384)}.

    ONNX's own inference follows simple shape arithmetic only; what stands
    behind a division or a range becomes known by folding such nodes into
    constants and inferring again, until nothing new is learned; without
    `all_constants` only until every shape is known.
    """
    proto = onnx.ModelProto()
    proto.CopyFrom(skeleton.proto)
    _fix_inputs(proto.graph, sizes)
    constants = _readable(proto.graph)
    while True:
        try:
            inferred = onnx.shape_inference.infer_shapes(proto, data_prop=True)
        except (onnx.shape_inference.InferenceError, ValueError) as error:
            return Shapes({}, {}, f"shapes cannot be inferred: {first_line(error)}")
        found = _collect(inferred.graph, constants)
        names = (name for node in proto.graph.node for name in node.output if name)
        if not all_constants and all(name in found.shapes for name in names):
            return found
        folded = _fold(proto, found.shapes, constants)
        if not folded:
            return found
        _replace(proto.graph, {name: constants[name] for name in folded})


def shape_value(node: onnx.NodeProto, shape: Shape) -> NDArray:
    """What a Shape node answers for an input of `shape`."""
    ends = {attribute.name: attribute.i for attribute in node.attribute}
    return np.array(shape[ends.get("start", 0) : ends.get("end", len(shape))], dtype=np.int64)


def _fix_inputs(graph: onnx.GraphProto, sizes: Mapping[str, Shape]) -> None:
    """Write `sizes` into the inputs; in stated shapes, symbols of inputs get their values and
    what is computed from them is taken back."""
    values: dict[str, int] = {}
    for value in graph.input:
        if value.name in sizes:
            for dim, size in zip(value.type.tensor_type.shape.dim, sizes[value.name], strict=True):
                if dim.HasField("dim_param"):
                    values[dim.dim_param] = size
                dim.dim_value = size
    for value in (*graph.output, *graph.value_info):
        for dim in value.type.tensor_type.shape.dim:
            if dim.HasField("dim_param"):
                size = values.get(dim.dim_param)
                dim.Clear()
                if size is not None:
                    dim.dim_value = size


def _readable(graph: onnx.GraphProto) -> dict[str, NDArray]:
    """The small constants; those of a broken file that hold no array are left out."""
    found = {}
    for tensor in graph.initializer:
        with suppress(LookupError, TypeError, ValueError):
            found[tensor.name] = numpy_helper.to_array(tensor)
    return found


def _collect(graph: onnx.GraphProto, constants: dict[str, NDArray]) -> Shapes:
    shapes: dict[str, Shape] = {name: array.shape for name, array in constants.items()}
    types = {tensor.name: tensor.data_type for tensor in graph.initializer}
    for value in (*graph.input, *graph.value_info, *graph.output):
        tensor = value.type.tensor_type
        types.setdefault(value.name, tensor.elem_type)
        if tensor.HasField("shape") and all(dim.HasField("dim_value") for dim in tensor.shape.dim):
            shapes.setdefault(value.name, tuple(dim.dim_value for dim in tensor.shape.dim))
    return Shapes(shapes, types, constants=constants)


def _fold(
    proto: onnx.ModelProto, shapes: dict[str, Shape], constants: dict[str, NDArray]
) -> set[str]:
    """Evaluate shape arithmetic whose inputs are known, into `constants`; answer the names."""
    outputs = {value.name for value in proto.graph.output}
    folded: set[str] = set()
    for node in proto.graph.node:
        if len(node.output) != 1 or node.output[0] in outputs:
            continue
        value = _value(node, proto, shapes, constants)
        if value is not None:
            constants[node.output[0]] = value
            folded.add(node.output[0])
    return folded


def _value(
    node: onnx.NodeProto,
    proto: onnx.ModelProto,
    shapes: dict[str, Shape],
    constants: dict[str, NDArray],
) -> NDArray | None:
    if node.domain not in ("", "ai.onnx"):
        return None
    if node.op_type == "Shape":
        shape = shapes.get(node.input[0]) if node.input else None
        return None if shape is None else shape_value(node, shape)
    # A known, small result first: a hostile file may ask for a range of a billion.
    size = shapes.get(node.output[0])
    if size is None or np.prod(size, dtype=np.float64) > _FOLDED_ELEMENTS:
        return None
    if node.op_type not in _SHAPE_ARITHMETIC:
        return None
    names = [name for name in node.input if name]
    if any(name not in constants for name in names):
        return None
    return evaluate([node], proto, {name: constants[name] for name in names}, node.output[0])


def evaluate(
    nodes: list[onnx.NodeProto],
    proto: onnx.ModelProto,
    given: Mapping[str, NDArray],
    output: str,
) -> NDArray | None:
    """Run `nodes` on ONNX's reference evaluator; None where it cannot."""
    graph = onnx.helper.make_graph(
        nodes,
        "constants",
        [],
        [onnx.ValueInfoProto(name=output)],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in given.items()],
    )
    model = onnx.helper.make_model(graph, opset_imports=list(proto.opset_import))
    try:
        with np.errstate(all="ignore"):
            (value,) = ReferenceEvaluator(model).run(None, {})
    except UNEVALUABLE:
        return None
    return np.asarray(value)


def _replace(graph: onnx.GraphProto, folded: dict[str, NDArray]) -> None:
    """Put constants in the place of folded nodes, for the next inference."""
    kept = [node for node in graph.node if not folded.keys() & set(node.output)]
    del graph.node[:]
    graph.node.extend(kept)
    graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in folded.items())
