"""Typed graphs from float32 ones, judged through the emulation before they are written."""

from __future__ import annotations

import hashlib
from pathlib import Path

import onnx_ir as ir
from numpy.typing import NDArray

from vitdeploy.artifacts.onnx_model import (
    Forecast,
    ModelDescription,
    OnnxModel,
    Output,
    Precision,
    recipe_digest,
    stem_of,
    with_description,
)
from vitdeploy.errors import InputError
from vitdeploy.export import forecast
from vitdeploy.export.forecast import tolerance_of
from vitdeploy.export.half_plan import name_nodes
from vitdeploy.export.half_search import HalfSearch, Typed
from vitdeploy.export.passes.activation_quantizers import without_activation_quantizers
from vitdeploy.export.samples import as_bytes, sample_inputs
from vitdeploy.graph import files
from vitdeploy.graph.half import BF16, FP16, HalfName
from vitdeploy.images import ImageSet
from vitdeploy.progress import SILENT, Progress

_HALF_WORDS: dict[Precision, str] = {
    "fp16": "float16",
    "int8-fp16": "float16",
    "fp8-fp16": "float16",
    "bf16": "bfloat16",
}

_TYPED: dict[tuple[Precision, HalfName], Precision] = {
    ("fp32", "fp16"): "fp16",
    ("fp32", "bf16"): "bf16",
    ("int8-fp32", "fp16"): "int8-fp16",
    ("fp8-fp32", "fp16"): "fp8-fp16",
}


def to_half(
    model: OnnxModel,
    folder: Path,
    *,
    precision: HalfName = "fp16",
    images: ImageSet | None = None,
    progress: Progress = SILENT,
) -> OnnxModel:
    """Write the typed graph: fp32 to fp16 or bf16, int8-fp32 to int8-fp16.

    The graph is judged on `images` (eight of them; without any, on seeded
    smooth noise): nodes whose values overflow, or whose rounding loses the
    prediction, stay in float32, until the fused emulation answers as the
    float32 graph does. Which and why stands in the file, with the forecast.
    Which, and why, of an INT8 graph is found with its activations in float;
    its forecast, and that of the worst case, are only said where they do not
    hold.

    Raises InputError where the graph is typed already or cannot be, ExportError
    where half of it would have to stay in float32.
    """
    description = model.description
    typed_precision = _typed_precision(model, precision)
    inputs, real = _inputs(description, images)
    with progress.task(f"judging {typed_precision}", 2) as task:
        search, typed = _searched(files.load(model), typed_precision, description.output, inputs)
        task.advance()
        worst = search.compared(search.answers(typed.graph, "worst"))
        task.advance()
    for what, found in (
        ("forecast", typed.fused),
        ("worst case (every operator rounds, products add up in half precision)", worst),
    ):
        if not search.holds(found):
            progress.note(
                f"{typed_precision}, {what}: {forecast.in_words(found)}; "
                "compare the engine with the source"
            )
    kept = hashlib.sha256(repr(sorted(typed.kept)).encode()).hexdigest()[:8]
    changed = with_description(
        model,
        precision=typed_precision,
        passes=(*description.passes, f"to_half_types[{precision}, keep={kept}]"),
        kept_float32=typed.kept,
        forecast=Forecast(len(inputs), real, typed.fused, worst),
    )
    path = folder / f"{stem_of(changed, recipe_digest(changed))}.onnx"
    return files.save(typed.graph, changed, path)


def _searched(
    graph: ir.Model, precision: Precision, output: Output, inputs: NDArray
) -> tuple[HalfSearch, Typed]:
    """The typed graph, and the search that compares it with the float32 one."""
    name_nodes(graph.graph)
    half = BF16 if precision == "bf16" else FP16
    classes = output in ("logits", "probabilities")
    if precision not in ("int8-fp16", "fp8-fp16"):
        search = HalfSearch(graph, half, tolerance_of(precision), inputs, classes=classes)
        return search, search.typed()
    # Quantizers turn the smallest rounding into a whole step or nothing, which would blame
    # half precision for what INT8 costs: so what has to stay is found without them.
    smooth = HalfSearch(
        without_activation_quantizers(graph.clone()),
        half,
        tolerance_of("fp16"),
        inputs,
        classes=classes,
    )
    kept = smooth.typed().kept
    search = HalfSearch(graph, half, tolerance_of(precision), inputs, classes=classes)
    return search, search.keeping(kept)


def _typed_precision(model: OnnxModel, half: HalfName) -> Precision:
    found = model.description.precision
    typed = _TYPED.get((found, half))
    if typed is not None:
        return typed
    if found in ("int8-fp32", "fp8-fp32"):
        quantized = "INT8" if found.startswith("int8") else "FP8"
        raise InputError(
            f"{quantized} with {half} is not supported",
            hint=f"take fp16 for the rest of an {quantized} graph",
        )
    raise InputError(
        f"{model.path.name} computes in {_HALF_WORDS[found]} already", hint="give the fp32 graph"
    )


def _inputs(description: ModelDescription, images: ImageSet | None) -> tuple[NDArray, bool]:
    inputs, real = sample_inputs(description.source, description.resolution, images)
    if description.input_format == "uint8-nhwc":
        return as_bytes(inputs, description.source.preprocessing), real
    return inputs, real
