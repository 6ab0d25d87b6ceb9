"""A graph without its weights: small enough to infer shapes on and to walk, whatever the model."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import onnx
import onnx.inliner
from numpy.typing import NDArray
from onnx import numpy_helper
from onnx.checker import ValidationError

from vitdeploy.errors import InputError, first_line

_KEPT_ELEMENTS = 1024
"""Constants up to this size stay: shape arithmetic reads them."""

_UNREADABLE = (LookupError, OSError, TypeError, ValueError, ValidationError)
"""What onnx raises on constants of no known type, cut short, or in files it may not read."""


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
        try:
            return _array(self.weights[name], self.folder)
        except _UNREADABLE as error:
            raise InputError(
                f"the values of {name} cannot be read: {first_line(error)}",
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
    whole = [_add_constant(graph, t, folder, t.name) for t in proto.graph.initializer]
    for node in proto.graph.node:
        tensor = _constant_tensor(node)
        if tensor is None:
            graph.node.add().CopyFrom(node)
        else:
            weights[node.output[0]] = tensor
            whole.append(_add_constant(graph, tensor, folder, node.output[0]))
    _add_stated_shapes(graph, proto, everywhere=not all(whole))
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


def _array(tensor: onnx.TensorProto, folder: Path) -> NDArray:
    # Older releases of onnx write what they read into the tensor, which is the caller's.
    copied = onnx.TensorProto()
    copied.CopyFrom(tensor)
    return numpy_helper.to_array(copied, base_dir=str(folder))


def _add_constant(
    graph: onnx.GraphProto, tensor: onnx.TensorProto, folder: Path, name: str
) -> bool:
    """Add a small constant whole, a large one as a typed input.

    Answers whether that was possible: a small one in a missing file has no values.
    """
    small = math.prod(tensor.dims) <= _KEPT_ELEMENTS
    if small and tensor.data_location != onnx.TensorProto.EXTERNAL:
        kept = graph.initializer.add()
        kept.CopyFrom(tensor)
        kept.name = name
        return True
    if small:
        with suppress(*_UNREADABLE):
            graph.initializer.append(numpy_helper.from_array(_array(tensor, folder), name))
            return True
    graph.input.append(
        onnx.helper.make_tensor_value_info(name, tensor.data_type, list(tensor.dims))
    )
    return not small


def _add_stated_shapes(graph: onnx.GraphProto, proto: onnx.ModelProto, *, everywhere: bool) -> None:
    """Keep the file's own shapes where inference finds none: behind operators of other domains,
    and `everywhere` where the constants of shape arithmetic are missing."""
    stated = {
        name
        for node in proto.graph.node
        if everywhere or node.domain not in ("", "ai.onnx")
        for name in node.output
    }
    for value in proto.graph.value_info:
        if value.name in stated:
            graph.value_info.add().CopyFrom(value)
