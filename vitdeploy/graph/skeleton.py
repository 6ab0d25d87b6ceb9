"""A graph without its weights: small enough to infer shapes on and to walk, whatever the model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import onnx
import onnx.inliner
from numpy.typing import NDArray
from onnx import numpy_helper

from vitdeploy.errors import InputError

_KEPT_ELEMENTS = 1024
"""Constants up to this size stay: shape arithmetic reads them."""


@dataclass(frozen=True)
class Skeleton:
    """The nodes of a graph, with local functions inlined.

    `proto` holds small constants only. `weights` are all constants by name,
    those of Constant nodes among them; the large ones are inputs of `proto`
    with their type and shape. `folder` is where external data lies.
    """

    proto: onnx.ModelProto
    weights: dict[str, onnx.TensorProto]
    folder: Path

    @property
    def inputs(self) -> list[onnx.ValueInfoProto]:
        """What a caller feeds; older files list their weights as inputs too."""
        return [value for value in self.proto.graph.input if value.name not in self.weights]

    def array(self, name: str) -> NDArray:
        """The values of one constant.

        Raises InputError where they lie in another file that is missing, too
        short, or outside the graph's folder.
        """
        tensor = self.weights[name]
        try:
            return numpy_helper.to_array(tensor, base_dir=str(self.folder))
        except (OSError, ValueError, onnx.checker.ValidationError) as error:
            raise InputError(
                f"the values of {name} cannot be read: {str(error).splitlines()[0]}",
                hint="copy the graph together with its external data, into one folder",
            ) from error


def skeleton_of(proto: onnx.ModelProto, folder: Path) -> Skeleton:
    """Take the weights out of `proto`, which stays as it is."""
    light = onnx.ModelProto(ir_version=proto.ir_version)
    light.opset_import.extend(proto.opset_import)
    light.functions.extend(proto.functions)
    graph = light.graph
    graph.name = proto.graph.name or "graph"
    weights = {tensor.name: tensor for tensor in proto.graph.initializer}
    for value in proto.graph.input:
        if value.name not in weights:
            graph.input.add().CopyFrom(value)
    graph.output.extend(proto.graph.output)
    for tensor in proto.graph.initializer:
        _add_constant(graph, tensor)
    for node in proto.graph.node:
        tensor = _constant_tensor(node)
        if tensor is None:
            graph.node.add().CopyFrom(node)
        else:
            weights[node.output[0]] = tensor
            _add_constant(graph, tensor, name=node.output[0])
    _add_foreign_shapes(graph, proto)
    if light.functions:
        light = onnx.inliner.inline_local_functions(light)
    return Skeleton(light, weights, folder)


def _constant_tensor(node: onnx.NodeProto) -> onnx.TensorProto | None:
    """The tensor of a Constant node; None for other nodes and its list and scalar forms."""
    if node.op_type != "Constant" or node.domain not in ("", "ai.onnx"):
        return None
    return next((a.t for a in node.attribute if a.name == "value"), None)


def _add_constant(graph: onnx.GraphProto, tensor: onnx.TensorProto, name: str = "") -> None:
    elements = 1
    for side in tensor.dims:
        elements *= side
    external = tensor.data_location == onnx.TensorProto.EXTERNAL
    if elements <= _KEPT_ELEMENTS and not external:
        kept = graph.initializer.add()
        kept.CopyFrom(tensor)
        kept.name = name or tensor.name
    else:
        graph.input.append(
            onnx.helper.make_tensor_value_info(
                name or tensor.name, tensor.data_type, list(tensor.dims)
            )
        )


def _add_foreign_shapes(graph: onnx.GraphProto, proto: onnx.ModelProto) -> None:
    """Keep the stated shapes of outputs that only another runtime's operators explain."""
    foreign = {
        name
        for node in proto.graph.node
        if node.domain not in ("", "ai.onnx")
        for name in node.output
    }
    for value in proto.graph.value_info:
        if value.name in foreign:
            graph.value_info.add().CopyFrom(value)
