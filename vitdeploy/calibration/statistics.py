"""Statistics of activations, streamed: memory does not grow with the number of images."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

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
SEARCH_IMAGES = 32
"""Images whose activations are looked at in full by searches (alpha, ranges, bias)."""

_ROWS_AN_IMAGE = 32
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


def channel_maxima(
    model: ir.Model,
    description: ModelDescription,
    tensors: Sequence[str],
    calibration: CalibrationSet,
    *,
    progress: Progress = SILENT,
) -> dict[str, NDArray[np.float32]]:
    """(channels,) for each tensor: the largest magnitude of each channel (last axis).

    Raises CalibrationError where an activation is not finite.
    """
    session = _session_with_outputs(model, tensors, reduce=True)
    largest: dict[str, NDArray[np.float32]] = {}
    for batch in _batches(description, calibration, "calibrating: magnitudes", progress):
        answers = session.run_all(batch)
        for name, found, total in zip(tensors, answers[0::2], answers[1::2], strict=True):
            # ONNX Runtime's ReduceMax passes over NaN (measured, 1.32); a sum never does.
            if not (np.isfinite(found).all() and np.isfinite(total)):
                raise CalibrationError(
                    f"activation {name} is not finite on a calibration image",
                    hint="the float model overflows by itself; check the weights and the images",
                )
            largest[name] = np.maximum(largest.get(name, found), found)
    return largest


def histograms(
    model: ir.Model,
    description: ModelDescription,
    absmax: Mapping[str, float],
    calibration: CalibrationSet,
    *,
    progress: Progress = SILENT,
) -> dict[str, ActivationStatistics]:
    """How each tensor of `absmax` is distributed over [0, its absmax]."""
    session = _session_with_outputs(model, list(absmax), reduce=False)
    counts = {name: np.zeros(BINS, dtype=np.int64) for name in absmax}
    for batch in _batches(description, calibration, "calibrating: histograms", progress):
        for name, values in zip(absmax, session.run_all(batch), strict=True):
            counts[name] += histogram_of(values, absmax[name])
    return {name: ActivationStatistics(absmax[name], counts[name]) for name in absmax}


def sampled_rows(
    model: ir.Model,
    description: ModelDescription,
    tensors: Sequence[str],
    calibration: CalibrationSet,
    *,
    progress: Progress = SILENT,
) -> dict[str, NDArray[np.float32]]:
    """(images, rows, channels) for each tensor: rows of it on the `search_images`.

    Of each image at most 32 rows (tokens) are kept: the first, where class
    tokens stand, and others drawn with the calibration set's seed.
    """
    session = _session_with_outputs(model, tensors, reduce=False)
    generator = np.random.default_rng(calibration.seed)
    kept: dict[str, list[NDArray[np.float32]]] = {name: [] for name in tensors}
    few = search_images(calibration)
    for batch in _batches(description, few, "calibrating: rows for searches", progress, size=1):
        for name, values in zip(tensors, session.run_all(batch), strict=True):
            rows = values.reshape(-1, values.shape[-1])
            kept[name].append(rows[_drawn(len(rows), generator)])
    return {name: np.stack(rows) for name, rows in kept.items()}


def search_images(calibration: CalibrationSet) -> CalibrationSet:
    """At most `SEARCH_IMAGES` of the set, the same whatever its order."""
    chosen = sorted(range(len(calibration)), key=lambda index: calibration.digests[index])
    chosen = chosen[:SEARCH_IMAGES]
    digests = tuple(calibration.digests[index] for index in chosen)
    return replace(calibration, images=calibration.images.take(chosen), digests=digests)


def histogram_of(values: NDArray[np.float32], absmax: float) -> NDArray[np.int64]:
    """(BINS,) counts of |values| over [0, absmax]; larger ones fall into the last bin."""
    # Below this the factor is beyond float32, and the values are zero to INT8 all the same.
    factor = BINS / absmax if absmax > 1e-30 else 0.0
    bins = np.minimum(np.abs(values.reshape(-1)) * np.float32(factor), BINS - 1)
    return np.bincount(bins.astype(np.int32), minlength=BINS).astype(np.int64)


def _drawn(rows: int, generator: np.random.Generator) -> NDArray[np.int64]:
    if rows <= _ROWS_AN_IMAGE:
        return np.arange(rows)
    others = generator.choice(rows - 1, _ROWS_AN_IMAGE - 1, replace=False) + 1
    return np.concatenate([[0], np.sort(others)])


def _batches(
    description: ModelDescription,
    calibration: CalibrationSet,
    what: str,
    progress: Progress,
    *,
    size: int | None = None,
) -> Iterator[NDArray]:
    preprocessing = description.source.preprocessing
    with progress.task(what, len(calibration)) as task:
        for batch in batches(
            calibration.images,
            preprocessing,
            description.resolution,
            size or _BATCH,
            as_bytes=description.input_format == "uint8-nhwc",
        ):
            yield batch
            task.advance(len(batch))


def _session_with_outputs(model: ir.Model, tensors: Sequence[str], *, reduce: bool) -> GraphSession:
    """A session on the graph that answers `tensors` alone.

    With `reduce`, two stand for each: the largest magnitude of each channel,
    (channels,), and the sum of all magnitudes.
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
    """The largest of |value| for each channel, and the sum of |value|."""
    name = f"observer_{index}"
    if value.shape is None:
        raise CalibrationError(
            f"the shape of {value.name} is unknown", hint="export the model again"
        )
    absolute = ir.node("Abs", [value], name=f"{name}/Abs")
    total = ir.node("ReduceSum", absolute.outputs, {"keepdims": 0}, name=f"{name}/ReduceSum")
    over = list(range(len(value.shape) - 1))
    if graph.opset_imports.get("", 20) >= 18:
        axes = ir.Value(name=f"{name}/axes", const_value=ir.Tensor(np.array(over, dtype=np.int64)))
        axes.dtype, axes.shape = ir.DataType.INT64, ir.Shape([len(over)])
        graph.register_initializer(axes)
        inputs, attributes = [absolute.outputs[0], axes], {"keepdims": 0}
    else:
        inputs, attributes = [absolute.outputs[0]], {"keepdims": 0, "axes": over}
    largest = ir.node("ReduceMax", inputs, attributes, name=f"{name}/ReduceMax")
    for node in (absolute, largest, total):
        node.outputs[0].name = f"{node.name}_out"
        node.outputs[0].dtype = ir.DataType.FLOAT
        graph.append(node)
    largest.outputs[0].shape = ir.Shape([value.shape[-1]])
    total.outputs[0].shape = ir.Shape([])
    return [largest.outputs[0], total.outputs[0]]
