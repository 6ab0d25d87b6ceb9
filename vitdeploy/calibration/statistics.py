"""Statistics of activations, streamed: memory does not grow with the number of images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from vitdeploy.artifacts.onnx_model import ModelDescription
from vitdeploy.backends.onnxruntime_ import GraphSession
from vitdeploy.calibration.image_set import CalibrationSet
from vitdeploy.errors import CalibrationError
from vitdeploy.graph import files
from vitdeploy.images import batches
from vitdeploy.progress import SILENT, Progress

BINS = 8192
_BATCH = 8


@dataclass(frozen=True)
class ActivationStatistics:
    """Absolute values of one tensor over all images.

    `histogram` counts them in `BINS` equal bins over [0, absmax].
    """

    absmax: float
    histogram: NDArray[np.int64]

    @property
    def count(self) -> int:
        return int(self.histogram.sum())


def collect(
    model: ir.Model,
    description: ModelDescription,
    tensors: Sequence[str],
    calibration: CalibrationSet,
    *,
    progress: Progress = SILENT,
) -> dict[str, ActivationStatistics]:
    """Two passes over the images: largest magnitudes first, then histograms.

    Raises CalibrationError where an activation is not finite.
    """
    absmax = _absmax_pass(model, description, tensors, calibration, progress)
    histograms = _histogram_pass(model, description, absmax, calibration, progress)
    return {name: ActivationStatistics(absmax[name], histograms[name]) for name in tensors}


def _absmax_pass(
    model: ir.Model,
    description: ModelDescription,
    tensors: Sequence[str],
    calibration: CalibrationSet,
    progress: Progress,
) -> dict[str, float]:
    session = _session_with_outputs(model, tensors, reduce=True)
    largest = np.zeros(len(tensors))
    for batch in _batches(description, calibration, "calibrating: magnitudes", progress):
        observed = np.array([np.asarray(value).item() for value in session.run_all(batch)])
        found, sums = observed[0::2], observed[1::2]
        finite = np.isfinite(found) & np.isfinite(sums)
        if not finite.all():
            bad = tensors[int(np.flatnonzero(~finite)[0])]
            raise CalibrationError(
                f"activation {bad} is not finite on a calibration image",
                hint="the float model overflows by itself; check the weights and the images",
            )
        largest = np.maximum(largest, found)
    return dict(zip(tensors, map(float, largest), strict=True))


def _histogram_pass(
    model: ir.Model,
    description: ModelDescription,
    absmax: dict[str, float],
    calibration: CalibrationSet,
    progress: Progress,
) -> dict[str, NDArray[np.int64]]:
    session = _session_with_outputs(model, list(absmax), reduce=False)
    counts = {name: np.zeros(BINS, dtype=np.int64) for name in absmax}
    for batch in _batches(description, calibration, "calibrating: histograms", progress):
        for name, values in zip(absmax, session.run_all(batch), strict=True):
            counts[name] += histogram_of(values, absmax[name])
    return counts


def histogram_of(values: NDArray[np.float32], absmax: float) -> NDArray[np.int64]:
    """(BINS,) counts of |values| over [0, absmax]; larger ones fall into the last bin."""
    # Below this the factor is beyond float32, and the values are zero to INT8 all the same.
    factor = BINS / absmax if absmax > 1e-30 else 0.0
    bins = np.minimum(np.abs(values.reshape(-1)) * np.float32(factor), BINS - 1)
    return np.bincount(bins.astype(np.int32), minlength=BINS).astype(np.int64)


def _batches(
    description: ModelDescription, calibration: CalibrationSet, what: str, progress: Progress
):  # type: ignore[no-untyped-def]
    preprocessing = description.source.preprocessing
    with progress.task(what, len(calibration)) as task:
        for batch in batches(
            calibration.images,
            preprocessing,
            description.resolution,
            _BATCH,
            as_bytes=description.input_format == "uint8-nhwc",
        ):
            yield batch
            task.advance(len(batch))


def _session_with_outputs(model: ir.Model, tensors: Sequence[str], *, reduce: bool) -> GraphSession:
    """A session on the graph that answers `tensors` alone.

    With `reduce`, two numbers stand for each: its largest magnitude and the
    sum of all. ONNX Runtime's ReduceMax passes over NaN (measured, 1.32); a
    sum never does.
    """
    observed = model.clone()
    graph = observed.graph
    values = {value.name: value for node in graph for value in node.outputs}
    outputs: list[ir.Value] = []
    for index, name in enumerate(tensors):
        outputs += _magnitudes(graph, values[name], index) if reduce else [values[name]]
    graph.outputs[:] = outputs
    return GraphSession(files.runnable(observed))


def _magnitudes(graph: ir.Graph, value: ir.Value, index: int) -> list[ir.Value]:
    """Two scalars: the largest of |value| and the sum of |value|."""
    absolute = ir.node("Abs", [value], name=f"observer_{index}/Abs")
    reduced = [
        ir.node(
            operator, [absolute.outputs[0]], {"keepdims": 0}, name=f"observer_{index}/{operator}"
        )
        for operator in ("ReduceMax", "ReduceSum")
    ]
    for node in (absolute, *reduced):
        node.outputs[0].name = f"{node.name}_out"
        node.outputs[0].dtype = ir.DataType.FLOAT
        graph.append(node)
    for node in reduced:
        node.outputs[0].shape = ir.Shape([])
    return [node.outputs[0] for node in reduced]
