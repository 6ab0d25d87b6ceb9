"""A graph at the precision asked for: INT8 or FP8, half precision, or both."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from vitdeploy.artifacts.onnx_model import OnnxModel
from vitdeploy.calibration.cache import StatisticsCache
from vitdeploy.calibration.grids import GridName
from vitdeploy.calibration.image_set import CalibrationSet, choose
from vitdeploy.calibration.quantize import Gates, QuantizationOptions, quantize
from vitdeploy.errors import InputError
from vitdeploy.export.precision import to_half
from vitdeploy.images import ImageSet
from vitdeploy.progress import SILENT, Progress

BuildPrecision = Literal["fp32", "fp16", "bf16", "int8", "fp8"]


@dataclass(frozen=True, kw_only=True)
class PrecisionRequest:
    """INT8 and FP8 need `calibration` images: a set drawn and examined already, or images to draw
    `calibration_count` from. `half` computes the rest in float16 (GPUs only).
    `gates` are what a quantized graph must hold to be written; `cache_folder`
    keeps what was gathered, so that the next graph of the same needs no pass.
    `precision` decides what numbers are written, whatever `quantization` holds.

    Half precision is judged on `images`, else on the calibration images, else
    on seeded noise; the file says which.
    """

    precision: BuildPrecision = "fp32"
    half: bool = False
    calibration: ImageSet | CalibrationSet | None = None
    images: ImageSet | None = None
    calibration_count: int = 512
    seed: int = 0
    quantization: QuantizationOptions | None = None
    gates: Gates = field(default_factory=Gates)
    cache_folder: Path | None = None

    @property
    def quantizes(self) -> bool:
        return self.precision in ("int8", "fp8")


def with_precision(
    model: OnnxModel, request: PrecisionRequest, folder: Path, *, progress: Progress = SILENT
) -> OnnxModel:
    """The graph at the precision asked for; a graph that has it already is returned as it is.

    Raises InputError for INT8 and FP8 without calibration images (none are made up),
    ExportError where half precision would lose the model's answers,
    GateFailedError and InconclusiveError as `quantize` does.
    """
    if request.quantizes and not model.description.precision.startswith(request.precision):
        if request.calibration is None:
            raise InputError(
                f"{request.precision.upper()} needs calibration images",
                hint="give --calib FOLDER with 128 or more training images; none are made up",
            )
        chosen = request.calibration
        if isinstance(chosen, ImageSet):
            chosen = choose(
                chosen,
                count=request.calibration_count,
                seed=request.seed,
                source=model.description.source,
                progress=progress,
            )
        cache = request.cache_folder
        numbers: GridName = "int8" if request.precision == "int8" else "fp8"
        model = quantize(
            model,
            chosen,
            folder,
            replace(request.quantization or QuantizationOptions(), numbers=numbers),
            gates=request.gates,
            cache=None if cache is None else StatisticsCache(cache),
            progress=progress,
        )
    half = "bf16" if request.precision == "bf16" else "fp16"
    wanted = request.half or request.precision == half
    if wanted and not model.description.precision.endswith(half):
        given = request.calibration
        images = request.images or (given.images if isinstance(given, CalibrationSet) else given)
        model = to_half(model, folder, precision=half, images=images, progress=progress)
    return model
