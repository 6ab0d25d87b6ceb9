"""INT8 or FP8 from a float graph and a calibration set."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import onnx_ir as ir

from vitdeploy.artifacts.onnx_model import (
    FallbackStep,
    OnnxModel,
    Precision,
    Quantization,
    recipe_digest,
    stem_of,
    with_description,
)
from vitdeploy.calibration.attention import largest_shapes
from vitdeploy.calibration.cache import StatisticsCache
from vitdeploy.calibration.fallback import find_fallback
from vitdeploy.calibration.gathering import Gathering
from vitdeploy.calibration.grids import FP8, INT8, GridName
from vitdeploy.calibration.guard import require_agreement
from vitdeploy.calibration.image_set import CalibrationSet
from vitdeploy.calibration.plan import Policy, QuantizationPlan, plan
from vitdeploy.calibration.ranges import RangeMethod
from vitdeploy.calibration.tuning import Tuning
from vitdeploy.errors import CalibrationError, InputError
from vitdeploy.export.half_plan import name_nodes
from vitdeploy.graph import files
from vitdeploy.images import ImageSet
from vitdeploy.progress import SILENT, Progress
from vitdeploy.target import CPU, Target

_OLDEST_OPSET_FP8 = 19
_PRECISIONS: dict[GridName, Precision] = {"int8": "int8-fp32", "fp8": "fp8-fp32"}


@dataclass(frozen=True, kw_only=True)
class QuantizationOptions:
    """What is quantized and for whom, how ranges are chosen, what is done against the error.

    `targets` and `runtime` decide whether attention products are quantized
    (see `plan`); `keep` names nodes to leave in float.
    """

    method: RangeMethod = "auto"
    numbers: GridName = "int8"
    keep: tuple[str, ...] = ()
    fold: bool = True
    correct_bias: bool = True
    attention: bool = True
    targets: tuple[Target, ...] = (CPU,)
    runtime: str = ""

    @property
    def policy(self) -> Policy:
        grid = INT8 if self.numbers == "int8" else FP8
        return Policy(grid=grid, keep=self.keep, attention=self.attention)

    def in_words(self) -> str:
        """What of it decides the graph beside the plan, for the file's list of passes."""
        return f"{self.method}, fold={self.fold}, correct_bias={self.correct_bias}"


@dataclass(frozen=True, kw_only=True)
class Gates:
    """What a quantized graph must hold to be written.

    `max_drop_points` takes layers back to float until the paired drop on
    `evaluation` is within it (see `find_fallback`). `force` writes a graph
    that has lost its answers all the same.
    """

    max_drop_points: float | None = None
    evaluation: ImageSet | None = None
    force: bool = False


def planned(model: OnnxModel, graph: ir.Model, options: QuantizationOptions) -> QuantizationPlan:
    """The plan for a float32 graph, whose nodes all have names of their own then.

    Raises CalibrationError as `plan` does, and for other types.
    """
    description = model.description
    if description.precision != "fp32":
        raise CalibrationError(
            f"{model.path.name} is {description.precision}; INT8 and FP8 start from fp32",
            hint="give the fp32 graph that export wrote",
        )
    if options.numbers == "fp8" and description.opset < _OLDEST_OPSET_FP8:
        raise CalibrationError(
            f"{model.path.name} has opset {description.opset}, which has no FP8",
            hint="export with --opset 19 or later",
        )
    without = [target.name for target in options.targets if not target.has_fp8]
    if options.numbers == "fp8" and without and not options.targets[0].is_cpu:
        raise CalibrationError(
            f"{', '.join(without)} cannot compute FP8, which begins with Ada (sm89)",
            hint="quantize with --int8, or leave that target out",
        )
    name_nodes(graph.graph)
    largest = largest_shapes(model) if not options.targets[0].is_cpu else None
    return plan(graph, options.policy, options.targets, runtime=options.runtime, largest=largest)


def quantize(
    model: OnnxModel,
    calibration: CalibrationSet,
    folder: Path,
    options: QuantizationOptions | None = None,
    *,
    gates: Gates | None = None,
    cache: StatisticsCache | None = None,
    progress: Progress = SILENT,
) -> OnnxModel:
    """Write the int8-fp32 (or fp8-fp32) graph of an fp32 one: what the plan names, no more.

    With `gates` layers go back to float until the accuracy holds, and a graph
    that has lost its answers is not written.

    Raises CalibrationError where the graph is not fp32 or cannot be quantized,
    InputError where an image cannot be read, GateFailedError and
    InconclusiveError as the gates do.
    """
    options = options or QuantizationOptions()
    gates = gates or Gates(force=True)
    if gates.max_drop_points is not None and gates.evaluation is None:
        raise InputError(
            "a largest drop was given, and no images to see it on",
            hint="give --eval FOLDER: images that are not calibrated with",
        )
    gathering = Gathering(model=model, calibration=calibration, cache=cache, progress=progress)
    tuning = tuned(gathering, options)
    part, steps = tuning.plan, ()
    if gates.max_drop_points is not None and gates.evaluation is not None:
        found = find_fallback(tuning, gates.evaluation, max_drop_points=gates.max_drop_points)
        part, steps = found.part, found.steps
    if not gates.force:
        agreed = require_agreement(tuning, part)
        progress.note(f"answers as the float model does: {agreed.in_words()}")
    return saved(tuning, options, folder, part, steps)


def tuned(gathering: Gathering, options: QuantizationOptions) -> Tuning:
    """All that quantizing needs, found out; nothing is written."""
    graph = files.load(gathering.model)
    chosen = planned(gathering.model, graph, options)
    tuning = Tuning(graph, chosen, options.policy.grid, gathering)
    tuning.look()
    if options.fold:
        tuning.fold()
    tuning.choose_ranges(options.method)
    if options.correct_bias:
        tuning.correct_biases()
    return tuning


def saved(
    tuning: Tuning,
    options: QuantizationOptions,
    folder: Path,
    part: QuantizationPlan | None = None,
    fallback: tuple[FallbackStep, ...] = (),
) -> OnnxModel:
    """Write the graph with the plan quantized, or with a `part` that a search came to."""
    model, calibration = tuning.gathering.model, tuning.gathering.calibration
    chosen = part or tuning.plan
    how = f"{options.in_words()}, {calibration.digest[:16]}, keep={sorted(chosen.kept)}"
    description = with_description(
        model,
        precision=_PRECISIONS[options.numbers],
        passes=(*model.description.passes, f"quantize[{how}]"),
        quantization=Quantization(
            method="absmax" if options.numbers == "fp8" else options.method,
            images=len(calibration),
            image_digests=calibration.digests,
            quantized=tuple(chosen.quantized),
            kept=chosen.kept,
            ranges=dict(tuning.ranges),
            folded=tuning.folded,
            bias_corrected=tuple(n for n in tuning.shifts if n in chosen.quantized),
            fallback=fallback,
        ),
    )
    path = folder / f"{stem_of(description, recipe_digest(description))}.onnx"
    return files.save(tuning.quantized(chosen), description, path)
