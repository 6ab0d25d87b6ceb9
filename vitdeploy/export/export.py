"""Export: a source model becomes a verified graph file at the resolution asked for."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import onnx_ir as ir
import torch

from vitdeploy import __version__
from vitdeploy.artifacts.onnx_model import (
    ModelDescription,
    OnnxModel,
    stem_of,
    with_description,
)
from vitdeploy.errors import InputError
from vitdeploy.export.passes.float16 import to_float16
from vitdeploy.export.passes.module_names import name_nodes_by_module
from vitdeploy.export.trace import DEFAULT_OPSET, INPUT_NAME, OUTPUT_NAME, trace
from vitdeploy.export.verify import sample_images, verify
from vitdeploy.graph import files
from vitdeploy.images import ImageSet
from vitdeploy.models.source import SourceModel
from vitdeploy.progress import SILENT, Progress

_HALF_OF = {"fp32": "fp16", "int8-fp32": "int8-fp16"}


@dataclass(frozen=True, kw_only=True)
class ExportOptions:
    """What to export. `resolution` None keeps the model's own."""

    resolution: tuple[int, int] | None = None
    opset: int = DEFAULT_OPSET

    def __post_init__(self) -> None:
        if not 17 <= self.opset <= 23:
            raise InputError(
                f"opset {self.opset} is not supported",
                hint="use 17 to 23; 20 is the default, below it Gelu is written as Erf",
            )


def export(
    source: SourceModel,
    options: ExportOptions,
    folder: Path,
    *,
    images: ImageSet | None = None,
    progress: Progress = SILENT,
) -> OnnxModel:
    """Write '<model>_<H>x<W>_fp32-<digest>.onnx' into `folder`, proved equal to PyTorch.

    Nothing is written unless the graph passes verification. Raises InputError
    for an impossible resolution, ExportError where tracing or proof fails.
    """
    sized = source.at(options.resolution or source.resolution)
    with progress.task("exporting", 3) as task:
        model = name_nodes_by_module(trace(sized, opset=options.opset))
        task.advance()
        inputs, real = sample_images(sized, images)
        verification = verify(files.serialize(model), sized, inputs, real_images=real)
        task.advance()
        description = ModelDescription(
            source=source.description,
            resolution=sized.resolution,
            precision="fp32",
            opset=options.opset,
            input_name=INPUT_NAME,
            output_name=OUTPUT_NAME,
            passes=("name_nodes_by_module",),
            verification=verification,
            producer=f"vitdeploy {__version__}, torch {torch.__version__}",
        )
        path = folder / f"{stem_of(description, recipe_digest(description))}.onnx"
        saved = files.save(model, description, path)
        task.advance()
    return saved


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
    graph: ir.Model = to_float16(files.load(model))
    description = with_description(
        model, precision=precision, passes=(*model.description.passes, "to_float16")
    )
    path = folder / f"{stem_of(description, recipe_digest(description))}.onnx"
    return files.save(graph, description, path)


def recipe_digest(description: ModelDescription) -> str:
    """Digest of all that decides the graph: source, preprocessing, size, precision, parent."""
    parts = (
        description.source.weights_digest,
        description.source.preprocessing.digest,
        description.resolution,
        description.precision,
        description.opset,
        description.passes,
        description.parent_digest,
    )
    return hashlib.sha256(repr(parts).encode()).hexdigest()
