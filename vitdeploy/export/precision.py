"""Typed graphs from float32 ones."""

from __future__ import annotations

from pathlib import Path

from vitdeploy.artifacts.onnx_model import (
    OnnxModel,
    Precision,
    recipe_digest,
    stem_of,
    with_description,
)
from vitdeploy.errors import InputError
from vitdeploy.export.passes.float16 import to_float16
from vitdeploy.graph import files

_HALF_OF: dict[Precision, Precision] = {"fp32": "fp16", "int8-fp32": "int8-fp16"}


def to_half(model: OnnxModel, folder: Path) -> OnnxModel:
    """Write the graph with float16 in place of float32: fp32 to fp16, int8-fp32 to int8-fp16.

    Raises InputError where the rest of the graph is float16 already,
    ExportError where a weight does not fit.
    """
    precision = _HALF_OF.get(model.description.precision)
    if precision is None:
        raise InputError(
            f"{model.path.name} computes in float16 already", hint="give the fp32 graph"
        )
    graph = to_float16(files.load(model))
    description = with_description(
        model, precision=precision, passes=(*model.description.passes, "to_float16")
    )
    path = folder / f"{stem_of(description, recipe_digest(description))}.onnx"
    return files.save(graph, description, path)
