"""PyTorch to an ONNX graph, batch dynamic, everything else fixed."""

from __future__ import annotations

import logging
import warnings

import onnx_ir as ir
import torch

from vitdeploy.errors import ExportError
from vitdeploy.models.source import SourceModel

INPUT_NAME = "input"
OUTPUT_NAME = "logits"
TRACED_BATCH = 2
"""Traced with two images: a batch of one would be taken for a constant."""

DEFAULT_OPSET = 20
"""The first with Gelu as one operator; TensorRT 10.3 is believed to stop here."""


def trace(source: SourceModel, *, opset: int = DEFAULT_OPSET) -> ir.Model:
    """Trace the source at its resolution into a float32 graph.

    Attention is traced in its plain form (scaled query times key, softmax,
    times value): runtimes recognise it, and the fused call leaves shape
    arithmetic behind.

    Raises ExportError where PyTorch's exporter gives up, naming its reason.
    """
    module = source.traceable()
    shape = (TRACED_BATCH, source.description.in_chans, *source.resolution)
    try:
        with warnings.catch_warnings(), _quiet_exporter():
            warnings.simplefilter("ignore")
            program = torch.onnx.export(
                module,
                (torch.zeros(shape),),
                dynamo=True,
                opset_version=opset,
                input_names=[INPUT_NAME],
                output_names=[OUTPUT_NAME],
                dynamic_shapes=({0: torch.export.Dim("batch")},),
                verbose=False,
            )
    except (torch.onnx.OnnxExporterError, RuntimeError, ValueError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ExportError(
            f"{source.description.name} cannot be traced at {source.resolution}: {reason}",
            hint="try another --opset; `vitdeploy doctor` shows the versions of torch and timm",
        ) from error
    if program is None:
        raise ExportError(
            f"PyTorch's exporter returned nothing for {source.description.name}",
            hint="`vitdeploy doctor` shows the versions of torch and timm",
        )
    model = program.model
    _require_dynamic_batch(model)
    return model


def _require_dynamic_batch(model: ir.Model) -> None:
    shape = model.graph.inputs[0].shape
    if shape is None or isinstance(shape[0], int):
        raise ExportError(
            "the traced batch size was baked into the graph",
            hint="the model's code branches on the batch size; that cannot be exported",
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
