"""Graphs to and from disk, with their description inside."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx_ir as ir
from google.protobuf.message import DecodeError, EncodeError
from numpy.typing import NDArray
from onnx.checker import ValidationError

from vitdeploy.artifacts.files import atomic_path, reading, to_json
from vitdeploy.artifacts.onnx_model import (
    METADATA_KEY,
    ModelDescription,
    OnnxModel,
    external_data_path,
    graph_digest,
    write_sidecar,
)
from vitdeploy.errors import ExportError, InputError

LARGEST_FILE_BYTES = 2**31 - 1
"""Protocol buffers hold no more; a graph of this size needs its weights in a second file."""

_LARGE_WEIGHT = 1024
_MALFORMED = (
    ir.serde.SerdeError, ValidationError, DecodeError, ValueError, LookupError, TypeError,
    AttributeError, RuntimeError,
)  # fmt: skip
"""What onnx and onnx_ir raise for graphs that parse and still make no sense."""
_NUMPY_TYPES = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.INT8, ir.DataType.UINT8)
"""Types that ONNX Runtime takes from numpy; other weights stay in the proto."""


@dataclass(frozen=True)
class RunnableGraph:
    """A graph that a runtime loads from memory, however large: large weights stand beside it."""

    proto: bytes
    weights: Mapping[str, NDArray]


def save(
    model: ir.Model,
    description: ModelDescription,
    path: Path,
    *,
    external_data: bool | None = None,
) -> OnnxModel:
    """Write graph, description and sidecar, each whole or not at all.

    Weights go into '<name>.onnx.data' beside the graph where one file cannot
    hold them (None), always (True) or never (False). The two move together:
    the graph names the second file without a folder.

    Raises ExportError where the graph does not fit into one file and may not
    have a second.
    """
    model.metadata_props[METADATA_KEY] = to_json(description)
    large = weights_bytes(model) > LARGEST_FILE_BYTES
    if external_data or (large and external_data is None):
        _save_with_external_data(model, path)
        locations = [external_data_path(path).name]
    else:
        with atomic_path(path) as temporary:
            temporary.write_bytes(serialize(model))
        with suppress(FileNotFoundError):
            external_data_path(path).unlink()
        locations = []
    saved = OnnxModel(path, graph_digest(path, locations), description)
    write_sidecar(saved)
    return saved


def _save_with_external_data(model: ir.Model, path: Path) -> None:
    data = external_data_path(path)
    tensors = {name: value.const_value for name, value in model.graph.initializers.items()}
    with atomic_path(path) as temporary, atomic_path(data) as temporary_data:
        try:
            ir.external_data.unload_from_model(
                model,
                path.parent,
                temporary_data.name,
                size_threshold_bytes=_LARGE_WEIGHT,  # runtimes read shapes from the graph
            )
            for value in model.graph.initializers.values():
                if isinstance(value.const_value, ir.ExternalTensor):
                    value.const_value = _at(value.const_value, data.name)
            temporary.write_bytes(ir.to_proto(model).SerializeToString())
        finally:
            for name, tensor in tensors.items():
                model.graph.initializers[name].const_value = tensor


def load(model: OnnxModel | Path) -> ir.Model:
    """The graph as onnx_ir holds it, weights in memory, so that the files may be replaced.

    Raises InputError for a graph that contradicts itself, and for weights that
    are missing, cut short or outside the graph's folder.
    """
    path = model if isinstance(model, Path) else model.path
    try:
        with reading(path, "ONNX model"):
            graph = ir.load(path)
            for value in graph.graph.initializers.values():
                if value.const_value is not None:
                    value.const_value = _in_memory(value.const_value)
            for value in graph.graph.outputs:
                if not (value.producer() or value.is_graph_input() or value.is_initializer()):
                    raise ValueError(f"nothing computes its output {value.name}")
    except _MALFORMED as error:
        raise InputError(
            f"{path} cannot be used as a graph: {_root_cause(error)}",
            hint="export it again, or copy it again with all that lies beside it",
        ) from error
    return graph


def _in_memory(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
    values = tensor.numpy()  # ValueError where the bytes are not those of the shape
    if not isinstance(tensor, ir.ExternalTensor):
        return tensor
    return ir.Tensor(np.array(values), dtype=tensor.dtype, name=tensor.name)


def _root_cause(error: BaseException) -> str:
    """The first cause in words: what it came of is wrapped in the text of whole nodes."""
    while error.__cause__ is not None:
        error = error.__cause__
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def weights_bytes(model: ir.Model) -> int:
    """Bytes of all initializers."""
    tensors = [value.const_value for value in model.graph.initializers.values()]
    return sum(tensor.nbytes for tensor in tensors if tensor is not None)


def serialize(model: ir.Model) -> bytes:
    """The graph as one file's bytes. Raises ExportError above `LARGEST_FILE_BYTES`."""
    weights = weights_bytes(model)
    if weights > LARGEST_FILE_BYTES:
        raise _too_large(weights)
    try:
        return ir.to_proto(model).SerializeToString()
    except EncodeError as error:
        raise _too_large(weights) from error


def runnable(model: ir.Model) -> RunnableGraph:
    """The graph for a runtime in this process; large weights are shared, not copied."""
    weights: dict[str, NDArray] = {}
    held = {name: value.const_value for name, value in model.graph.initializers.items()}
    try:
        for name, tensor in held.items():
            if tensor is None or tensor.nbytes < _LARGE_WEIGHT or tensor.dtype not in _NUMPY_TYPES:
                continue
            weights[name] = np.ascontiguousarray(tensor.numpy())
            model.graph.initializers[name].const_value = ir.ExternalTensor(
                "beside",
                0,
                tensor.nbytes,
                tensor.dtype,
                shape=ir.Shape(weights[name].shape),
                name=name,
            )
        return RunnableGraph(ir.to_proto(model).SerializeToString(), weights)
    finally:
        for name, tensor in held.items():
            model.graph.initializers[name].const_value = tensor


def _at(tensor: ir.ExternalTensor, location: str) -> ir.ExternalTensor:
    return ir.ExternalTensor(
        location,
        tensor.offset,
        tensor.length,
        tensor.dtype,
        shape=tensor.shape,
        name=tensor.name or "",
    )


def unused_initializers_removed(model: ir.Model) -> ir.Model:
    """Drop initializers that no node reads."""
    for name in [
        name
        for name, value in model.graph.initializers.items()
        if not value.uses() and value not in model.graph.outputs
    ]:
        del model.graph.initializers[name]
    return model


def _too_large(weights_bytes: int) -> ExportError:
    return ExportError(
        f"the graph holds {weights_bytes / 1e9:.1f} GB of weights, "
        "and an ONNX file holds at most 2.1 GB",
        hint="store the weights beside the graph: --external-data",
    )
