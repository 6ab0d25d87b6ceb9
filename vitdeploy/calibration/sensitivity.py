"""Which layers' quantization moves the answers most."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vitdeploy.backends.onnxruntime_ import GraphSession
from vitdeploy.calibration.plan import QuantizationPlan
from vitdeploy.calibration.statistics import search_images
from vitdeploy.calibration.tuning import Tuning
from vitdeploy.graph import files
from vitdeploy.graph.files import RunnableGraph
from vitdeploy.images import batches

_BATCH = 8


@dataclass(frozen=True)
class Sensitivity:
    """`error`: root mean square of what quantizing `unit` alone does, in deviations of the
    answers."""

    unit: QuantizationPlan
    error: float

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.unit.quantized)

    def in_words(self) -> str:
        return f"{' and '.join(self.names)} ({self.error:.3f} deviations)"


def sensitivities(tuning: Tuning) -> list[Sensitivity]:
    """Every unit of the plan, the most damaging first, measured on the search images.

    Each is quantized alone, all else in float, so that no error hides another.
    """
    inputs = _inputs(tuning)
    exact = _answers(files.runnable(tuning.graph), inputs)
    spread = max(float((exact - exact.mean(axis=0)).std()), np.finfo(np.float32).tiny)
    units = tuning.plan.units()
    found = []
    with tuning.gathering.progress.task("searching: sensitive layers", len(units)) as task:
        for unit in units:
            answers = _answers(files.runnable(tuning.quantized(unit)), inputs)
            error = float(np.sqrt(np.mean(np.square(answers - exact)))) / spread
            found.append(Sensitivity(unit, error))
            task.advance()
    return sorted(found, key=lambda entry: -entry.error)


def _inputs(tuning: Tuning) -> list[NDArray]:
    description = tuning.gathering.model.description
    return list(
        batches(
            search_images(tuning.gathering.calibration).images,
            description.source.preprocessing,
            description.resolution,
            _BATCH,
            as_bytes=description.input_format == "uint8-nhwc",
        )
    )


def _answers(graph: RunnableGraph, inputs: list[NDArray]) -> NDArray[np.float32]:
    """(images, numbers), the graph computed as it is written."""
    session = GraphSession(graph, optimize=False)
    parts = [session.run(batch) for batch in inputs]
    return np.concatenate([part.reshape(len(part), -1) for part in parts])
