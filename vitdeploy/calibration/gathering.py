"""What a graph's activations are on the calibration images, gathered once and kept."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from vitdeploy.artifacts.onnx_model import OnnxModel
from vitdeploy.calibration import statistics
from vitdeploy.calibration.cache import Parameter, StatisticsCache, cache_key
from vitdeploy.calibration.image_set import CalibrationSet
from vitdeploy.calibration.statistics import BINS, ActivationStatistics
from vitdeploy.progress import SILENT, Progress

Arrays = dict[str, NDArray[np.float32]]
Scales = Mapping[str, NDArray[np.float32]]


@dataclass(frozen=True, kw_only=True)
class Gathering:
    """The two passes over all images, and rows of a few; `cache` saves the passes next time."""

    model: OnnxModel
    calibration: CalibrationSet
    cache: StatisticsCache | None = None
    progress: Progress = SILENT

    def maxima(self, graph: ir.Model, tensors: Sequence[str]) -> Arrays:
        """See `statistics.channel_maxima`."""
        return self._kept(
            "channel maxima",
            {"tensors": tuple(tensors)},
            lambda: statistics.channel_maxima(
                graph, self.model.description, tensors, self.calibration, progress=self.progress
            ),
        )

    def rows(self, graph: ir.Model, tensors: Sequence[str]) -> Arrays:
        """See `statistics.sampled_rows`. They are large and of few images: not kept."""
        return statistics.sampled_rows(
            graph, self.model.description, tensors, self.calibration, progress=self.progress
        )

    def histograms(
        self, graph: ir.Model, absmax: Mapping[str, float], folded: Scales
    ) -> dict[str, ActivationStatistics]:
        """See `statistics.histograms`; `graph` is the model's with `folded` scales in it."""
        counts = self._kept(
            "histograms",
            {
                "absmax": tuple(f"{name}={value!r}" for name, value in absmax.items()),
                "bins": BINS,
                "folded": _digest(folded),
            },
            lambda: {
                name: found.histogram
                for name, found in statistics.histograms(
                    graph, self.model.description, absmax, self.calibration, progress=self.progress
                ).items()
            },
        )
        return {name: ActivationStatistics(absmax[name], counts[name]) for name in absmax}

    def _kept(
        self,
        method: str,
        parameters: Mapping[str, Parameter | tuple[Parameter, ...]],
        gather: Callable[[], Mapping[str, NDArray]],
    ) -> dict[str, NDArray]:
        if self.cache is None:
            return dict(gather())
        key = cache_key(self.model, self.calibration, method, parameters)
        found = self.cache.get(key)
        if found is None:
            found = dict(gather())
            self.calibration.require_unchanged()
            self.cache.put(key, found)
        return found


def _digest(folded: Scales) -> str:
    digest = hashlib.sha256()
    for name in sorted(folded):
        digest.update(name.encode())
        digest.update(folded[name].tobytes())
    return digest.hexdigest()
