"""A float graph on its way to integers: looked at, folded, given ranges and bias corrections."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from vitdeploy.calibration.answers import answers, error_between, inputs_of
from vitdeploy.calibration.folds import Fold, apply_fold, find_folds, find_insertions
from vitdeploy.calibration.gathering import Gathering
from vitdeploy.calibration.grids import Grid
from vitdeploy.calibration.linear import LinearNode, linear_nodes, weight_of
from vitdeploy.calibration.plan import QuantizationPlan
from vitdeploy.calibration.qdq import add_to_bias, insert_qdq
from vitdeploy.calibration.ranges import RangeMethod, activation_scale, candidate_scales
from vitdeploy.calibration.search import (
    LEAST_GAIN,
    LEAST_GAIN_INSERTED,
    best_fold,
    best_range,
    bias_correction,
)
from vitdeploy.calibration.statistics import search_images
from vitdeploy.graph import files

Array = NDArray[np.float32]


class Tuning:
    """The steps, in this order; folding changes `graph` in place and what it computes not at all.

    `scales` and `ranges` hold the scale of each tensor and the method it came
    of, `folded` the exponents by the node that was divided, `shifts` what is
    added to the bias of each layer that is quantized. After them `quantized`
    gives the graph of the plan, or of a part of it.
    """

    def __init__(
        self, graph: ir.Model, chosen: QuantizationPlan, grid: Grid, gathering: Gathering
    ) -> None:
        self.graph = graph
        self.plan = chosen
        self.grid = grid
        self.gathering = gathering
        self.scales: dict[str, float] = {}
        self.ranges: dict[str, RangeMethod] = {}
        self.folded: dict[str, float] = {}
        self.shifts: dict[str, Array] = {}
        self._maxima: dict[str, Array] = {}
        self._rows: dict[str, Array] = {}
        self._folds: list[Fold] = []
        self._fold_scales: dict[str, Array] = {}
        self._readers: defaultdict[str, list[LinearNode]] = defaultdict(list)
        for layer in chosen.linear:
            self._readers[layer.activation].append(layer)

    def look(self) -> None:
        """The first pass over all images, and rows of a few for the searches."""
        linears = list(linear_nodes(self.graph))
        folds = find_folds(self.graph, linears, self._one_image())
        folds += find_insertions(self.graph, linears, folds)
        self._folds = [fold for fold in folds if fold.activation in self._readers]
        wanted = [*self.plan.activations, *(f.projected for f in self._folds if self._mixes(f))]
        self._maxima = self.gathering.maxima(self.graph, list(dict.fromkeys(wanted)))
        self._rows = self.gathering.rows(self.graph, list(self._readers))

    def fold(self) -> None:
        """Move channel outliers into the next weight where that lessens the error."""
        with self.gathering.progress.task("searching: outliers to fold", len(self._folds)) as task:
            for fold in self._folds:
                name = fold.activation
                weight = self._weights(list(fold.readers))
                gain = LEAST_GAIN_INSERTED if fold.kind == "inserted" else LEAST_GAIN
                rows, maxima = _flat(self._rows[name]), self._maxima[name]
                found = best_fold(rows, maxima, weight, self.grid, gain)
                if found is not None:
                    apply_fold(self.graph, fold, found.scales)
                    self._rows[name] = self._rows[name] / found.scales
                    self._maxima[name] = self._maxima[name] / found.scales
                    self._fold_scales[name] = found.scales
                    self.folded[fold.source] = found.alpha
                    if self._mixes(fold):
                        projected = self._maxima[fold.projected][fold.channels] / found.scales
                        self._maxima[fold.mixed] = projected
                task.advance()

    def choose_ranges(self, method: RangeMethod) -> None:
        """The second pass over all images, on the folded graph, and a scale for each tensor."""
        absmax = {name: float(self._maxima[name].max()) for name in self.plan.activations}
        if self.grid.name == "fp8" or method == "absmax":
            # The steps of FP8 follow the magnitudes: clipping gains nothing.
            self.ranges = dict.fromkeys(absmax, "absmax")
            self.scales = {name: self.grid.scale_of(largest) for name, largest in absmax.items()}
            return
        found = self.gathering.histograms(self.graph, absmax, self._fold_scales)
        with self.gathering.progress.task("searching: ranges", len(found)) as task:
            for name, statistics in found.items():
                if method == "auto" and name in self._readers:
                    rows, weight = _flat(self._rows[name]), self._weights(self._readers[name])
                    candidates = candidate_scales(statistics, self.grid)
                    chosen, scale = best_range(candidates, rows, weight, self.grid)
                else:
                    # A factor of an attention product has no layer of its own to judge by.
                    chosen = "mse" if method == "auto" else method
                    scale = activation_scale(statistics, chosen, self.grid)
                self.ranges[name], self.scales[name] = chosen, scale
                task.advance()

    def correct_biases(self) -> None:
        """Find what each layer loses on average, to be added to its bias.

        All corrections are dropped where the model as a whole answers no better with them, on
        images that they were not found on: errors of layers may have cancelled.
        """
        layers = [layer for layer in self.plan.linear if layer.bias]
        with self.gathering.progress.task("searching: biases", len(layers)) as task:
            for layer in layers:
                name = layer.activation
                weight = weight_of(self.graph, layer)
                shift = bias_correction(self._rows[name], weight, self.scales[name], self.grid)
                if shift is not None:
                    self.shifts[layer.name] = shift
                task.advance()
        if self.shifts and not self._shifts_help():
            self.shifts.clear()

    def _shifts_help(self) -> bool:
        others = search_images(self.gathering.calibration, others=True).images
        inputs = inputs_of(others, self.gathering.model.description)
        exact = answers(self.graph, inputs)
        shifted = error_between(exact, answers(self.quantized(), inputs))
        held, self.shifts = self.shifts, {}
        plain = error_between(exact, answers(self.quantized(), inputs))
        self.shifts = held
        return shifted < plain

    def quantized(self, part: QuantizationPlan | None = None) -> ir.Model:
        """A new graph with all of the plan quantized, or with a part of it alone."""
        part = part or self.plan
        graph = self.graph.clone()
        for layer in part.linear:
            if layer.name in self.shifts:
                add_to_bias(graph, layer, self.shifts[layer.name])
        insert_qdq(graph, part, self.scales, grid=self.grid)
        return files.unused_initializers_removed(graph)

    def _mixes(self, fold: Fold) -> bool:
        """Whether a product that is quantized multiplies what the fold divides."""
        return fold.mixed in self.plan.activations

    def _weights(self, layers: list[LinearNode]) -> Array:
        """(K, all outputs): the weights of layers that read one tensor, side by side."""
        return np.concatenate([weight_of(self.graph, layer) for layer in layers], axis=1)

    def _one_image(self) -> NDArray:
        first = self.gathering.calibration.images.take([0])
        return inputs_of(first, self.gathering.model.description)[0]


def _flat(rows: Array) -> Array:
    return rows.reshape(-1, rows.shape[-1])
