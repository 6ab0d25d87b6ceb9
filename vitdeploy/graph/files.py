"""Graphs to and from disk, with their description inside."""

from __future__ import annotations

from pathlib import Path

import onnx
import onnx_ir as ir
from google.protobuf.message import EncodeError

from vitdeploy.artifacts.files import atomic_path, file_digest, to_json
from vitdeploy.artifacts.onnx_model import (
    METADATA_KEY,
    ModelDescription,
    OnnxModel,
    write_sidecar,
)
from vitdeploy.errors import ExportError

LARGEST_FILE_BYTES = 2**31 - 1
"""Protocol buffers hold no more; a graph of this size needs its weights in a second file."""


def save(model: ir.Model, description: ModelDescription, path: Path) -> OnnxModel:
    """Write graph, description and sidecar, each whole or not at all.

    Raises ExportError where the graph does not fit into one file.
    """
    model.metadata_props[METADATA_KEY] = to_json(description)
    with atomic_path(path) as temporary:
        temporary.write_bytes(serialize(model))
        digest = file_digest(temporary)
    saved = OnnxModel(path, digest, description)
    write_sidecar(saved)
    return saved


def load(model: OnnxModel) -> ir.Model:
    """The graph as onnx_ir holds it, weights in memory, so that the file may be replaced."""
    return ir.from_proto(onnx.load(str(model.path)))


def serialize(model: ir.Model) -> bytes:
    """The graph as bytes, for a runtime. Raises ExportError above `LARGEST_FILE_BYTES`."""
    tensors = [value.const_value for value in model.graph.initializers.values()]
    weights = sum(tensor.nbytes for tensor in tensors if tensor is not None)
    if weights > LARGEST_FILE_BYTES:
        raise _too_large(weights)
    try:
        return ir.to_proto(model).SerializeToString()
    except EncodeError as error:
        raise _too_large(weights) from error


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
        hint="take a smaller model; weights in a second file are not supported yet",
    )
