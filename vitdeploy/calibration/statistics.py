"""Statistics of activations, streamed: memory does not grow with the number of images."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from vitdeploy.artifacts.onnx_model import ModelDescription
from vitdeploy.backends.onnxruntime_ import GraphSession, fastest_device
from vitdeploy.backends.options import OnnxRuntimeOptions
from vitdeploy.calibration.image_set import CalibrationSet
from vitdeploy.errors import CalibrationError
from vitdeploy.graph import files
from vitdeploy.graph.edits import store
from vitdeploy.images import batches
from vitdeploy.progress import SILENT, Progress

BINS = 8192
SEARCH_IMAGES = 32
"""Images whose activations are looked at in full by searches (alpha, ranges, bias)."""

_ROWS_AN_IMAGE = 16
_ROWS_COUNTED = 64
_BATCH = 8
_EXTREMES = ("ReduceMax", "ReduceMin")
_What = Literal["whole", "thinned", "extremes"]


@dataclass(frozen=True)
class ActivationStatistics:
    """Absolute values of one tensor over all images.

    `absmax` is of all of them; `histogram` counts those of at most 64 rows (tokens) of each
    matrix, evenly spaced from the first, in `BINS` equal bins over [0, absmax].
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
    session = _session_with_outputs(model, tensors, "extremes")
    largest: dict[str, NDArray[np.float32]] = {}
    for batch in _batches(description, calibration, "calibrating: magnitudes", progress):
        answers = session.run_all(batch)
        for index, name in enumerate(tensors):
            high, low, total = answers[3 * index : 3 * index + 3]
            found = np.maximum(high, -low)
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
    session = _session_with_outputs(model, list(absmax), "thinned")
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

    Of each image at most 16 rows (tokens) are kept: the first, where class
    tokens stand, and others drawn with the calibration set's seed.
    """
    session = _session_with_outputs(model, tensors, "whole")
    generator = np.random.default_rng(calibration.seed)
    kept: dict[str, list[NDArray[np.float32]]] = {name: [] for name in tensors}
    few = search_images(calibration)
    for batch in _batches(description, few, "calibrating: rows for searches", progress, size=1):
        for name, values in zip(tensors, session.run_all(batch), strict=True):
            rows = values.reshape(-1, values.shape[-1])
            kept[name].append(rows[_drawn(len(rows), generator)])
    return {name: np.stack(rows) for name, rows in kept.items()}


def search_images(calibration: CalibrationSet, *, others: bool = False) -> CalibrationSet:
    """At most `SEARCH_IMAGES` of the set, the same whatever its order; `others` than those.

    Of a set too small for both, the two overlap.
    """
    chosen = sorted(range(len(calibration)), key=lambda index: calibration.digests[index])
    chosen = chosen[-SEARCH_IMAGES:] if others else chosen[:SEARCH_IMAGES]
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


def _session_with_outputs(model: ir.Model, tensors: Sequence[str], what: _What) -> GraphSession:
    """A session on the graph that answers `tensors` alone: whole, thinned to at most
    `_ROWS_COUNTED` rows of each matrix, or as the three numbers of `_extremes`."""
    observed = model.clone()
    graph = observed.graph
    values = {value.name: value for node in graph for value in node.outputs}
    outputs: list[ir.Value] = []
    for index, name in enumerate(tensors):
        if what == "extremes":
            outputs += _extremes(graph, values[name], f"observer_{index}")
        elif what == "thinned":
            outputs.append(_thinned(graph, values[name], f"observer_{index}"))
        else:
            outputs.append(values[name])
    graph.outputs[:] = outputs
    return GraphSession(
        files.runnable(observed), tuning=OnnxRuntimeOptions(device=fastest_device())
    )


def _extremes(graph: ir.Graph, value: ir.Value, name: str) -> list[ir.Value]:
    """Of each channel the largest and the smallest number, and the sum of all numbers."""
    if value.shape is None:
        raise CalibrationError(
            f"the shape of {value.name} is unknown", hint="export the model again"
        )
    over = list(range(len(value.shape) - 1))
    inputs, attributes = [value], {"keepdims": 0, "axes": over}
    if graph.opset_imports.get("", 20) >= 18:
        axes = store(graph, f"{name}/axes", np.array(over, dtype=np.int64))
        inputs, attributes = [value, axes], {"keepdims": 0}
    nodes = [ir.node(op, inputs, attributes, name=f"{name}/{op}") for op in _EXTREMES]
    nodes.append(ir.node("ReduceSum", [value], {"keepdims": 0}, name=f"{name}/ReduceSum"))
    for node in nodes:
        node.outputs[0].name = f"{node.name}_out"
        node.outputs[0].dtype = ir.DataType.FLOAT
        node.outputs[0].shape = ir.Shape([value.shape[-1]] if node.op_type in _EXTREMES else [])
        graph.append(node)
    return [node.outputs[0] for node in nodes]


def _thinned(graph: ir.Graph, value: ir.Value, name: str) -> ir.Value:
    """Evenly spaced rows, the first among them; the value itself where it has few."""
    shape = value.shape
    rows = shape[-2] if shape is not None and len(shape) > 2 else 0
    if shape is None or not isinstance(rows, int) or rows <= _ROWS_COUNTED:
        return value
    limits = (0, rows, len(shape) - 2, _step(rows))
    settings = [
        store(graph, f"{name}/{what}", np.array([number], dtype=np.int64))
        for what, number in zip(("start", "end", "axis", "step"), limits, strict=True)
    ]
    node = ir.node("Slice", [value, *settings], name=f"{name}/Slice")
    node.outputs[0].name, node.outputs[0].dtype = f"{node.name}_out", ir.DataType.FLOAT
    graph.append(node)
    return node.outputs[0]


def _step(rows: int) -> int:
    """A prime that divides neither the rows nor, past a class token, the others: a step that
    divides the width of the patch grid would count the same columns again and again."""
    step = -(-rows // _ROWS_COUNTED)
    while any(step % factor == 0 for factor in range(2, step)) or 0 in (
        rows % step,
        (rows - 1) % step,
    ):
        step += 1
    return step
