"""Export: a source model becomes a verified graph file at the resolution asked for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import onnx_ir as ir
import torch

from vitdeploy import __version__
from vitdeploy.artifacts.onnx_model import (
    ModelDescription,
    OnnxModel,
    ResolutionRange,
    Verification,
    recipe_digest,
    stem_of,
)
from vitdeploy.errors import InputError
from vitdeploy.export import samples
from vitdeploy.export.dynamic.sizes import best_size, range_of
from vitdeploy.export.dynamic.verify import verify_dynamic
from vitdeploy.export.options import ExportOptions as ExportOptions
from vitdeploy.export.passes.fold_constants import fold_constants
from vitdeploy.export.passes.module_names import name_nodes_by_module
from vitdeploy.export.passes.scale_first import scale_queries_first
from vitdeploy.export.passes.uint8_input import with_uint8_input
from vitdeploy.export.precision import to_half
from vitdeploy.export.trace import INPUT_NAME, trace, trace_dynamic
from vitdeploy.export.verify import sample_images, verify
from vitdeploy.graph import files
from vitdeploy.images import ImageSet
from vitdeploy.models.source import SourceModel
from vitdeploy.progress import SILENT, Progress

_PASSES = (name_nodes_by_module, fold_constants, scale_queries_first)
"""In this order: the later ones find nodes and constants as the earlier ones left them."""

_IN_GRAPH = "computed in the graph at every size, by the source library's method"


def export(
    source: SourceModel,
    options: ExportOptions,
    folder: Path,
    *,
    images: ImageSet | None = None,
    progress: Progress = SILENT,
) -> OnnxModel:
    """Write '<model>_<H>x<W>_<precision>-<digest>.onnx' into `folder`, proved equal to PyTorch.

    The float32 graph is written in any case: a half-precision one is made
    from it, and judged against it. Nothing is written unless the graph passes
    verification. Raises InputError for an impossible resolution, ExportError
    where tracing or proof fails.
    """
    if options.output is not None:
        source = replace(source, output=options.output)
    _require_answerable(source)
    with progress.task("exporting", 3) as task:
        sized, sizes = _sized(source, options)
        model = _traced(sized, sizes, options.opset)
        task.advance()
        passes = [one.__name__ for one in _PASSES]
        for one in _PASSES:
            model = one(model)
        as_bytes = options.input_format == "uint8-nhwc"
        if as_bytes:
            model = with_uint8_input(model, sized.description.preprocessing)
            passes.append("with_uint8_input")
        verification = _verified(model, sized, sizes, images, as_bytes=as_bytes)
        task.advance()
        description = ModelDescription(
            source=sized.description,
            resolution=sized.resolution,
            precision="fp32",
            opset=options.opset,
            input_name=INPUT_NAME,
            output_name=sized.output,
            passes=tuple(passes),
            verification=verification,
            positions=sized.positions if sizes is None else _IN_GRAPH,
            resolution_range=sizes,
            input_format=options.input_format,
            output=sized.output,
            producer=f"vitdeploy {__version__}, torch {torch.__version__}",
        )
        path = folder / f"{stem_of(description, recipe_digest(description))}.onnx"
        saved = files.save(model, description, path, external_data=options.external_data)
        task.advance()
    if options.precision == "fp32":
        return saved
    return to_half(saved, folder, precision=options.precision, images=images, progress=progress)


def _require_answerable(source: SourceModel) -> None:
    if source.output == "probabilities" and source.description.task not in (
        "classify",
        "multilabel",
    ):
        raise InputError(
            f"{source.description.name} has no classes to give probabilities of",
            hint="take --output logits, features or tokens",
        )
    if source.output == "logits" and source.description.task == "features":
        raise InputError(
            f"{source.description.name} was opened as a feature tower and has no logits",
            hint="take --output features or tokens, or leave --task features out",
        )


def _sized(
    source: SourceModel, options: ExportOptions
) -> tuple[SourceModel, ResolutionRange | None]:
    if options.dynamic_resolution is None:
        return source.at(options.resolution or source.resolution), None
    sizes = range_of(source, *options.dynamic_resolution)
    return source.at(best_size(source, sizes)), sizes


def _traced(source: SourceModel, sizes: ResolutionRange | None, opset: int) -> ir.Model:
    if sizes is None:
        return trace(source, opset=opset)
    return trace_dynamic(source, sizes, opset=opset)


def _verified(
    model: ir.Model,
    source: SourceModel,
    sizes: ResolutionRange | None,
    images: ImageSet | None,
    *,
    as_bytes: bool,
) -> Verification:
    graph = files.runnable(model)
    if sizes is not None:
        return verify_dynamic(graph, source, sizes, images, as_bytes=as_bytes)
    inputs, real = sample_images(source, images)
    if as_bytes:
        inputs = samples.as_bytes(inputs, source.description.preprocessing)
    return verify(graph, source, inputs, real_images=real)
