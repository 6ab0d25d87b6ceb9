"""What a graph answers on a few calibration images, for searches that judge the whole model."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from vitdeploy.artifacts.onnx_model import ModelDescription
from vitdeploy.backends.onnxruntime_ import GraphSession
from vitdeploy.graph import files
from vitdeploy.images import ImageSet, batches

_BATCH = 8


def inputs_of(images: ImageSet, description: ModelDescription) -> list[NDArray]:
    """Batches of the graph's input, decoded once for all graphs that are compared on them."""
    return list(
        batches(
            images,
            description.source.preprocessing,
            description.resolution,
            _BATCH,
            as_bytes=description.input_format == "uint8-nhwc",
        )
    )


def answers(graph: ir.Model, inputs: Sequence[NDArray]) -> NDArray[np.float32]:
    """(images, numbers), the graph computed as it is written, without optimizations."""
    session = GraphSession(files.runnable(graph), optimize=False)
    parts = [session.run(batch) for batch in inputs]
    return np.concatenate([part.reshape(len(part), -1) for part in parts])


def error_between(exact: NDArray[np.float32], answered: NDArray[np.float32]) -> float:
    """Root mean square of the difference, in deviations of the exact answers between images.

    Infinite where an answer is not finite, so that it is the largest of all.
    """
    if not np.isfinite(answered).all():
        return float("inf")
    spread = max(float((exact - exact.mean(axis=0)).std()), float(np.finfo(np.float32).tiny))
    return float(np.sqrt(np.mean(np.square(answered - exact)))) / spread
