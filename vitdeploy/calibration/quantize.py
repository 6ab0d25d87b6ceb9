"""INT8 from a float graph and a calibration set."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from vitdeploy.artifacts.onnx_model import (
    OnnxModel,
    Quantization,
    recipe_digest,
    stem_of,
    with_description,
)
from vitdeploy.calibration.image_set import CalibrationSet
from vitdeploy.calibration.plan import plan
from vitdeploy.calibration.qdq import insert_qdq
from vitdeploy.calibration.ranges import RangeMethod, activation_scale
from vitdeploy.calibration.statistics import collect
from vitdeploy.errors import CalibrationError
from vitdeploy.graph import files
from vitdeploy.progress import SILENT, Progress


@dataclass(frozen=True, kw_only=True)
class QuantizationOptions:
    """How ranges are chosen, and which nodes stay in float."""

    method: RangeMethod = "mse"
    keep: tuple[str, ...] = ()


def quantize(
    model: OnnxModel,
    calibration: CalibrationSet,
    folder: Path,
    options: QuantizationOptions | None = None,
    *,
    progress: Progress = SILENT,
) -> OnnxModel:
    """Write the int8-fp32 graph of an fp32 one: Linear layers in INT8, the rest untouched.

    Raises CalibrationError where the graph is not fp32 or cannot be quantized,
    InputError where a calibration image cannot be read.
    """
    options = options or QuantizationOptions()
    if model.description.precision != "fp32":
        raise CalibrationError(
            f"{model.path.name} is {model.description.precision}; INT8 starts from fp32",
            hint="give the fp32 graph that export wrote",
        )
    graph = files.load(model)
    chosen = plan(graph, keep=options.keep)
    statistics = collect(
        graph, model.description, chosen.activations, calibration, progress=progress
    )
    scales = {name: activation_scale(found, options.method) for name, found in statistics.items()}
    files.unused_initializers_removed(insert_qdq(graph, chosen, scales))
    description = with_description(
        model,
        precision="int8-fp32",
        passes=(
            *model.description.passes,
            f"insert_qdq[{options.method}, {calibration.digest[:16]}, keep={options.keep}]",
        ),
        quantization=Quantization(
            method=options.method,
            images=len(calibration),
            image_digests=calibration.digests,
            quantized=tuple(node.name for node in chosen.linear),
            kept=chosen.kept,
        ),
    )
    path = folder / f"{stem_of(description, recipe_digest(description))}.onnx"
    return files.save(graph, description, path)
