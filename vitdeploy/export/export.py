"""Export: a source model becomes a verified graph file at the resolution asked for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from vitdeploy import __version__
from vitdeploy.artifacts.onnx_model import (
    ModelDescription,
    OnnxModel,
    recipe_digest,
    stem_of,
)
from vitdeploy.errors import InputError
from vitdeploy.export.passes.module_names import name_nodes_by_module
from vitdeploy.export.trace import DEFAULT_OPSET, INPUT_NAME, OUTPUT_NAME, trace
from vitdeploy.export.verify import sample_images, verify
from vitdeploy.graph import files
from vitdeploy.images import ImageSet
from vitdeploy.models.source import SourceModel
from vitdeploy.progress import SILENT, Progress


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
            positions=sized.positions,
            output=sized.output,
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
