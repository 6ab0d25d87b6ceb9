"""A graph without its weights: small enough to infer shapes on and to walk, whatever the model."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import onnx
import onnx.inliner
from numpy.typing import NDArray
from onnx import numpy_helper
from onnx.checker import ValidationError

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
        except (LookupError, OSError, TypeError, ValueError, ValidationError) as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise InputError(
                f"the values of {name} cannot be read: {reason}",
                hint="copy the graph together with its external data, into one folder",
            ) from error


def skeleton_of(proto: onnx.ModelProto, folder: Path) -> Skeleton:
    """Take the weights out of `proto`, which stays as it is.

    Raises InputError for a broken file: names that are not text, constants
    that hold less than their shape says.
    """
    try:
        _require_text(proto)
    except UnicodeDecodeError as error:
        raise _not_text() from error
    for tensor in proto.graph.initializer:
        _require_whole(tensor)
    light = onnx.ModelProto(ir_version=proto.ir_version)
    light.opset_import.extend(proto.opset_import)
    light.functions.extend(proto.functions)
    graph = light.graph
    graph.name = "skeleton"
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


def _require_text(proto: onnx.ModelProto) -> None:
    """Protocol buffers refuse what is no UTF-8, or hand it over as bytes, by their build."""
    graph = proto.graph
    ports = (*graph.input, *graph.output, *graph.value_info)
    names = [item.name for item in (*ports, *graph.node, *graph.initializer)]
    names += [proto.producer_name, proto.producer_version]
    names += [entry.domain for entry in proto.opset_import]
    names += [dim.dim_param for port in ports for dim in port.type.tensor_type.shape.dim]
    for node in graph.node:
        names += [node.op_type, node.domain, *node.input, *node.output]
    for tensor in graph.initializer:
        names += [entry.value for entry in tensor.external_data]
    if not all(isinstance(name, str) for name in names):
        raise _not_text()


def _not_text() -> InputError:
    return InputError(
        "the graph holds names that are not text", hint="copy the file again: it is damaged"
    )


def _require_whole(tensor: onnx.TensorProto) -> None:
    """Inference would reserve whatever a shape claims; four values to a byte are the densest."""
    claimed = math.prod(tensor.dims)
    stored_elsewhere = tensor.data_location == onnx.TensorProto.EXTERNAL
    if min(tensor.dims, default=0) < 0 or (
        claimed > 4 * tensor.ByteSize() and not stored_elsewhere
    ):
        raise InputError(
            f"constant {tensor.name} holds less than its shape {tuple(tensor.dims)} says",
            hint="copy the file again: it is damaged",
        )


def _constant_tensor(node: onnx.NodeProto) -> onnx.TensorProto | None:
    """The tensor of a Constant node; None for other nodes and its list and scalar forms."""
    if node.op_type != "Constant" or node.domain not in ("", "ai.onnx"):
        return None
    return next((a.t for a in node.attribute if a.name == "value"), None)


def _add_constant(graph: onnx.GraphProto, tensor: onnx.TensorProto, name: str = "") -> None:
    elements = math.prod(tensor.dims)
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
