"""INT8 from a float graph and a calibration set."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from vitdeploy.artifacts.onnx_model import (
    ModelDescription,
    OnnxModel,
    Quantization,
    recipe_digest,
    stem_of,
    with_description,
)
from vitdeploy.calibration import statistics
from vitdeploy.calibration.folds import apply_fold, find_folds
from vitdeploy.calibration.grids import INT8, Grid
from vitdeploy.calibration.image_set import CalibrationSet
from vitdeploy.calibration.linear import LinearNode, linear_nodes, weight_of
from vitdeploy.calibration.plan import QuantizationPlan, plan
from vitdeploy.calibration.qdq import add_to_bias, insert_qdq
from vitdeploy.calibration.ranges import RangeMethod, activation_scale, candidate_scales
from vitdeploy.calibration.search import best_fold, best_range, bias_correction
from vitdeploy.errors import CalibrationError
from vitdeploy.graph import files
from vitdeploy.images import batches
from vitdeploy.progress import SILENT, Progress


@dataclass(frozen=True, kw_only=True)
class QuantizationOptions:
    """How ranges are chosen, which nodes stay in float, and what is done against the error."""

    method: RangeMethod = "auto"
    keep: tuple[str, ...] = ()
    fold: bool = True
    correct_bias: bool = True

    def in_words(self) -> str:
        """As it stands in the file's list of passes."""
        return (
            f"{self.method}, fold={self.fold}, correct_bias={self.correct_bias}, keep={self.keep}"
        )


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
    work = _Quantizing(
        graph, model.description, plan(graph, keep=options.keep), calibration, progress
    )
    work.look()
    if options.fold:
        work.fold()
    work.choose_ranges(options.method)
    if options.correct_bias:
        work.correct_biases()
    files.unused_initializers_removed(insert_qdq(graph, work.plan, work.scales))
    description = with_description(
        model,
        precision="int8-fp32",
        passes=(
            *model.description.passes,
            f"quantize[{options.in_words()}, {calibration.digest[:16]}]",
        ),
        quantization=Quantization(
            method=options.method,
            images=len(calibration),
            image_digests=calibration.digests,
            quantized=tuple(node.name for node in work.plan.linear),
            kept=work.plan.kept,
            ranges=dict(work.ranges),
            folded=work.folded,
            bias_corrected=tuple(work.corrected),
        ),
    )
    path = folder / f"{stem_of(description, recipe_digest(description))}.onnx"
    return files.save(graph, description, path)


@dataclass
class _Quantizing:
    """The float graph on its way: what is known of its activations, and what was chosen."""

    graph: ir.Model
    description: ModelDescription
    plan: QuantizationPlan
    calibration: CalibrationSet
    progress: Progress
    grid: Grid = INT8
    maxima: dict[str, NDArray[np.float32]] = field(default_factory=dict)
    rows: dict[str, NDArray[np.float32]] = field(default_factory=dict)
    scales: dict[str, float] = field(default_factory=dict)
    ranges: dict[str, RangeMethod] = field(default_factory=dict)
    folded: dict[str, float] = field(default_factory=dict)
    corrected: list[str] = field(default_factory=list)

    def look(self) -> None:
        """The first pass over all images, and rows of a few for the searches."""
        where = self.graph, self.description, self.plan.activations, self.calibration
        self.maxima = statistics.channel_maxima(*where, progress=self.progress)
        self.rows = statistics.sampled_rows(*where, progress=self.progress)

    def fold(self) -> None:
        """Move channel outliers into the next weight where that lessens the error."""
        folds = find_folds(self.graph, list(linear_nodes(self.graph)), self._one_image())
        folds = [fold for fold in folds if fold.activation in self.maxima]
        with self.progress.task("calibrating: folding outliers", len(folds)) as task:
            for fold in folds:
                name = fold.activation
                weight = _side_by_side(self.graph, fold.readers)
                found = best_fold(_flat(self.rows[name]), self.maxima[name], weight, self.grid)
                if found is not None:
                    apply_fold(self.graph, fold, found.scales)
                    self.rows[name] = self.rows[name] / found.scales
                    self.maxima[name] = self.maxima[name] / found.scales
                    self.folded[fold.source] = found.alpha
                task.advance()

    def choose_ranges(self, method: RangeMethod) -> None:
        """The second pass over all images, on the folded graph, and a scale for each tensor."""
        absmax = {name: float(maxima.max()) for name, maxima in self.maxima.items()}
        found = statistics.histograms(
            self.graph, self.description, absmax, self.calibration, progress=self.progress
        )
        for name, layers in self._by_activation():
            if method != "auto":
                self.ranges[name] = method
                self.scales[name] = activation_scale(found[name], method, self.grid)
                continue
            candidates = candidate_scales(found[name], self.grid)
            self.ranges[name], self.scales[name] = best_range(
                candidates, _flat(self.rows[name]), _side_by_side(self.graph, layers), self.grid
            )

    def correct_biases(self) -> None:
        """Add to each bias what its layer loses on average."""
        for layer in self.plan.linear:
            if not layer.bias:
                continue
            name = layer.activation
            weight = weight_of(self.graph, layer)
            shift = bias_correction(self.rows[name], weight, self.scales[name], self.grid)
            if shift is not None:
                add_to_bias(self.graph, layer, shift)
                self.corrected.append(layer.name)

    def _by_activation(self) -> Iterator[tuple[str, tuple[LinearNode, ...]]]:
        layers = sorted(self.plan.linear, key=lambda layer: layer.activation)
        for name, group in groupby(layers, key=lambda layer: layer.activation):
            yield name, tuple(group)

    def _one_image(self) -> NDArray:
        return next(
            batches(
                self.calibration.images.take([0]),
                self.description.source.preprocessing,
                self.description.resolution,
                1,
                as_bytes=self.description.input_format == "uint8-nhwc",
            )
        )


def _side_by_side(graph: ir.Model, layers: tuple[LinearNode, ...]) -> NDArray[np.float32]:
    """(K, all outputs): the weights of layers that read one tensor."""
    return np.concatenate([weight_of(graph, layer) for layer in layers], axis=1)


def _flat(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    return rows.reshape(-1, rows.shape[-1])
