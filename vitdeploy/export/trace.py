"""PyTorch to an ONNX graph: batch dynamic, and height and width where asked for."""

from __future__ import annotations

import logging
import warnings
from typing import Any

import onnx_ir as ir
import torch
from torch import nn

from vitdeploy.artifacts.onnx_model import ResolutionRange
from vitdeploy.errors import ExportError, first_line
from vitdeploy.export import translations
from vitdeploy.export.dynamic.module import make_dynamic
from vitdeploy.export.dynamic.padding import same_padding_of_whole_strides
from vitdeploy.export.dynamic.sizes import traced_size
from vitdeploy.export.options import DEFAULT_OPSET
from vitdeploy.models.source import SourceModel
from vitdeploy.preprocessing import Size

INPUT_NAME = "input"
TRACED_BATCH = 2
"""Traced with two images: a batch of one would be taken for a constant."""

_REFUSED_BY_RUNTIMES = {"Resize", "If", "Loop", "Scan"}
"""Left by resampling or branching inside the model; TensorRT takes none of them there."""


def trace(source: SourceModel, *, opset: int = DEFAULT_OPSET) -> ir.Model:
    """Trace the source at its resolution into a float32 graph.

    Attention is traced in its plain form (scaled query times key, softmax,
    times value): runtimes recognise it, and the fused call leaves shape
    arithmetic behind.

    Raises ExportError where PyTorch's exporter gives up, naming its reason.
    """
    batch = {0: torch.export.Dim("batch")}
    model = _exported(source.traceable(), source, source.resolution, batch, opset)
    _require_dynamic(model, 0, "batch size", "that cannot be exported")
    return model


def trace_dynamic(
    source: SourceModel, sizes: ResolutionRange, *, opset: int = DEFAULT_OPSET
) -> ir.Model:
    """Trace one float32 graph for every size of the range: batch, height and width stay open.

    Raises ExportError where the source has parts that belong to one size, or
    branches on it.
    """
    spans = zip(sizes.low, sizes.high, sizes.step, ("rows", "columns"), strict=True)
    rows, columns = (
        torch.export.Dim(name, min=low // step, max=high // step) for low, high, step, name in spans
    )
    dims = {0: torch.export.Dim("batch"), 2: sizes.step[0] * rows, 3: sizes.step[1] * columns}
    module = make_dynamic(source, sizes)
    with same_padding_of_whole_strides():
        model = _exported(module, source, traced_size(source, sizes), dims, opset)
    for axis, what in enumerate(("batch size", "", "height", "width")):
        if what:
            _require_dynamic(model, axis, what, "export one graph per size with --res")
    left = sorted({node.op_type for node in model.graph} & _REFUSED_BY_RUNTIMES)
    if left:
        raise ExportError(
            f"{source.description.name} resamples or branches by itself ({', '.join(left)})",
            hint="export one graph per size with --res",
        )
    channels = source.description.in_chans
    model.graph.inputs[0].shape = ir.Shape(("batch", channels, "height", "width"))
    return model


def _exported(
    module: nn.Module,
    source: SourceModel,
    size: Size,
    dims: dict[int, Any],
    opset: int,
) -> ir.Model:
    """PyTorch's exporter, its refusals as ExportError. `dims` are the input's open dimensions."""
    shape = (TRACED_BATCH, source.description.in_chans, *size)
    try:
        with warnings.catch_warnings(), _quiet_exporter():
            warnings.simplefilter("ignore")
            program = torch.onnx.export(
                module,
                (torch.zeros(shape),),
                dynamo=True,
                opset_version=opset,
                input_names=[INPUT_NAME],
                output_names=[source.output],
                custom_translation_table=translations.table(),
                dynamic_shapes=(dims,),
                verbose=False,
            )
    except (torch.onnx.OnnxExporterError, RuntimeError, ValueError) as error:
        raise ExportError(
            f"{source.description.name} cannot be traced at {size}: {first_line(error)}",
            hint="try another --opset; `vitdeploy doctor` shows the versions of torch and timm",
        ) from error
    if program is None:
        raise ExportError(
            f"PyTorch's exporter returned nothing for {source.description.name}",
            hint="`vitdeploy doctor` shows the versions of torch and timm",
        )
    return program.model


def _require_dynamic(model: ir.Model, axis: int, what: str, otherwise: str) -> None:
    shape = model.graph.inputs[0].shape
    if shape is None or isinstance(shape[axis], int):
        raise ExportError(
            f"the traced {what} was baked into the graph",
            hint=f"the model's code branches on the {what}; {otherwise}",
        )


class _quiet_exporter:
    """PyTorch's exporter logs and prints through several loggers; errors still raise."""

    _names = ("torch.onnx", "torch.export", "onnxscript", "torch._dynamo")

    def __enter__(self) -> None:
        self._levels = [logging.getLogger(name).level for name in self._names]
        for name in self._names:
            logging.getLogger(name).setLevel(logging.ERROR)

    def __exit__(self, *_: object) -> None:
        for name, level in zip(self._names, self._levels, strict=True):
            logging.getLogger(name).setLevel(level)
