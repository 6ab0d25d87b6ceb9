"""Graphs to and from disk, with their description inside."""

from __future__ import annotations

from pathlib import Path

import onnx
import onnx_ir as ir

from vitdeploy.artifacts.files import atomic_path, file_digest, to_json
from vitdeploy.artifacts.onnx_model import (
    METADATA_KEY,
    ModelDescription,
    OnnxModel,
    write_sidecar,
)


def save(model: ir.Model, description: ModelDescription, path: Path) -> OnnxModel:
    """Write graph, description and sidecar, each whole or not at all."""
    model.metadata_props[METADATA_KEY] = to_json(description)
    with atomic_path(path) as temporary:
        ir.save(model, temporary)
        digest = file_digest(temporary)
    saved = OnnxModel(path, digest, description)
    write_sidecar(saved)
    return saved


def load(model: OnnxModel) -> ir.Model:
    """The graph as onnx_ir holds it, weights in memory, so that the file may be replaced."""
    return ir.from_proto(onnx.load(str(model.path)))


def serialize(model: ir.Model) -> bytes:
    """The graph as bytes, for a runtime."""
    return ir.to_proto(model).SerializeToString()


def unused_initializers_removed(model: ir.Model) -> ir.Model:
    """Drop initializers that no node reads."""
    for name in [
        name
        for name, value in model.graph.initializers.items()
        if not value.uses() and value not in model.graph.outputs
    ]:
        del model.graph.initializers[name]
    return model
